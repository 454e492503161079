//! Memory for arrays, as Python sees it, and pinned parts of it.
//!
//! This module must never release the interpreter's lock with a lock of its own held.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pagoda::{Pinned, SnapshotError};
use pagoda_image::PackOptions;
use pyo3::exceptions::PyIndexError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use self_cell::self_cell;

use crate::errors;
use crate::exporter::Exporter;
use crate::free_without_gil;
use crate::memory::{Backing, Member, Memory};

impl Backing for pagoda::Region {
    const NAME: &'static str = "region";

    fn address(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn flush(&self) -> PyResult<()> {
        Ok(())
    }
}

/// Memory of a manager, which supports the buffer protocol. Made by `Manager.region`; the arrays
/// of `Manager.empty` and its like each have one of their own (`pagoda.region_of`).
///
/// It is freed when it and all its views are gone, or by `close`. Leaving its `with` block closes
/// it.
#[pyclass(frozen, extends = Exporter, module = "pagoda")]
pub(crate) struct Region {
    memory: Arc<Memory<pagoda::Region>>,
}

impl Region {
    /// The Python object of a region, of which `bytes` may be used.
    pub(crate) fn create(
        py: Python<'_>,
        region: pagoda::Region,
        bytes: usize,
        manager: u64,
    ) -> PyResult<Py<Self>> {
        let memory = Memory::new(region, bytes, false, manager)?;
        Exporter::derive(py, memory.clone(), Self { memory })
    }

    /// The length of the part from `offset` on: `length`, or all up to the end.
    fn part(&self, offset: usize, length: Option<usize>) -> PyResult<usize> {
        let left = self.memory.bytes.checked_sub(offset).filter(|left| *left > 0);
        let length =
            left.and_then(|left| length.map_or(Some(left), |length| (length <= left).then_some(length)));
        length.filter(|length| *length > 0).ok_or_else(|| {
            let bytes = self.memory.bytes;
            PyIndexError::new_err(format!("a part is not empty, and ends within the region's {bytes} bytes"))
        })
    }
}

#[pymethods]
impl Region {
    /// Where its content is, in bytes: `resident` (an access waits for nothing), `staged` (evicted
    /// with its frame intact), `compressed`, `spilled` (both before compression) and `empty` (never
    /// written; takes no memory). Their sum is the length, rounded up.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let region = self.memory.get()?;
        let usage = py.detach(move || region.usage());
        let dict = PyDict::new(py);
        let parts = [
            ("resident", usage.resident),
            ("staged", usage.staged),
            ("compressed", usage.compressed),
            ("spilled", usage.spilled),
            ("empty", usage.empty),
        ];
        for (name, bytes) in parts {
            dict.set_item(name, bytes.get())?;
        }
        Ok(dict)
    }

    /// Swaps a part in, up to a quarter of the budget, and returns how many bytes were read back.
    /// Releases the GIL, so that other threads of Python run meanwhile.
    #[pyo3(signature = (offset = 0, length = None))]
    fn prefetch(&self, py: Python<'_>, offset: usize, length: Option<usize>) -> PyResult<usize> {
        let (region, length) = (self.memory.get()?, self.part(offset, length)?);
        py.detach(move || region.prefetch(offset, length)).map_err(errors::access)
    }

    /// Advises that a part is needed soon: a thread of the manager prefetches it. Returns at once.
    #[pyo3(signature = (offset = 0, length = None))]
    fn will_need(&self, py: Python<'_>, offset: usize, length: Option<usize>) -> PyResult<()> {
        let (region, length) = (self.memory.get()?, self.part(offset, length)?);
        py.detach(move || region.will_need(offset, length)).map_err(errors::access)
    }

    /// Stores a part, and gives its memory to other pages until it is touched again. Releases the
    /// GIL.
    #[pyo3(signature = (offset = 0, length = None))]
    fn page_out(&self, py: Python<'_>, offset: usize, length: Option<usize>) -> PyResult<()> {
        let (region, length) = (self.memory.get()?, self.part(offset, length)?);
        py.detach(move || region.page_out(offset, length)).map_err(errors::page_out)
    }

