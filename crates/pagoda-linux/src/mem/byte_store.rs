//! A large range of memory to put bytes in and get them back, by offset.
//!
//! Reserved at once, backed page by page as it is used, given back in pieces. A fork's child
//! doesn't get it, nor does a core dump. All access copies, by atomic words: two threads that touch
//! the same bytes at once get some mixture of old and new, never undefined behaviour. It never
//! hands out a reference into the mapping, and never decides what lies where.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mem::own_memory::OwnMapping;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

/// Huge pages need this alignment.
const ALIGN: usize = 2 << 20;

/// What the processor loads at once.
const CACHE_LINE: usize = 64;

/// Offsets of reads and writes are multiples of this.
pub const WORD: usize = size_of::<AtomicU64>();

/// The page size behind a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages where the kernel has them: for callers that populate and discard 2 MiB at a time.
    Huge,
    /// OS pages only: nothing beyond the touched pages is ever backed.
    Small,
}

/// The reserved range. Dropping it gives everything back.
pub struct ByteStore {
    mapping: OwnMapping,
}

impl ByteStore {
    /// Reserves `len` bytes (rounded up to 2 MiB) of address space, no memory. They read as zero.
    ///
    /// # Errors
    /// Those of `mmap`: mostly a limit on address space (`ulimit -v`).
    pub fn reserve(len: usize, backing: Backing) -> io::Result<Self> {
        let too_long = || io::Error::from(Errno::NOMEM);
        let len = len.max(1).checked_next_multiple_of(ALIGN).ok_or_else(too_long)?;
        let store = Self { mapping: OwnMapping::reserve(len, ALIGN, backing == Backing::Huge)? };
        store.advise(0..len, Advice::LinuxDontDump)?;
        Ok(store)
    }

    /// Bytes that can be used.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapping.range().len()
    }
    /// Never: there is at least one word.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Its addresses, which must never be managed.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.at()..self.at() + self.len()
    }

    fn at(&self) -> usize {
        self.mapping.range().start()
    }

    /// The words of `offset..offset + len`, `len` rounded up to whole words.
    fn words(&self, offset: usize, len: usize) -> &[AtomicU64] {
        let words = len.div_ceil(WORD);
        assert!(
            offset.is_multiple_of(WORD) && words * WORD <= self.len() && offset <= self.len() - words * WORD,
            "{len} bytes at {offset} are not whole words within {}",
            self.len()
        );
        // SAFETY: the range was checked to lie within the mapping, which is ours until drop and
        // outlives the borrow of self; it is aligned, any bits are a valid AtomicU64, and this
        // mapping is only ever accessed as such words (or discarded, which the kernel makes look
        // like stores of zero).
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.at() + offset), words) }
    }

    /// Begins to load bytes into the cache, where the processor is known to be able to.
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at).
    pub fn prefetch(&self, offset: usize, len: usize) {
        for line in self.words(offset, len).chunks(CACHE_LINE / WORD) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch neither faults nor changes anything, and the address is that of
            // a word of ours.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    }

    /// Copies `into.len()` bytes out. Touching memory that was never written may fault in zeroes.
    ///
    /// # Panics
    /// If `offset` is not a multiple of [`WORD`] or the end is out of range.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) {
        let words = self.words(offset, into.len());
        let mut chunks = into.chunks_exact_mut(WORD);
        for (chunk, word) in chunks.by_ref().zip(words) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let rest = chunks.into_remainder();
        if let Some(word) = words.last().filter(|_| !rest.is_empty()) {
            rest.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
        }
    }

    /// Copies `from` in. Whole words are written: up to 7 bytes behind it become zero.
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, from: &[u8]) {
        let words = self.words(offset, from.len());
        let mut chunks = from.chunks_exact(WORD);
        for (chunk, word) in chunks.by_ref().zip(words) {
            word.store(u64::from_ne_bytes(chunk.try_into().expect("a whole word")), Ordering::Relaxed);
        }
        let rest = chunks.remainder();
        if let Some(word) = words.last().filter(|_| !rest.is_empty()) {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }

    /// Copies within the store, in whole words.
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at).
    pub fn copy_within(&self, from: usize, to: usize, len: usize) {
        for (from, to) in self.words(from, len).iter().zip(self.words(to, len)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Puts memory behind a range now, so that writing there doesn't fault. Blocks while the kernel
    /// clears it. Content stays. On a kernel before 5.14 it does nothing, and writing faults.
    ///
    /// # Errors
    /// `ENOMEM` where there is no memory to be had; some of the range may be backed then.
    ///
    /// # Panics
    /// If the range is not of whole OS pages within the store.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        match self.advise(range, Advice::LinuxPopulateWrite) {
            Err(Errno::INVAL) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// Gives the memory of a range back to the kernel: it reads as zero from then on.
    ///
    /// # Errors
    /// Those of `madvise` (`EINVAL` where the memory was locked).
    ///
    /// # Panics
    /// As [`populate`](Self::populate).
    pub fn discard(&self, range: Range<usize>) -> io::Result<()> {
        Ok(self.advise(range, Advice::LinuxDontNeed)?)
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        let whole = range.start.is_multiple_of(4096) && range.end.is_multiple_of(4096);
        assert!(whole && range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        let at = std::ptr::with_exposed_provenance_mut(self.at() + range.start);
        loop {
            // SAFETY: the range was checked to lie within our mapping; populating changes no
            // content, and discarding looks like a store of zero to all readers, which always read
            // atomic words.
            match unsafe { madvise(at, range.len(), advice) } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_until_they_are_discarded() {
        let store = ByteStore::reserve(3 << 20, Backing::Small).expect("address space");
        assert_eq!((store.len(), store.range().len()), (4 << 20, 4 << 20));
        store.populate(0..4096).expect("a page");
        let text = b"seventeen bytes!!";
        store.write_at(4096 - 8, text);
        store.copy_within(4096 - 8, 64, text.len());
        for offset in [4096 - 8, 64] {
            let mut back = [0; 17];
            store.read_at(offset, &mut back);
            assert_eq!(&back, text);
        }
        store.discard(0..8192).expect("discard");
        let mut back = [1; 17];
        store.read_at(64, &mut back);
        assert_eq!(back, [0; 17]);
    }

    #[test]
    #[should_panic(expected = "whole words within")]
    fn an_access_past_the_end_is_refused() {
        let store = ByteStore::reserve(1, Backing::Small).expect("address space");
        store.write_at(store.len() - 8, &[1; 9]);
    }

    #[test]
    fn address_space_that_is_not_there_is_an_error() {
        assert!(ByteStore::reserve(1 << 60, Backing::Huge).is_err());
        assert!(ByteStore::reserve(usize::MAX, Backing::Huge).is_err());
    }
}
