//! The native half of the Python package `pagoda`: memory within a budget, by the buffer protocol.
//!
//! The package's own Python (`python/pagoda`) makes NumPy arrays of it; nothing here knows NumPy.
//!
//! | file | purpose |
//! |---|---|
//! | `manager` | a manager: its options, its figures, and how it is closed |
//! | `exporter` | the base of `Region` and `File`: their length, buffers, and how they are closed |
//! | `region` | memory for arrays; pinned parts of it |
//! | `file` | a file as memory |
//! | `memory` | the memory of a region or a file, until it is closed; the list of all |
//! | `views` | the number of views of memory that are alive, and the buffers that make them |
//! | `child` | forked children, in which the memory is not mapped, and the end of the process |
//! | `errors` | errors of the library as Python's exceptions |
//!
//! The protocol with Python: no thread of the engine ever takes the interpreter's lock, so that a
//! thread that waits for a page may hold it. Calls that may block release it. No lock of this crate
//! is held while the interpreter's is released, so that a forked child finds each of them free.
//! This crate must never free memory that Python can still reach.

use pyo3::prelude::*;

mod child;
mod errors;
mod exporter;
mod file;
mod manager;
mod memory;
mod region;
mod views;

/// Memory within a budget, for the package `pagoda`.
// Counts of views are only right with the interpreter's lock, which Python without it then takes.
#[pymodule(gil_used = true)]
mod _pagoda {
    #[pymodule_export]
    use super::child::{flush_all, forked};
    #[pymodule_export]
    use super::exporter::Exporter;
    #[pymodule_export]
    use super::file::File;
    #[pymodule_export]
    use super::manager::Manager;
    #[pymodule_export]
    use super::region::{Pin, Region};
    #[pymodule_export]
    use super::views::View;
}

/// Drops a value whose destructor may block, without the interpreter's lock: for destructors of
/// Python objects. Where the interpreter is ending, the lock is left as it is.
fn free_without_gil(value: impl Send) {
    let mut value = Some(value);
    Python::try_attach(|py| py.detach(|| drop(value.take())));
}
