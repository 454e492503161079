//! The limits of regions, and a lower bound of the bytes that each region holds.
//!
//! An admitted touch counts until its entry shows it. This module must never refuse a page that
//! holds anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::lock::Lock;

/// The limit of one region.
pub(crate) struct Limit {
    pub(crate) range: PageRange,
    pub(crate) most_bytes: u64,
    /// A lower bound of the held bytes.
    pub(crate) held_bytes: AtomicU64,
    /// Of touches that are being served: their entries don't say it yet.
    pub(crate) touched_bytes: AtomicU64,
    /// A page was refused by its address, and stays so until it is discarded.
    pub(crate) has_refused: AtomicBool,
}

/// The limits of all regions that have one.
pub(crate) struct Limits {
    any: AtomicBool,
    list: Lock<Vec<Arc<Limit>>>,
}

impl Limits {
    pub(crate) const fn none() -> Self {
        Self { any: AtomicBool::new(false), list: Lock::new(Vec::new()) }
    }

    pub(crate) fn enter(&self, range: PageRange, most: Bytes) -> Arc<Limit> {
        let limit = Arc::new(Limit {
            range,
            most_bytes: most.get(),
            held_bytes: AtomicU64::new(0),
            touched_bytes: AtomicU64::new(0),
            has_refused: AtomicBool::new(false),
        });
        self.list.lock().push(Arc::clone(&limit));
        self.any.store(true, Ordering::Release);
        limit
    }

    /// The region is closed.
    pub(crate) fn leave(&self, limit: &Arc<Limit>) {
        self.list.lock().retain(|known| !Arc::ptr_eq(known, limit));
    }

    /// That of the region at `address`, if it has one.
    pub(crate) fn at(&self, address: usize) -> Option<Arc<Limit>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.list.lock().iter().find(|limit| limit.range.contains(address)).cloned()
    }
}

/// A first touch that was admitted, and that its entry does not show yet.
pub(crate) struct Touch(pub(crate) Option<(Arc<Limit>, u64)>);

impl Drop for Touch {
    fn drop(&mut self) {
        if let Some((limit, bytes)) = &self.0 {
            limit.touched_bytes.fetch_sub(*bytes, Ordering::SeqCst);
        }
    }
}
