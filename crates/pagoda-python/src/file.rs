//! A file as memory, as Python sees it.
//!
//! This module must never release the interpreter's lock with a lock of its own held.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::exporter::Exporter;
use crate::memory::{Backing, Member, Memory};

impl Backing for pagoda::FileRegion {
    const NAME: &'static str = "file";

    fn address(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn flush(&self) -> PyResult<()> {
        self.sync().map_err(errors::file)
    }
}

/// A file as memory, which supports the buffer protocol. Made by `Manager.file`; the array of
/// `Manager.memmap` has one of its own (`pagoda.region_of`).
///
/// Its pages are read when they are touched, within the manager's budget and not in the kernel's
/// cache. Dirty pages are written when memory gets short, by `flush`, by `close`, when it and all
/// its views are gone, and when Python ends. An access to a page that can't be read is SIGBUS, as
/// with `mmap`.
#[pyclass(frozen, extends = Exporter, module = "pagoda")]
pub(crate) struct File {
    memory: Arc<Memory<pagoda::FileRegion>>,
    path: PathBuf,
    is_writable: bool,
}

impl File {
    /// The Python object of a file.
    pub(crate) fn create(
        py: Python<'_>,
        file: pagoda::FileRegion,
        path: PathBuf,
        is_writable: bool,
        manager: u64,
    ) -> PyResult<Py<Self>> {
        let bytes = file.len();
        let memory = Memory::new(file, bytes, !is_writable, manager)?;
        Exporter::derive(py, memory.clone(), Self { memory, path, is_writable })
    }
}

#[pymethods]
impl File {
    /// The path that it was opened by.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Whether it may be written.
    #[getter]
    fn writable(&self) -> bool {
        self.is_writable
    }

    /// Returns when all earlier writes are on stable storage, as after fsync(2). Releases the GIL.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.memory.flush(py)
    }

    /// Copies bytes to `offset`, as an assignment to the memory there would. Whole base pages that
    /// are not in memory are not read first. Releases the GIL.
    fn _write(&self, py: Python<'_>, offset: usize, source: PyBuffer<u8>) -> PyResult<()> {
        let file = self.memory.get()?;
        if !source.is_c_contiguous() {
            return Err(PyBufferError::new_err("the bytes to be written are not contiguous"));
        }
        let (address, bytes) = (source.buf_ptr().expose_provenance(), source.len_bytes());
        let written = py.detach(move || {
            // SAFETY: `source` keeps the buffer's memory until this function ends. Others may
            // write there meanwhile, as into the source of any copy without the GIL. The engine
            // copies the bytes once, and decides nothing by them.
            let from =
                unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), bytes) };
            file.write_at(offset, from)
        });
        written.map_err(errors::file)
    }

    /// Totals so far, in bytes: `read`, of that `read_ahead` (by readahead) and `read_again` (after
    /// an eviction), `evicted_unused` (of readahead), and `written`. And now: `dirty` (not in the
    /// file yet).
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let file = self.memory.get()?;
        let stats = py.detach(move || file.stats());
        let dict = PyDict::new(py);
        let parts = [
            ("read", stats.read),
            ("read_ahead", stats.read_ahead),
            ("read_again", stats.read_again),
            ("evicted_unused", stats.evicted_unused),
            ("written", stats.written),
            ("dirty", stats.dirty),
        ];
        for (name, bytes) in parts {
            dict.set_item(name, bytes.get())?;
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let (bytes, path) = (pagoda::Bytes::new(self.memory.bytes as u64), self.path.display());
        let state = match (self.memory.is_closed(), self.is_writable) {
            (true, _) => "closed",
            (false, true) => "writable",
            (false, false) => "read-only",
        };
        format!("<pagoda.File {path}, {bytes}, {state}>")
    }
}
