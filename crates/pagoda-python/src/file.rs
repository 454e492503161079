//! A file as memory, as Python sees it.
//!
//! This module must never release the interpreter's lock with a lock of its own held.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::memory::{Backing, Member, Memory};
use crate::views::View;

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
#[pyclass(frozen, module = "pagoda")]
pub(crate) struct File {
    memory: Arc<Memory<pagoda::FileRegion>>,
    path: PathBuf,
    is_writable: bool,
}

impl File {
    pub(crate) fn new(
        file: pagoda::FileRegion,
        path: PathBuf,
        is_writable: bool,
        manager: u64,
    ) -> PyResult<Self> {
        let bytes = file.len();
        Ok(Self { memory: Memory::new(file, bytes, !is_writable, manager)?, path, is_writable })
    }
}

#[pymethods]
impl File {
    /// Its length in bytes, as it was when it was opened.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.bytes
    }

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

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.memory.is_closed()
    }

    /// Returns when all earlier writes are on stable storage, as after fsync(2). Releases the GIL.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.memory.flush(py)
    }

    /// What was read and written so far, in bytes: `read`, `read_ahead` (of that, before it was
    /// asked for), `read_again`, `evicted_unused`, `written`, and `dirty` (not in the file yet).
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let file = self.memory.get()?;
        let stats = py.detach(|| file.stats());
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

    /// Flushes and frees it. Raises `BufferError` as long as arrays or other views of it are alive.
    /// Closing twice does nothing. Releases the GIL.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.memory.close(py)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __len__(&self) -> usize {
        self.memory.bytes
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

    /// A view of all of it, as the base of an array.
    fn _view(slf: Bound<'_, Self>) -> PyResult<View> {
        let memory = slf.get().memory.clone();
        let buffer = memory.buffer()?;
        Ok(View::new(slf.into_any(), memory, &buffer))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: Python calls this as `bf_getbuffer`, and this object keeps the memory.
        unsafe { slf.get().memory.fill(&slf, buffer, flags) }
    }

    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {
        self.memory.views.leave();
    }
}
