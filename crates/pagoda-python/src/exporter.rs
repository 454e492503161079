//! What regions and files have in common for Python: a length, views, and an end.
//!
//! This module must never release the interpreter's lock with a lock of its own held.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::{PyClass, ffi};

use crate::memory::Member;
use crate::views::{View, fill};

/// Memory that supports the buffer protocol: a `Region` or a `File`.
#[pyclass(frozen, subclass, module = "pagoda._pagoda")]
pub(crate) struct Exporter {
    memory: Arc<dyn Member>,
}

impl Exporter {
    /// The Python object of a class that is derived from this one.
    pub(crate) fn derive<T>(py: Python<'_>, memory: Arc<dyn Member>, derived: T) -> PyResult<Py<T>>
    where
        T: PyClass<BaseType = Self>,
    {
        Py::new(py, PyClassInitializer::from(Self { memory }).add_subclass(derived))
    }
}

#[pymethods]
impl Exporter {
    /// Its length in bytes. That of a file is the one it had when it was opened.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.memory.is_closed()
    }

    /// Frees it; a file is flushed before. Raises `BufferError` as long as arrays or other views of
    /// it are alive. Closing twice does nothing. Releases the GIL.
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
        self.memory.bytes()
    }

    /// A view of all of it, as the base of an array.
    fn _view(slf: Bound<'_, Self>) -> PyResult<View> {
        let memory = slf.get().memory.clone();
        let buffer = memory.buffer()?;
        Ok(View::new(slf.into_any(), memory, &buffer))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: Python calls this as `bf_getbuffer`, and this object keeps the memory.
        unsafe { fill(&slf, &*slf.get().memory, buffer, flags) }
    }

    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {
        self.memory.views().leave();
    }
}
