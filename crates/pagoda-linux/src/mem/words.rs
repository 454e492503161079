//! Arrays of atomic words that cost nothing where they were never written.

use std::alloc::{Layout, alloc_zeroed};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// `len` zero words. Large arrays come from the allocator's zeroed memory: only the pages that are
/// written are taken.
#[must_use]
pub fn zeroed_words(len: usize) -> Arc<[AtomicU64]> {
    // SAFETY: all zeroes is a valid AtomicU64.
    unsafe { Arc::new_zeroed_slice(len).assume_init() }
}

/// The same, for one owner. None if there is no memory for them: where the kernel limits how much
/// is asked for at once, words that are never written count as well.
#[must_use]
pub fn try_zeroed_words(len: usize) -> Option<Box<[AtomicU64]>> {
    if len == 0 {
        return Some(Box::default());
    }
    let layout = Layout::array::<AtomicU64>(len).ok()?;
    // SAFETY: the layout has a size, for there is a word.
    let words = unsafe { alloc_zeroed(layout) }.cast::<AtomicU64>();
    if words.is_null() {
        return None;
    }
    // SAFETY: the allocation is that of a boxed slice of `len` words, from the allocator that frees
    // it, and it has no other owner. All zeroes is a valid AtomicU64.
    Some(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(words, len)) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_zero_and_an_impossible_request_is_refused() {
        for len in [0, 1, 1 << 20] {
            let words = try_zeroed_words(len).expect("8 MiB at most");
            assert_eq!(words.len(), len);
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
        // More than an address has bits for, and more than all addresses.
        assert!(try_zeroed_words(1 << 56).is_none());
        assert!(try_zeroed_words(usize::MAX).is_none());
    }
}
