//! The bytes of managed memory, for callers that are not its only users: bounds-checked copies, and
//! discards.
//!
//! The mapping is a region's own or another owner's. This module must never show the memory as a
//! reference: others may write it at the same time.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{Advice, madvise};

use crate::mem::range::PageRange;

/// The bytes of a region.
#[derive(Debug)]
pub struct RegionBytes {
    range: PageRange,
}

impl RegionBytes {
    /// The bytes of `range`.
    ///
    /// # Safety
    /// As long as the value lives:
    /// - All of it is private anonymous memory, or shared memory that this value does not discard.
    ///   Parts that its owner has closed, or that are not writable, are not asked for, or an access
    ///   there ends the process.
    /// - Other users of the address vouch for their accesses: they use no reference while a call
    ///   may write the same bytes, and no exclusive one while a call may read them.
    pub(crate) unsafe fn new(range: PageRange) -> Self {
        Self { range }
    }

    /// Where it is.
    #[must_use]
    pub fn range(&self) -> PageRange {
        self.range
    }

    pub(crate) fn check(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.range.len()),
            "{len} bytes at {offset} lie beyond the region's end"
        );
        std::ptr::with_exposed_provenance_mut(self.range.start() + offset)
    }

    /// Copies from the region. Waits for pages that are swapped out. Others may write meanwhile:
    /// each word of 8 bytes has its value of one moment. Panics if it reaches beyond the end.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) {
        let from = self.check(offset, into.len());
        let head = offset.next_multiple_of(8).min(offset + into.len()) - offset;
        let (head, rest) = into.split_at_mut(head);
        let (words, tail) = rest.as_chunks_mut::<8>();
        let bytes = |at: usize, into: &mut [u8]| {
            // SAFETY: `check` saw that all lies in this mapping, readable and writable as long as
            // `self` lives. Writers through `&self` write atomically, `RegionMemory::write_at`
            // excludes this call, and for access through the region's address its unsafe user
            // vouches.
            let from = unsafe { std::slice::from_raw_parts(from.add(at).cast::<AtomicU8>(), into.len()) };
            into.iter_mut().zip(from).for_each(|(into, from)| *into = from.load(Ordering::Relaxed));
        };
        bytes(0, head);
        // Without a whole word there need not be an aligned address.
        if !words.is_empty() {
            // SAFETY: as above; the mapping begins at a page, so that the first whole word is
            // aligned.
            let from =
                unsafe { std::slice::from_raw_parts(from.add(head.len()).cast::<AtomicU64>(), words.len()) };
            for (into, from) in words.iter_mut().zip(from) {
                *into = from.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        bytes(head.len() + words.len() * 8, tail);
    }

    /// Copies from the region by the processor's own copying, where that is fast: faster than word
    /// by word. Waits for pages that are swapped out. Others may write meanwhile: then any of its
    /// bytes is old or new. For callers that learn of every write and read again. Panics if it
    /// reaches beyond the end.
    pub fn copy_at(&self, offset: usize, into: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("ermsb") {
            let from = self.check(offset, into.len());
            // SAFETY: `check` saw that all lies in this mapping, readable as long as `self` lives;
            // `into` is borrowed exclusively, and the direction is upwards, as it is between
            // instructions of Rust. This one instruction reads bytes that others may write
            // meanwhile, and no access of the language does; a fault in it is served, and the
            // instruction continues where it was.
            unsafe {
                std::arch::asm!(
                    "rep movsb",
                    inout("rcx") into.len() => _,
                    inout("rdi") into.as_mut_ptr() => _,
                    inout("rsi") from => _,
                    options(nostack, preserves_flags)
                );
            }
            return;
        }
        self.read_at(offset, into);
    }

    /// Copies whole words into the region, each in one step, so that threads may do it at the same
    /// time. Waits for pages that are swapped out. Panics if it reaches beyond the end, or `offset`
    /// or the length is no multiple of 8 bytes.
    pub fn write_words(&self, offset: usize, from: &[u8]) {
        let (words, rest) = from.as_chunks::<8>();
        assert!(
            offset.is_multiple_of(8) && rest.is_empty(),
            "{} bytes at {offset} are not whole words",
            from.len()
        );
        let to = self.check(offset, from.len()).cast::<AtomicU64>();
        // SAFETY: the target lies in this mapping, readable and writable as long as `self` lives,
        // and the mapping begins at a page, so that the words are aligned. Others that write here
        // at the same time by this call do so by atomic words; for access through the region's
        // address its unsafe user vouches.
        let to = unsafe { std::slice::from_raw_parts(to, words.len()) };
        for (to, from) in to.iter().zip(words) {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }

    /// Discards `offset..offset + len`, whole OS pages: it reads zero afterwards. Others may use
    /// the region: their writes to the range meanwhile may be lost or not. Panics if it reaches
    /// beyond the end.
    pub fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        let at = self.check(offset, len);
        // SAFETY: the range lies in this mapping. A discard is to others like zeroes that are
        // written, page by page.
        unsafe { madvise(at.cast(), len, Advice::LinuxDontNeed)? };
        Ok(())
    }
}
