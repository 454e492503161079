//! Arrays of atomic words that cost nothing where they were never written.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// `len` zero words. Large arrays come from the allocator's zeroed memory: only the pages that are written are taken.
#[must_use]
pub fn zeroed_words(len: usize) -> Arc<[AtomicU64]> {
    // SAFETY: all zeroes is a valid AtomicU64.
    unsafe { Arc::new_zeroed_slice(len).assume_init() }
}
