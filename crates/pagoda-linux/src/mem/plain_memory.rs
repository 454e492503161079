//! Ordinary memory of a program: for a benchmark or an example to touch, discard, protect and
//! unmap, unmanaged or managed by Pagoda.
//!
//! One private anonymous mapping, of which OS pages can be taken away or be made read-only. It
//! knows which, so that no safe call faults: it must never allow an access to a page that is not
//! there.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use crate::mem::aligned;
use crate::mem::range::PageRange;
use crate::mem::region_memory::ForeignMemory;

const PAGE_WORDS: usize = OS_PAGE / size_of::<u64>();

/// The pages that the kernel is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// OS pages.
    Small,
    /// Huge pages, where the system gives them on request.
    Huge,
    /// The system's default without a request.
    Unasked,
}

/// The access to an OS page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    ReadOnly,
    Unmapped,
}

/// The mapping; the rest of it is unmapped on drop.
#[derive(Debug)]
pub struct PlainMemory {
    range: PageRange,
    /// Of each OS page, once one of them is not open any more.
    states: Vec<State>,
    /// It was given to a manager. Its addresses are kept from now on, also unmapped: a manager that
    /// forgets it must not meet another mapping there.
    is_given: AtomicBool,
}

impl PlainMemory {
    /// Maps `len` bytes (a multiple of the OS page), aligned to a huge frame. They read as zero and
    /// take no memory yet. Children of a fork don't get them.
    ///
    /// # Errors
    /// Those of `mmap`. A system without huge pages is none.
    ///
    /// # Panics
    /// If `len` is 0 or no whole number of OS pages.
    pub fn map(len: usize, pages: Pages) -> io::Result<Self> {
        let range = aligned::map(len, HUGE_FRAME)?;
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the mapping was just made, and the advice changes no content.
        unsafe {
            madvise(at, len, Advice::LinuxDontFork)?;
            let _ = match pages {
                Pages::Small => madvise(at, len, Advice::LinuxNoHugepage),
                Pages::Huge => madvise(at, len, Advice::LinuxHugepage),
                Pages::Unasked => Ok(()),
            };
        }
        Ok(Self { range, states: Vec::new(), is_given: AtomicBool::new(false) })
    }

    /// Where it is.
    #[must_use]
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// The memory, to be managed. The manager learns from the kernel of pages that are protected,
    /// discarded and unmapped meanwhile. Nothing is mapped at its addresses any more when it is
    /// unmapped.
    #[must_use]
    pub fn foreign(&self) -> ForeignMemory {
        self.is_given.store(true, Ordering::Relaxed);
        let at = std::ptr::with_exposed_provenance_mut(self.range.start());
        // SAFETY: it is private anonymous memory that was mapped readable and writable, and that
        // nothing but this value uses: no stack, no heap, no control block lies in it, and no child
        // gets it. Pages that are made read-only or are unmapped later go by calls that hold no
        // lock of the manager, and need nothing of it: the kernel refuses to move the former and
        // sends events for the latter. If this value is dropped first all of it is unmapped, for
        // which the kernel sends an event, too; `vacate` keeps its addresses.
        unsafe { ForeignMemory::new(at, self.range.len()) }.expect("whole pages")
    }

    fn state(&self, page: usize) -> State {
        self.states.get(page).copied().unwrap_or(State::Open)
    }

    /// The address of a word.
    fn at(&self, index: usize) -> *mut u64 {
        assert!(index < self.range.len() / size_of::<u64>(), "word {index} lies beyond the end");
        std::ptr::with_exposed_provenance_mut::<u64>(self.range.start()).wrapping_add(index)
    }

    /// The word of this number. Waits if its page is swapped out.
    ///
    /// # Panics
    /// If there is none, or its page is unmapped.
    #[must_use]
    pub fn word(&self, index: usize) -> u64 {
        assert_ne!(self.state(index / PAGE_WORDS), State::Unmapped, "the page of word {index}");
        // SAFETY: it lies in the mapping and its page is there to be read; every write goes through
        // `&mut self`.
        unsafe { self.at(index).read() }
    }

    /// Writes the word of this number. Waits if its page is swapped out.
    ///
    /// # Panics
    /// If there is none, or its page is unmapped or read-only.
    pub fn set_word(&mut self, index: usize, word: u64) {
        assert_eq!(self.state(index / PAGE_WORDS), State::Open, "the page of word {index}");
        // SAFETY: it lies in the mapping and its page is there to be written; `&mut self` excludes
        // all other access.
        unsafe { self.at(index).write(word) }
    }

    /// All of it.
    ///
    /// # Panics
    /// If a page of it is unmapped or read-only.
    pub fn words_mut(&mut self) -> &mut [u64] {
        assert!(self.states.is_empty(), "parts of it are not there");
        // SAFETY: all of the mapping is readable and writable, and borrowed exclusively; every bit
        // pattern is a u64. A page that is moved out and in again has the same content for every
        // reader.
        unsafe { std::slice::from_raw_parts_mut(self.at(0), self.range.len() / size_of::<u64>()) }
    }

