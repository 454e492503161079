//! The views of a piece of memory: buffers that Python holds of it, and pins.
//!
//! An exporter counts its views and is closed only when there are none. It is alive as long as a
//! view is, which has a reference to it. Both together keep addresses from dangling. This module
//! must never hand out an address that it has not counted.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagoda::OtherProcess;
use pagoda_linux::process::process_mark::ProcessMark;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyClass, ffi};

use crate::errors::{other_process, system_error};
use crate::memory::Member;

/// The process that made something.
pub(crate) struct Maker(ProcessMark);

impl Maker {
    pub(crate) fn this_process() -> PyResult<Self> {
        ProcessMark::of_this_process().map(Self).map_err(|error| system_error(&error))
    }

    /// Whether this is that process, and no forked child.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.0.is_of_this_process() { Ok(()) } else { Err(other_process(OtherProcess)) }
    }
}

/// How many views there are of memory, and in which process.
pub(crate) struct Views {
    /// Changed with the interpreter's lock held.
    count: AtomicUsize,
    maker: Maker,
}

impl Views {
    /// Of memory of this process.
    pub(crate) fn none() -> PyResult<Self> {
        Ok(Self { count: AtomicUsize::new(0), maker: Maker::this_process()? })
    }

    /// Whether this process has the memory.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        self.maker.check_process()
    }

    pub(crate) fn enter(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Refuses as long as there are views. Those of a child are of nothing.
    pub(crate) fn expect_none(&self, what: &str) -> PyResult<()> {
        let count = self.count.load(Ordering::Relaxed);
        if count == 0 || self.check_process().is_err() {
            return Ok(());
        }
        let (arrays, them) = if count == 1 { ("array", "it") } else { ("arrays", "them") };
        Err(PyBufferError::new_err(format!(
            "can't close a {what} that {count} {arrays} or other views still use; delete {them} first, and what is \
             derived from {them} (`del`)"
        )))
    }
}

/// A view for an array, which is its base: what an array is made of can't be released by hand, as a
/// `memoryview` can.
#[pyclass(frozen, module = "pagoda._pagoda")]
pub(crate) struct View {
    /// The region or file. It keeps the memory that `member` closes.
    #[pyo3(get)]
    obj: Py<PyAny>,
    member: Arc<dyn Member>,
    address: usize,
    bytes: usize,
    is_read_only: bool,
}

impl View {
    /// Of all of the memory of `exporter`.
    pub(crate) fn new(exporter: Bound<'_, PyAny>, member: Arc<dyn Member>, buffer: &Buffer) -> Self {
        member.views().enter();
        let Buffer { address, bytes, is_read_only } = *buffer;
        Self { obj: exporter.unbind(), member, address: address.expose_provenance(), bytes, is_read_only }
    }
}

#[pymethods]
impl View {
    /// All of the memory as bytes, by NumPy's protocol of that name.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("version", 3)?;
        dict.set_item("shape", (self.bytes,))?;
        dict.set_item("typestr", "|u1")?;
        dict.set_item("data", (self.address, self.is_read_only))?;
        Ok(dict)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.member.views().leave();
    }
}

/// A buffer to be.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) address: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) is_read_only: bool,
}

/// Fills in a buffer of all of the memory of `exporter`, and counts it.
///
/// # Safety
/// `buffer` is null or may be written, as Python calls `bf_getbuffer`. The memory is valid for
/// reads, and for writes unless it is read-only, as long as `exporter` lives and `views` counts
/// any.
pub(crate) unsafe fn fill<T: PyClass>(
    exporter: &Bound<'_, T>,
    views: &Views,
    memory: &Buffer,
    buffer: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if buffer.is_null() {
        return Err(PyBufferError::new_err("a buffer has to be filled in, and none was given"));
    }
    views.check_process()?;
    let bytes = ffi::Py_ssize_t::try_from(memory.bytes)
        .map_err(|_| PyValueError::new_err("the memory is larger than a buffer can be"))?;
    let (address, read_only) = (memory.address.cast::<c_void>(), c_int::from(memory.is_read_only));
    // SAFETY: `buffer` may be written. The call takes a reference to the exporter, which the buffer
    // gives back when it is released. The caller vouches for the address.
    let status =
        unsafe { ffi::PyBuffer_FillInfo(buffer, exporter.as_ptr(), address, bytes, read_only, flags) };
    if status != 0 {
        return Err(PyErr::fetch(exporter.py()));
    }
    views.enter();
    Ok(())
}