    /// Saves it to the image at `path`, which it replaces when all is on disk; its key is in a file
    /// beside it, `path` with `.key`. Other threads of Python run meanwhile, but for a last moment:
    /// the content is that of this moment. Returns how long that took (`pause_seconds`) and the
    /// image's `file_bytes`. A native thread that writes without the GIL at that moment is an
    /// error, and the old image stays.
    ///
    /// With a `base`, an image in the same directory with its key beside it, only blocks that
    /// differ from it take room. The new image has the same key.
    #[pyo3(signature = (path, base = None))]
    fn snapshot<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        base: Option<PathBuf>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let region = self.memory.get()?;
        let saved = py.detach(move || {
            let options = PackOptions::beside(&path, base.as_deref()).map_err(SnapshotError::Image)?;
            let gil = Cell::new(None);
            let stop = || {
                // SAFETY: this thread has given the interpreter's lock up, and takes it again: no
                // thread of Python writes as long as it has it.
                gil.set(Some(unsafe { ffi::PyGILState_Ensure() }));
            };
            let go_on = || {
                // SAFETY: of the call above, in the same thread.
                gil.take().into_iter().for_each(|state| unsafe { ffi::PyGILState_Release(state) });
            };
            region.snapshot(path, options, stop, go_on)
        });
        let saved = saved.map_err(errors::snapshot)?;
        let dict = PyDict::new(py);
        dict.set_item("pause_seconds", saved.pause.as_secs_f64())?;
        dict.set_item("file_bytes", saved.image.file_bytes)?;
        Ok(dict)
    }

    /// Has writes tracked from the end of a save on, or not any more, which is how a region begins.
    /// A save whose `base` is the image of the last one then reads and packs only the pages written
    /// or evicted since. The first write to a page after a save costs a fault in the kernel. A save
    /// that fails ends it: the next save reads all. Takes effect with the next save.
    #[pyo3(signature = (yes = true))]
    fn track_saves(&self, yes: bool) -> PyResult<()> {
        self.memory.get()?.track_saves(yes);
        Ok(())
    }

    /// Records what was read of the image that it was restored from, in order, for the next
    /// `Manager.restore` to read ahead.
    fn record_working_set(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.memory.get()?;
        py.detach(move || region.record_working_set()).map_err(errors::restore)
    }

    /// Swaps a part in and keeps it in memory for a `with` block, in which a system call may use it
    /// in every mode. All pins of a manager together take a quarter of its budget at most. Releases
    /// the GIL.
    #[pyo3(signature = (offset = 0, length = None))]
    fn pin(&self, py: Python<'_>, offset: usize, length: Option<usize>) -> PyResult<Pin> {
        let (region, length) = (self.memory.get()?, self.part(offset, length)?);
        let held = py.detach(move || Held::try_new(region, |region| region.pin(offset, length)));
        let held = Mutex::new(Some(held.map_err(errors::pin)?));
        self.memory.views().enter();
        Ok(Pin { held, memory: self.memory.clone() })
    }

    fn __repr__(&self) -> String {
        let bytes = pagoda::Bytes::new(self.memory.bytes as u64);
        format!("<pagoda.Region of {bytes}{}>", if self.memory.is_closed() { ", closed" } else { "" })
    }
}

self_cell!(
    /// A pin with its region.
    struct Held {
        owner: Arc<pagoda::Region>,
        #[covariant]
        dependent: Pinned,
    }
);

/// A pinned part of a region, until its `with` block ends. Made by `Region.pin` and
/// `pagoda.pinned`.
#[pyclass(frozen, module = "pagoda")]
pub(crate) struct Pin {
    held: Mutex<Option<Held>>,
    memory: Arc<Memory<pagoda::Region>>,
}

impl Pin {
    fn take(&self) -> Option<Held> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.memory.views().leave();
        if self.memory.views().check_process().is_err() {
            // A forked child: the pin is the parent's, and dropping it here would touch the engine.
            std::mem::forget(held);
            return None;
        }
        Some(held)
    }
}

#[pymethods]
impl Pin {
    /// Ends the pin. Doing so twice does nothing.
    fn release(&self, py: Python<'_>) {
        let held = self.take();
        py.detach(move || drop(held));
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.release(py);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        free_without_gil(self.take());
    }
}
