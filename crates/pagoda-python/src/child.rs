//! Forked children and ending processes.
//!
//! In a child the memory is not mapped. Its calls are refused, and the addresses of its parent's
//! arrays are closed, so that nothing else is mapped there. A process that ends writes its files.
//! This module must never let a child act on its parent's memory.

use pagoda_core::page::OS_PAGE;
use pagoda_linux::mem::absent::close_in_child;
use pagoda_linux::mem::range::PageRange;
use pyo3::prelude::*;

use crate::errors::system_error;
use crate::memory::{forget_members, members};

const LINE: &str = "pagoda: a forked child touched an array of its parent's manager, which it does not have; make a \
                    manager in the child, or start it afresh (multiprocessing: \"spawn\" or \"forkserver\")\n";

/// To be called in a child of `os.fork`, before anything else happens there.
#[pyfunction]
pub(crate) fn forked() -> PyResult<()> {
    let places = members().into_iter().filter_map(|member| member.place());
    let ranges =
        places.filter_map(|(start, bytes)| PageRange::new(start, (start + bytes).next_multiple_of(OS_PAGE)));
    let ranges: Vec<_> = ranges.collect();
    forget_members();
    close_in_child(&ranges, LINE).map_err(|error| system_error(&error))
}

/// Writes all files, when Python ends: writes to a shared mapping outlive its process, too. An
/// error is printed, as that of a destructor is.
#[pyfunction]
pub(crate) fn flush_all(py: Python<'_>) {
    for member in members() {
        if let Err(error) = member.flush(py) {
            error.write_unraisable(py, None);
        }
    }
}
