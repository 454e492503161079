//! A piece of memory of a manager, behind the Python objects that show it, until it is closed.
//!
//! All pieces of the process are in one list, weakly. By it a manager that is closed finds its own,
//! a process that ends finds the files to write, and a forked child the addresses that it has not.
//! This module must never close memory that has views.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::{PyClass, ffi};

use crate::errors::closed;
use crate::free_without_gil;
use crate::views::{Buffer, Views};

/// Memory of the library: a region or a file.
pub(crate) trait Backing: Send + Sync + 'static {
    /// Its name for people.
    const NAME: &'static str;

    /// Its first byte, valid as long as it lives.
    fn address(&self) -> *mut u8;

    /// Makes safe what was written. May block.
    fn flush(&self) -> PyResult<()>;
}

/// The numbers of managers, to tell their memory apart.
static MANAGERS: AtomicU64 = AtomicU64::new(0);

/// A number for a manager.
pub(crate) fn new_manager() -> u64 {
    MANAGERS.fetch_add(1, Ordering::Relaxed)
}

/// A piece of memory, shared by what shows it.
pub(crate) struct Memory<T: Backing> {
    /// Until it is closed.
    backing: Mutex<Option<Arc<T>>>,
    pub(crate) views: Views,
    pub(crate) bytes: usize,
    is_read_only: bool,
    manager: u64,
}

impl<T: Backing> Memory<T> {
    /// Of a manager's, with `bytes` that may be used.
    pub(crate) fn new(backing: T, bytes: usize, is_read_only: bool, manager: u64) -> PyResult<Arc<Self>> {
        let views = Views::none()?;
        let backing = Mutex::new(Some(Arc::new(backing)));
        let memory = Arc::new(Self { backing, views, bytes, is_read_only, manager });
        let member: Arc<dyn Member> = memory.clone();
        enter(Arc::downgrade(&member));
        Ok(memory)
    }

    /// The library's own, unless it is closed.
    pub(crate) fn get(&self) -> PyResult<Arc<T>> {
        self.views.check_process()?;
        self.backing().ok_or_else(|| closed(T::NAME))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.backing().is_none()
    }

    /// All of it, for a view. The library's memory is readable, and writable unless it is of a file
    /// that is only read, until it is closed.
    pub(crate) fn buffer(&self) -> PyResult<Buffer> {
        let address = self.get()?.address();
        Ok(Buffer { address, bytes: self.bytes, is_read_only: self.is_read_only })
    }

    /// Makes a buffer of all of it, for its Python object `shown`.
    ///
    /// # Safety
    /// Python calls `bf_getbuffer` with this buffer. `shown` keeps this memory.
    pub(crate) unsafe fn fill<P: PyClass>(
        &self,
        shown: &Bound<'_, P>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = self.buffer()?;
        // SAFETY: the caller vouches for the buffer. The memory is valid until `close`, which is
        // refused as long as there are views, or until `shown` is gone.
        unsafe { crate::views::fill(shown, &self.views, &memory, buffer, flags) }
    }

    fn backing(&self) -> Option<Arc<T>> {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self) -> Option<Arc<T>> {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T: Backing> Drop for Memory<T> {
    fn drop(&mut self) {
        free_without_gil(self.take());
    }
}

/// A piece of memory of any kind.
pub(crate) trait Member: Send + Sync {
    /// The number of its manager.
    fn manager(&self) -> u64;
    /// Where it is, with its length in bytes. None once it is closed.
    fn place(&self) -> Option<(usize, usize)>;
    fn views(&self) -> &Views;
    /// An error that says how many views it has, if there are any.
    fn expect_no_views(&self) -> PyResult<()>;
    /// Makes safe what was written, without the interpreter's lock.
    fn flush(&self, py: Python<'_>) -> PyResult<()>;
    /// Flushes and frees it, unless it has views. It is closed whatever comes of the flush.
    fn close(&self, py: Python<'_>) -> PyResult<()>;
}

impl<T: Backing> Member for Memory<T> {
    fn manager(&self) -> u64 {
        self.manager
    }

    fn place(&self) -> Option<(usize, usize)> {
        self.backing().map(|backing| (backing.address().addr(), self.bytes))
    }

    fn views(&self) -> &Views {
        &self.views
    }

    fn expect_no_views(&self) -> PyResult<()> {
        self.views.expect_none(T::NAME)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let backing = self.get()?;
        py.detach(|| backing.flush())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.expect_no_views()?;
        let Some(backing) = self.take() else { return Ok(()) };
        // A forked child has nothing to flush.
        let is_here = self.views.check_process().is_ok();
        py.detach(|| if is_here { backing.flush() } else { Ok(()) })
    }
}

/// All memory of this process. Locked for a moment, with the interpreter's lock held.
static MEMBERS: Mutex<Vec<Weak<dyn Member>>> = Mutex::new(Vec::new());

/// As many as there are pieces of memory: those that are gone leave when the list is full.
fn enter(member: Weak<dyn Member>) {
    let mut members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    if members.len() == members.capacity() {
        members.retain(|member| member.strong_count() > 0);
    }
    members.push(member);
}

/// All memory of this process.
pub(crate) fn members() -> Vec<Arc<dyn Member>> {
    let members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    members.iter().filter_map(Weak::upgrade).collect()
}

/// Takes all memory off the list, which is of the process that a child was forked from.
pub(crate) fn forget_members() {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
