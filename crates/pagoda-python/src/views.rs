//! The views of memory: buffers that Python holds of it, and pins.
//!
//! Memory counts its views, and is closed only when there are none. A view has a reference to its
//! exporter, which keeps the memory. Both together keep addresses from dangling. This module must
//! never hand out an address that it has not counted.

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

/// The number of views of memory, and the process that made the memory.
pub(crate) struct Views {
    /// Changed with the interpreter's lock held.
    count: AtomicUsize,
    maker: Maker,
}

impl Views {
    /// No views yet, of memory that this process makes.
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

    /// An error as long as there are views. In a forked child those don't count: the memory is not
    /// mapped there.
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

/// The base of an array. Unlike a `memoryview` it can't be released by hand while the array uses
/// it.
#[pyclass(frozen, module = "pagoda._pagoda")]
pub(crate) struct View {
    /// The region or file.
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

/// The values that a buffer is filled in with.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) address: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) is_read_only: bool,
}

/// Fills in a buffer of all of the memory of `exporter`, and counts it.
///
/// # Safety
/// `buffer` is null or may be written, as Python calls `bf_getbuffer`. `exporter` keeps `member`.
pub(crate) unsafe fn fill<T: PyClass>(
    exporter: &Bound<'_, T>,
    member: &dyn Member,
    buffer: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if buffer.is_null() {
        return Err(PyBufferError::new_err("a buffer has to be filled in, and none was given"));
    }
    // The protocol asks for null where the request is refused.
    // SAFETY: it is not null, so that by this function's contract it may be written.
    unsafe { (*buffer).obj = std::ptr::null_mut() };
    let Buffer { address, bytes, is_read_only } = member.buffer()?;
    let bytes = ffi::Py_ssize_t::try_from(bytes)
        .map_err(|_| PyValueError::new_err("the memory is larger than a buffer can be"))?;
    let (address, read_only) = (address.cast::<c_void>(), c_int::from(is_read_only));
    // SAFETY: `buffer` may be written. The call takes a reference to the exporter, which the buffer
    // gives back when it is released. So the exporter keeps the memory until then, and closing it
    // is refused since the buffer is counted below, before the interpreter's lock is released.
    let status =
        unsafe { ffi::PyBuffer_FillInfo(buffer, exporter.as_ptr(), address, bytes, read_only, flags) };
    if status != 0 {
        return Err(PyErr::fetch(exporter.py()));
    }
    member.views().enter();
    Ok(())
}
