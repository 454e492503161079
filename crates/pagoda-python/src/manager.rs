//! A manager, as Python sees it: made with its options, asked for memory and figures, and closed.
//!
//! Arrays are made by the package's own Python. This module must never release the interpreter's
//! lock with a lock of its own held.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pagoda::{Bytes, Exhausted, FileRegionBuilder};
use pyo3::exceptions::{PyRuntimeWarning, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};

use crate::errors;
use crate::file::File;
use crate::memory::{members, new_manager};
use crate::region::Region;
use crate::{free_without_gil, views::Maker};

/// A size: bytes, or text as the command line takes it ("512M", "1G").
pub(crate) struct Size(Bytes);

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = value.extract::<String>() {
            let size = text.parse::<Bytes>();
            return size.map(Self).map_err(|error| PyValueError::new_err(error.to_string()));
        }
        match value.extract::<u64>() {
            Ok(bytes) => Ok(Self(Bytes::new(bytes))),
            // It is below zero, or has more than 64 bits.
            Err(error) if value.is_instance_of::<PyInt>() => Err(error),
            Err(_) => Err(PyTypeError::new_err(
                "a size is a number of bytes, or text like \"512M\" (K, M, G or T, binary)",
            )),
        }
    }
}

/// Memory within a budget: see `pagoda.Manager`, which makes arrays of it.
#[pyclass(frozen, subclass, module = "pagoda._pagoda")]
pub(crate) struct Manager {
    /// Until it is closed.
    manager: Mutex<Option<Arc<pagoda::Manager>>>,
    number: u64,
    maker: Maker,
    user_mode_only: bool,
}

impl Manager {
    /// The library's manager. It may be the last reference to it: drop it without the
    /// interpreter's lock.
    fn get(&self) -> PyResult<Arc<pagoda::Manager>> {
        self.maker.check_process()?;
        let manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        manager.clone().ok_or_else(|| errors::closed("manager"))
    }

    fn take(&self) -> Option<Arc<pagoda::Manager>> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Manager {
    #[new]
    #[pyo3(signature = (budget, *, user_mode_only = false, serve_in_thread = false, spill_to = None, spill_limit = None, publish = false))]
    fn new(
        py: Python<'_>,
        budget: Size,
        user_mode_only: bool,
        serve_in_thread: bool,
        spill_to: Option<PathBuf>,
        spill_limit: Option<Size>,
        publish: bool,
    ) -> PyResult<Self> {
        let user_mode_only = user_mode_only || serve_in_thread;
        let builder = pagoda::Manager::builder().budget(budget.0).user_mode_only(user_mode_only);
        let builder = builder.serve_in_thread(serve_in_thread).publish(publish).on_exhausted(warn);
        let builder = match (spill_to, spill_limit) {
            (Some(directory), Some(limit)) => builder.spill_to(directory, limit.0),
            (None, None) => builder,
            _ => {
                return Err(PyValueError::new_err(
                    "spill_to and spill_limit belong together; give both, or none",
                ));
            }
        };
        let built = py.detach(|| builder.build());
        let manager = built.map_err(|error| {
            errors::start(error, !user_mode_only && pagoda::userfaultfd_allows_managers())
        })?;
        let manager = Mutex::new(Some(Arc::new(manager)));
        Ok(Self { manager, number: new_manager(), maker: Maker::this_process()?, user_mode_only })
    }

    /// Whether only faults of the program's own code are served: a system call that is handed an
    /// array fails with EFAULT where a page of it is swapped out and not pinned.
    #[getter]
    fn user_mode_only(&self) -> bool {
        self.user_mode_only
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Memory of `nbytes` (a number or text like "2G") that reads as zero: a `Region`, for what
    /// takes the buffer protocol. It takes nothing of the budget until it is written.
    fn region(&self, py: Python<'_>, nbytes: Size) -> PyResult<Py<Region>> {
        let manager = self.get()?;
        let region = py.detach(move || manager.region(nbytes.0).create()).map_err(errors::region)?;
        Region::create(py, region, nbytes.0.as_usize(), self.number)
    }

    /// The file at `path` as memory: a `File`. It has `nbytes` from `offset` on, a multiple of 4
    /// KiB; without them all up to the file's end. With `buffered` it goes through the kernel's
    /// cache, which is in no budget, for file systems without direct I/O.
    #[pyo3(signature = (path, *, writable = false, buffered = false, offset = 0, nbytes = None))]
    fn file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        writable: bool,
        buffered: bool,
        offset: u64,
        nbytes: Option<u64>,
    ) -> PyResult<Py<File>> {
        let manager = self.get()?;
        let builder = part_of(manager.map_file(path.clone()), offset, nbytes);
        let map = move || builder.writable(writable).buffered(buffered).map();
        let file = py.detach(map).map_err(errors::map_file)?;
        File::create(py, file, path, writable, self.number)
    }

    /// The file at `path`, or such a part of it, as private memory: a `Region` with its content, in
    /// which writes stay. It is as long as that, rounded up, with zeroes behind its end.
    #[pyo3(signature = (path, *, buffered = false, offset = 0, nbytes = None))]
    fn private_file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        buffered: bool,
        offset: u64,
        nbytes: Option<u64>,
    ) -> PyResult<Py<Region>> {
        let manager = self.get()?;
        let builder = part_of(manager.map_file(path), offset, nbytes);
        let map = move || builder.buffered(buffered).map_private();
        let region = py.detach(map).map_err(errors::map_file)?;
        let bytes = region.len();
        Region::create(py, region, bytes, self.number)
    }

