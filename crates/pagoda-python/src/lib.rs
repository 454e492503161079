//! The native half of the Python package `pagoda`: memory within a budget, by the buffer protocol.
//!
//! The package's own Python (`python/pagoda`) makes NumPy arrays of it; nothing here knows NumPy.
//!
//! | file | purpose |
//! |---|---|
//! | `manager` | a manager: its options, its figures, and how it is closed |
//! | `region` | memory for arrays; pinned parts of it |
//! | `file` | a file as memory |
//! | `memory` | a piece of memory behind either, until it is closed; the list of all |
//! | `views` | how many views of memory are alive, and the buffers that make them |
//! | `child` | forked children, which have none of the memory, and processes that end |
//! | `errors` | errors of the library as Python's exceptions |
//!
//! The protocol with Python: no thread of the engine ever takes the interpreter's lock, so that a
//! thread that waits for a page may hold it. Calls that may block release it. No lock of this crate
//! is held while the interpreter's is released, so that a forked child finds each of them free.
//! This crate must never free memory that Python can still reach.

use pyo3::prelude::*;

mod child;
mod errors;
mod file;
mod manager;
mod memory;
mod region;
mod views;

/// Memory within a budget, for the package `pagoda`.
#[pymodule]
mod _pagoda {
    #[pymodule_export]
    use super::child::{flush_all, forked};
    #[pymodule_export]
    use super::file::File;
    #[pymodule_export]
    use super::manager::Manager;
    #[pymodule_export]
    use super::region::{Pin, Region};
    #[pymodule_export]
    use super::views::View;
}

/// Frees what may take a while, for the destructor of a Python object. While the interpreter ends
/// nothing else of Python runs that could wait.
fn free_without_gil(value: impl Send) {
    let mut value = Some(value);
    Python::try_attach(|py| py.detach(|| drop(value.take())));
}
