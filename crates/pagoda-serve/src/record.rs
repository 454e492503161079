//! The part of a guest that outlives a handler: the pages that it has discarded, the messages that
//! a handler had read and not yet applied, and its counts.
//!
//! It is a piece of memory that the supervisor makes and each handler maps. The protocol that keeps
//! a discarded page from coming back:
//!
//! 1. The kernel writes messages straight into the record (`room`), so they are there though the
//!    handler is killed right after the read.
//! 2. A discard sets its bits in `removed`, and only then its message is erased.
//! 3. A new handler applies the messages that it finds before it fills anything.
//!
//! Bits of `removed` are never taken back: a page that was discarded is never the image's again.
//! `filled` is a hint that saves calls. It must never be believed when a thread waits for a page.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::page::OS_PAGE;
use pagoda_core::time::latency::{BUCKETS, index_of};
use pagoda_linux::io::shared_file::{NamelessWords, SharedWords};
use pagoda_linux::uffd::foreign::ROOM_WORDS;

/// The counts of a guest. The words lie at the start of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// When its connection was accepted, in ns of the monotonic clock.
    AcceptedNs,
    /// From there to its first page, in ns.
    FirstPageNs,
    /// The process that connected.
    Process,
    /// Bytes of its regions.
    MemoryBytes,
    /// Handlers that have served it.
    Handlers,
    /// Faults that were answered.
    Faults,
    /// Pages that were filled with content.
    FilledPages,
    /// Pages that were filled with zeroes.
    ZeroPages,
    /// Of these, pages that no fault had asked for when they were filled.
    PrefetchedPages,
    /// Pages that it has discarded.
    RemovedPages,
    /// Faults on pages that were there already.
    Stale,
    /// Fills that the kernel put off: a discard was unread.
    PutOff,
    /// Pages that could not be read, and were refused to it.
    RefusedPages,
    /// From the handler's first look to the end of the working set, in ns; 0 before.
    PrefetchNs,
    /// 1 once it has all of its memory, and needs no handler.
    Independent,
}

const COUNTS: usize = 16;
const LATENCIES: usize = COUNTS;
const ROOM: usize = LATENCIES + BUCKETS;
const BITS: usize = ROOM + ROOM_WORDS;

fn words_for(pages: usize) -> usize {
    BITS + 2 * pages.div_ceil(64)
}

/// The OS pages of an image, from its length.
pub(crate) fn pages_of(len_bytes: u64) -> usize {
    usize::try_from(len_bytes.div_ceil(OS_PAGE as u64)).expect("an image fits into the address space")
}

/// The record as its maker holds it. Pages that are not written take no memory.
pub(crate) struct KeptRecord {
    words: NamelessWords,
}

impl KeptRecord {
    /// Makes one for an image of so many pages.
    pub(crate) fn create(pages: usize) -> io::Result<Self> {
        Ok(Self { words: NamelessWords::create(c"pagoda-guest", words_for(pages))? })
    }

    /// For the handler.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.words.descriptor()
    }

    pub(crate) fn set(&self, count: Count, value: u64) {
        self.words[count as usize].store(value, Ordering::Relaxed);
    }

    /// All counts, by [`Count`].
    pub(crate) fn counts(&self) -> [u64; COUNTS] {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }

    /// How long faults took, in the buckets of [`pagoda_core::time::latency`].
    pub(crate) fn latencies(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|at| self.words[LATENCIES + at].load(Ordering::Relaxed))
    }
}

/// The record as a handler holds it.
pub(crate) struct Record {
    words: SharedWords,
    pages: usize,
}

impl Record {
    /// Maps the record that a supervisor has made for an image of so many pages.
    pub(crate) fn open(file: OwnedFd, pages: usize) -> io::Result<Self> {
        Ok(Self { words: SharedWords::of_descriptor(file, words_for(pages))?, pages })
    }

    pub(crate) fn add(&self, count: Count, more: u64) {
        self.words[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn word(&self, count: Count) -> &AtomicU64 {
        &self.words[count as usize]
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.words[count as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, count: Count, value: u64) {
        self.words[count as usize].store(value, Ordering::Relaxed);
    }

    /// Notes that a fault took `ns`.
    pub(crate) fn took(&self, ns: u64) {
        self.words[LATENCIES + index_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Where messages are read to.
    pub(crate) fn room(&self) -> &[AtomicU64] {
        &self.words[ROOM..BITS]
    }

    /// Marks pages as discarded, for good.
    pub(crate) fn remove(&self, pages: Range<usize>) {
        self.for_words(pages, |word, bits| {
            self.words[word].fetch_or(bits, Ordering::SeqCst);
            self.words[word + self.half()].fetch_and(!bits, Ordering::SeqCst);
        });
    }

    pub(crate) fn is_removed(&self, page: usize) -> bool {
        let (word, bit) = self.bit(page);
        self.words[word].load(Ordering::SeqCst) & bit != 0
    }

    pub(crate) fn mark_filled(&self, pages: Range<usize>) {
        self.for_words(pages, |word, bits| {
            self.words[word + self.half()].fetch_or(bits, Ordering::Relaxed);
        });
    }

    pub(crate) fn is_filled(&self, page: usize) -> bool {
        let (word, bit) = self.bit(page);
        self.words[word + self.half()].load(Ordering::Relaxed) & bit != 0
    }

    /// Calls `f` with each word of the first half that has bits of `pages`, and these bits.
    fn for_words(&self, pages: Range<usize>, f: impl Fn(usize, u64)) {
        let mut at = pages.start;
        while at < pages.end {
            let (word, bit) = self.bit(at);
            let count = (64 - at % 64).min(pages.end - at);
            let ones = if count == 64 { u64::MAX } else { (1 << count) - 1 };
            self.bit(at + count - 1);
            f(word, ones * bit);
            at += count;
        }
    }

    fn half(&self) -> usize {
        self.pages.div_ceil(64)
    }

    fn bit(&self, page: usize) -> (usize, u64) {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        (BITS + page / 64, 1 << (page % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_handler_finds_what_the_first_one_has_noted() {
        let kept = KeptRecord::create(130).expect("memory");
        let open = || Record::open(kept.descriptor().try_clone_to_owned().expect("a copy"), 130);
        let first = open().expect("mapped");
        first.mark_filled(0..130);
        first.remove(63..66);
        first.add(Count::Faults, 3);
        first.took(1000);
        first.room()[5].store(9, Ordering::Relaxed);
        drop(first);
        let second = open().expect("mapped");
        for page in 0..130 {
            assert_eq!(second.is_removed(page), (63..66).contains(&page), "{page}");
            assert_eq!(second.is_filled(page), !(63..66).contains(&page), "{page}");
        }
        assert_eq!(second.room()[5].load(Ordering::Relaxed), 9);
        assert_eq!((kept.counts()[Count::Faults as usize], kept.latencies()[index_of(1000)]), (3, 1));
        assert!(Record::open(kept.descriptor().try_clone_to_owned().expect("a copy"), 1 << 20).is_err());
    }
}