    /// A `Region` with the content of the image at `path`, which `Region.snapshot` or `pagoda image
    /// pack` made. Only its index is read now; pages come when they are touched, and those of a
    /// recorded working set ahead of that, unless `prefetch` is false.
    #[pyo3(signature = (path, *, prefetch = true))]
    fn restore_region(&self, py: Python<'_>, path: PathBuf, prefetch: bool) -> PyResult<Py<Region>> {
        let manager = self.get()?;
        let restore = move || manager.restore(path).prefetch(prefetch).create();
        let region = py.detach(restore).map_err(errors::restore)?;
        let bytes = region.len();
        Region::create(py, region, bytes, self.number)
    }

    /// All figures, by the names of the book's page "Reference: the keys of --stats": numbers of
    /// bytes where the name ends in `_bytes`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let manager = self.get()?;
        let stats = py.detach(move || manager.stats());
        let dict = PyDict::new(py);
        for (name, value) in stats.fields() {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// Changes the budget (a number of bytes or text like "2G"), up to twice the first one. Returns
    /// at once; a smaller one is reached in the background.
    fn set_budget(&self, py: Python<'_>, budget: Size) -> PyResult<()> {
        let manager = self.get()?;
        let set = py.detach(move || manager.set_budget(budget.0));
        set.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Closes all its regions and files, which are flushed, and ends its threads. Raises
    /// `BufferError` as long as arrays or other views of them are alive; nothing is closed then.
    /// Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let own = || members().into_iter().filter(|member| member.manager() == self.number);
        own().try_for_each(|member| member.expect_no_views())?;
        // All are closed. The first error is returned.
        let closed = own().map(|member| member.close(py)).fold(Ok(()), PyResult::and);
        let manager = self.take();
        py.detach(move || drop(manager));
        closed
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Closes it. If an error leaves the block, its frames may hold arrays: then a refused close
    /// does not hide the error, and the manager stays until the arrays are gone.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let closed = self.close(py);
        if kind.is_some() { Ok(()) } else { closed }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Ok(manager) = self.get() else { return "<pagoda.Manager, closed>".to_owned() };
        let stats = py.detach(move || manager.stats());
        let [budget, resident, stored, takes, spilled] = [
            stats.budget_bytes,
            stats.resident_bytes,
            stats.stored_bytes,
            stats.store_memory_bytes,
            stats.spilled_bytes,
        ]
        .map(Bytes::new);
        let faults = stats.faults;
        format!(
            "<pagoda.Manager of {budget}: {resident} resident, {stored} stored in {takes} and {spilled} of file, {faults} faults>"
        )
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        free_without_gil(self.take());
    }
}

/// A part of a file; without a length all up to its end.
fn part_of(file: FileRegionBuilder, offset: u64, nbytes: Option<u64>) -> FileRegionBuilder {
    let file = file.offset(Bytes::new(offset));
    nbytes.into_iter().fold(file, |file, nbytes| file.length(Bytes::new(nbytes)))
}

/// Warns that the budget is passed. The library calls it on a thread of its own.
fn warn(exhausted: Exhausted) {
    let message = format!(
        "pagoda: the budget is passed by {}: {} (or name a spill_to)",
        exhausted.passed, exhausted.reason
    );
    let message = CString::new(message).unwrap_or_default();
    Python::try_attach(|py| {
        let category = py.get_type::<PyRuntimeWarning>();
        if let Err(error) = PyErr::warn(py, &category, &message, 0) {
            error.write_unraisable(py, None);
        }
    });
}
