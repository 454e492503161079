//! The memory of a region or a file, which its Python objects share until it is closed.
//!
//! One list has weak references to all memory of the process. By it a manager that is closed finds
//! its own memory, a process that ends finds the files to write, and a forked child finds the
//! addresses that are not mapped in it. This module must never close memory that has views.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;

use crate::errors::closed;
use crate::free_without_gil;
use crate::views::{Buffer, Views};

/// Memory of the library: a region or a file.
pub(crate) trait Backing: Send + Sync + 'static {
    /// Its name in messages.
    const NAME: &'static str;

    /// Its first byte, valid as long as it lives.
    fn address(&self) -> *mut u8;

    /// Returns when all earlier writes are on stable storage. May block.
    fn flush(&self) -> PyResult<()>;
}

/// The number of the next manager. Memory has the number of its manager.
static MANAGERS: AtomicU64 = AtomicU64::new(0);

/// A number for a manager.
pub(crate) fn new_manager() -> u64 {
    MANAGERS.fetch_add(1, Ordering::Relaxed)
}

/// The memory of a region or a file.
pub(crate) struct Memory<T: Backing> {
    /// Until it is closed.
    backing: Mutex<Option<Arc<T>>>,
    views: Views,
    pub(crate) bytes: usize,
    is_read_only: bool,
    manager: u64,
}

impl<T: Backing> Memory<T> {
    /// The memory of a backing of a manager. Python may use its first `bytes`.
    pub(crate) fn new(backing: T, bytes: usize, is_read_only: bool, manager: u64) -> PyResult<Arc<Self>> {
        let views = Views::none()?;
        let backing = Mutex::new(Some(Arc::new(backing)));
        let memory = Arc::new(Self { backing, views, bytes, is_read_only, manager });
        let member: Arc<dyn Member> = memory.clone();
        enter(Arc::downgrade(&member));
        Ok(memory)
    }

    /// The backing. An error if it is closed, and in a forked child.
    pub(crate) fn get(&self) -> PyResult<Arc<T>> {
        self.views.check_process()?;
        self.backing().ok_or_else(|| closed(T::NAME))
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

/// [`Memory`] of either type of backing.
pub(crate) trait Member: Send + Sync {
    /// The number of its manager.
    fn manager(&self) -> u64;
    /// Its address and length in bytes. None once it is closed.
    fn place(&self) -> Option<(usize, usize)>;
    /// Its length for Python.
    fn bytes(&self) -> usize;
    fn is_closed(&self) -> bool;
    fn views(&self) -> &Views;
    /// All of it, for a view. Valid for reads until it is closed, and for writes unless it is a
    /// file that is only read. An error if it is closed, and in a forked child.
    fn buffer(&self) -> PyResult<Buffer>;
    /// An error that says how many views it has, if there are any.
    fn expect_no_views(&self) -> PyResult<()>;
    /// Returns when all earlier writes are on stable storage. Releases the interpreter's lock.
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

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_closed(&self) -> bool {
        self.backing().is_none()
    }

    fn views(&self) -> &Views {
        &self.views
    }

    fn buffer(&self) -> PyResult<Buffer> {
        let address = self.get()?.address();
        Ok(Buffer { address, bytes: self.bytes, is_read_only: self.is_read_only })
    }

    fn expect_no_views(&self) -> PyResult<()> {
        self.views.expect_none(T::NAME)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let backing = self.get()?;
        py.detach(move || backing.flush())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.expect_no_views()?;
        let Some(backing) = self.take() else { return Ok(()) };
        // A forked child has nothing to flush.
        let is_here = self.views.check_process().is_ok();
        // Freeing it may block as well, so that it moves into the call without the lock.
        py.detach(move || if is_here { backing.flush() } else { Ok(()) })
    }
}

/// All memory of this process. Locked for a moment, with the interpreter's lock held.
static MEMBERS: Mutex<Vec<Weak<dyn Member>>> = Mutex::new(Vec::new());

/// Puts memory on the list. Before the list grows, memory that is gone is taken off.
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

/// Takes all memory off the list, in a forked child: it is the parent's.
pub(crate) fn forget_members() {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