    /// Discards these OS pages: they read zero afterwards and hold nothing.
    ///
    /// # Errors
    /// Those of `madvise`.
    ///
    /// # Panics
    /// If one of them is not there.
    pub fn discard(&mut self, pages: Range<usize>) -> io::Result<()> {
        let (at, len) = self.pages(&pages);
        // SAFETY: the pages are of this mapping, borrowed exclusively.
        Ok(unsafe { madvise(at.cast(), len, Advice::LinuxDontNeed) }?)
    }

    /// Makes these OS pages read-only.
    ///
    /// # Errors
    /// Those of `mprotect`: `ENOMEM` at the limit on mappings.
    ///
    /// # Panics
    /// If one of them is not there.
    pub fn make_read_only(&mut self, pages: Range<usize>) -> io::Result<()> {
        let (at, len) = self.pages(&pages);
        // SAFETY: the pages are of this mapping, borrowed exclusively; from now on they are
        // not written through it.
        unsafe { mprotect(at.cast(), len, MprotectFlags::READ) }?;
        self.set(pages, State::ReadOnly);
        Ok(())
    }

    /// Unmaps these OS pages.
    ///
    /// # Errors
    /// Those of `munmap`: `ENOMEM` at the limit on mappings.
    ///
    /// # Panics
    /// If one of them is not there.
    pub fn unmap(&mut self, pages: Range<usize>) -> io::Result<()> {
        let (at, len) = self.pages(&pages);
        // A mapping that another caller makes there from now on is not ours.
        self.set(pages.clone(), State::Unmapped);
        // SAFETY: the pages are of this mapping, borrowed exclusively; from now on they are not
        // accessed through it.
        if let Err(error) = unsafe { self.vacate(at.cast(), len) } {
            self.set(pages, State::Open);
            return Err(error.into());
        }
        Ok(())
    }

    /// Unmaps a part. If the memory was given away, a closed mapping keeps the place.
    ///
    /// # Safety
    /// The part is this mapping's, and is not accessed any more.
    unsafe fn vacate(&self, at: *mut c_void, len: usize) -> Result<(), Errno> {
        if !self.is_given.load(Ordering::Relaxed) {
            // SAFETY: the caller's.
            return unsafe { munmap(at, len) };
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as above; it replaces nothing else.
        unsafe { mmap_anonymous(at, len, ProtFlags::empty(), flags) }.map(drop)
    }

    fn pages(&self, pages: &Range<usize>) -> (*mut u64, usize) {
        assert!(!pages.is_empty() && pages.end <= self.range.len() / OS_PAGE, "{pages:?} are not its pages");
        assert!(pages.clone().all(|page| self.state(page) != State::Unmapped), "some of {pages:?} are gone");
        (self.at(pages.start * PAGE_WORDS), pages.len() * OS_PAGE)
    }

    fn set(&mut self, pages: Range<usize>, state: State) {
        self.states.resize(self.range.len() / OS_PAGE, State::Open);
        self.states[pages].fill(state);
    }
}

impl Drop for PlainMemory {
    fn drop(&mut self) {
        self.states.resize(self.range.len() / OS_PAGE, State::Open);
        let mut page = 0;
        for run in self.states.chunk_by(|a, b| (*a == State::Unmapped) == (*b == State::Unmapped)) {
            if run[0] != State::Unmapped {
                // SAFETY: these pages are still this mapping's, and nothing borrows it.
                let _ = unsafe { self.vacate(self.at(page * PAGE_WORDS).cast(), run.len() * OS_PAGE) };
            }
            page += run.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_can_be_discarded_protected_and_unmapped_and_the_rest_stays() {
        let mut memory = PlainMemory::map(8 * OS_PAGE, Pages::Small).expect("memory");
        (0..8).for_each(|page| memory.set_word(page * PAGE_WORDS, 7));
        memory.discard(1..2).expect("discard");
        memory.make_read_only(2..4).expect("protect");
        memory.unmap(3..5).expect("unmap");
        let read = [0, 1, 2, 5, 7].map(|page| memory.word(page * PAGE_WORDS));
        assert_eq!(read, [7, 0, 7, 7, 7]);
    }

    #[test]
    #[should_panic(expected = "the page of word 512")]
    fn an_unmapped_page_is_not_read() {
        let mut memory = PlainMemory::map(2 * OS_PAGE, Pages::Unasked).expect("memory");
        memory.unmap(1..2).expect("unmap");
        let _ = memory.word(PAGE_WORDS);
    }

    #[test]
    fn all_of_it_is_words_and_begins_at_a_huge_frame() {
        let mut memory = PlainMemory::map(HUGE_FRAME, Pages::Huge).expect("memory");
        memory.words_mut()[1] = 1;
        assert_eq!((memory.word(1), memory.range().start() % HUGE_FRAME), (1, 0));
    }
}
