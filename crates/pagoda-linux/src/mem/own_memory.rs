//! Pagoda's own memory, and the list of it that keeps it from ever being managed.
//!
//! A pager that swaps its own tables, stacks or heap out waits for itself for good. So every
//! mapping that serves the engine is made or declared here, and every search for memory to adopt
//! asks [`not_own`] first. The list is a fixed array of atomics in this library's own data,
//! readable without a lock from any thread, also in a signal handler.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, madvise};

use crate::mem::range::PageRange;
use crate::mem::reserved;

/// How many mappings of our own there can be: a few arenas and stores for each manager, a stack for
/// each thread, the spare mappings of an engine, and the regions of the preload library's heap (of
/// 4 MiB and more each). At the bound a mapping fails like any other.
const BOUND: usize = 1024;

/// In the end of a mapping: a child of a fork has it, too.
const INHERITED: usize = 1;

/// Start and end of each mapping; a start of 0 is a free place, of 1 one that is being written.
static OWN: [(AtomicUsize, AtomicUsize); BOUND] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; BOUND];

/// Enters `range` into the list. False if the list is full.
#[must_use]
pub fn declare(range: PageRange) -> bool {
    for (start, end) in &OWN {
        if start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            end.store(range.end(), Ordering::Release);
            start.store(range.start(), Ordering::Release);
            return true;
        }
    }
    false
}

/// Takes what lies behind `end` of the range that starts at `start` off the list.
pub(crate) fn shorten(start: usize, end: usize) {
    for (own_start, own_end) in &OWN {
        if own_start.load(Ordering::Acquire) == start {
            own_end.store(end, Ordering::Release);
        }
    }
}

/// Takes the range that starts where `range` does off the list.
pub fn withdraw(range: PageRange) {
    for (start, _) in &OWN {
        if start.load(Ordering::Acquire) == range.start() {
            start.store(0, Ordering::Release);
            return;
        }
    }
}

/// Enters the writable data of this library, the C library and the dynamic linker into the list:
/// the engine's code reads it while it serves a fault. The kernel keeps zeroed data in anonymous
/// mappings that can't be told from the program's. Call it once, on a thread of the program.
pub fn declare_library_data() {
    unsafe extern "C" fn each(
        info: *mut libc::dl_phdr_info,
        _: usize,
        _: *mut std::ffi::c_void,
    ) -> std::ffi::c_int {
        // SAFETY: the dynamic linker passes a valid record, whose name is a C string and whose
        // headers are an array.
        let (name, base, headers) = unsafe {
            let info = &*info;
            let name = if info.dlpi_name.is_null() { c"" } else { std::ffi::CStr::from_ptr(info.dlpi_name) };
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
            (name.to_bytes(), info.dlpi_addr as usize, headers)
        };
        let has = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
        let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let range = |header: &libc::Elf64_Phdr| {
            let start = base + header.p_vaddr as usize;
            PageRange::covering(start, start + header.p_memsz as usize)
        };
        let ours = segments.clone().filter_map(range).any(|range| range.contains((&raw const OWN).addr()));
        if ours || has(b"/libc.so") || has(b"/ld-linux") || has(b"/libgcc_s.so") {
            for range in segments.filter(|header| header.p_flags & libc::PF_W != 0).filter_map(range) {
                let _ = declare(range);
                list_in_children(range);
            }
        }
        0
    }
    // SAFETY: the callback keeps none of its arguments.
    unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::null_mut()) };
}

/// Lets children find the mapping of `range`, which they inherit, on their list.
fn list_in_children(range: PageRange) {
    for place in &OWN {
        if entered(place).is_some_and(|(own, _)| own.intersection(range) == Some(range)) {
            place.1.fetch_or(INHERITED, Ordering::AcqRel);
        }
    }
}

/// Has the mapping of `range` inherited by children, which find it on their list, too. Library data
/// always is.
pub fn keep_in_children(range: PageRange) {
    list_in_children(range);
    let range = reserved::with_page_below(range);
    let at = std::ptr::with_exposed_provenance_mut(range.start());
    // SAFETY: it changes what a child inherits, and no content.
    let _ = unsafe { madvise(at, range.len(), Advice::LinuxDoFork) };
}

/// In a child, before it makes any mapping: takes mappings that it did not inherit off its list,
/// and one that a thread of the parent was just entering.
pub fn forget_what_parents_have() {
    reserved::forget_spares();
    for (start, end) in &OWN {
        // An unused entry is not written, either: it takes no memory.
        if start.load(Ordering::Acquire) != 0 && end.load(Ordering::Acquire) & INHERITED == 0 {
            start.store(0, Ordering::Release);
        }
    }
}

/// How many mappings the list has.
#[cfg(feature = "testing")]
#[must_use]
pub fn declared() -> usize {
    OWN.iter().filter(|(start, _)| start.load(Ordering::Acquire) > 1).count()
}

/// Whether any byte of `range` belongs to Pagoda.
#[must_use]
pub fn is_own(range: PageRange) -> bool {
    next_own(range).is_some()
}

/// Each mapping that is Pagoda's alone: not the data of libraries, nor mappings that children
/// inherit.
pub(crate) fn each_of_ours_alone(mut each: impl FnMut(PageRange)) {
    OWN.iter()
        .filter_map(entered)
        .filter(|(_, is_inherited)| !is_inherited)
        .for_each(|(range, _)| each(range));
}

/// The parts of `range` that no mapping of [`each_of_ours_alone`] has, lowest first.
pub(crate) fn not_ours_alone(range: PageRange, mut each: impl FnMut(PageRange)) {
    parts_by(
        |part| next_of(part, |is_inherited| !is_inherited),
        range,
        |part, is_ours| {
            if !is_ours {
                each(part);
            }
        },
    );
}

/// The parts of `range`, lowest first, and whether each belongs to Pagoda.
pub fn parts(range: PageRange, each: impl FnMut(PageRange, bool)) {
    parts_by(next_own, range, each);
}

fn parts_by(
    next: impl Fn(PageRange) -> Option<(usize, usize)>,
    range: PageRange,
    mut each: impl FnMut(PageRange, bool),
) {
    let mut rest = Some(range);
    while let Some(part) = rest {
        let Some((start, end)) = next(part) else { return each(part, false) };
        let (start, end) = (start.max(part.start()), end.min(part.end()));
        for (start, end, is_own) in [(part.start(), start, false), (start, end, true)] {
            if let Some(part) = PageRange::new(start, end) {
                each(part, is_own);
            }
        }
        rest = PageRange::new(end, part.end());
    }
}

/// The parts of `range` that don't belong to Pagoda, lowest first.
pub fn not_own(range: PageRange, mut each: impl FnMut(PageRange)) {
    parts(range, |part, is_own| {
        if !is_own {
            each(part);
        }
    });
}

/// The lowest range of the list that overlaps `range`.
fn next_own(range: PageRange) -> Option<(usize, usize)> {
    next_of(range, |_| true)
}

/// The same of those of which `is_meant` is true, of whether children inherit them.
fn next_of(range: PageRange, is_meant: impl Fn(bool) -> bool) -> Option<(usize, usize)> {
    let overlapping = |(own, is_inherited): (PageRange, bool)| {
        (is_meant(is_inherited) && own.intersection(range).is_some()).then_some((own.start(), own.end()))
    };
    OWN.iter().filter_map(entered).filter_map(overlapping).min()
}

/// The mapping at a place of the list, and whether children inherit it.
fn entered((start, end): &(AtomicUsize, AtomicUsize)) -> Option<(PageRange, bool)> {
    loop {
        let (from, to) = (start.load(Ordering::Acquire), end.load(Ordering::Acquire));
        // The end of another, if the place changed hands meanwhile.
        if start.load(Ordering::Acquire) == from {
            let range = if from > 1 { PageRange::new(from, to & !INHERITED) } else { None };
            return range.map(|range| (range, to & INHERITED != 0));
        }
    }
}

/// A private anonymous mapping of Pagoda's own; unmapped on drop. Children of a fork don't get it.
#[derive(Debug)]
pub struct OwnMapping {
    range: PageRange,
}

impl OwnMapping {
    /// Reserves `len` bytes (a multiple of the OS page), aligned to `align` (a power of two, of at
    /// least an OS page). No memory is taken until it is touched. `huge` allows or forbids huge
    /// pages in it. The page below is inaccessible: a stack that overflows faults there.
    pub fn reserve(len: usize, align: usize, huge: bool) -> io::Result<Self> {
        let range = reserved::map_closed(len, align)?;
        let mapping = Self { range };
        // With the page below: a child could register it with the memory that it takes over, and
        // unmapping both would then wait for an event that no other thread reads.
        if !declare(reserved::with_page_below(range)) {
            return Err(io::Error::other("the list of Pagoda's own mappings is full"));
        }
        reserved::open(range)?;
        mapping.advise(range, if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage });
        Ok(mapping)
    }

    fn advise(&self, range: PageRange, advice: Advice) {
        debug_assert_eq!(self.range.intersection(range), Some(range));
        // SAFETY: the range is of this mapping, and none of the advice given here changes its
        // content. Advice that this kernel does not know (huge pages compiled out) changes only
        // speed.
        let _ = unsafe { madvise(self.at(range), range.len(), advice) };
    }

    /// Gives the frames of `range` back to the kernel; it reads zero afterwards. An event of a
    /// descriptor that it is registered on must be read by another thread meanwhile.
    ///
    /// # Safety
    /// No code relies on the content of `range`, which must lie within the mapping.
    pub unsafe fn discard(&self, range: PageRange) {
        assert_eq!(self.range.intersection(range), Some(range), "a discard stays within the mapping");
        // A program that locks all its memory (mlockall) locks ours, too.
        let kinds = [Advice::LinuxDontneedLocked, Advice::LinuxDontNeed];
        // SAFETY: the caller gave up the content, and the range is ours.
        let discarded = |advice| unsafe { madvise(self.at(range), range.len(), advice) }.is_ok();
        assert!(kinds.into_iter().any(discarded), "the kernel takes memory of our own back");
    }

    fn at(&self, range: PageRange) -> *mut std::ffi::c_void {
        std::ptr::with_exposed_provenance_mut(range.start())
    }

    /// Where it is.
    #[must_use]
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Leaves it mapped until [`retake`](Self::retake).
    pub fn leak(self) -> PageRange {
        std::mem::ManuallyDrop::new(self).range
    }

    /// Owns a mapping again.
    ///
    /// # Safety
    /// `range` came from [`leak`](Self::leak), and is retaken once.
    #[must_use]
    pub unsafe fn retake(range: PageRange) -> Self {
        Self { range }
    }
}

impl Drop for OwnMapping {
    fn drop(&mut self) {
        withdraw(reserved::with_page_below(self.range));
        // SAFETY: the mapping is owned by this value; every lender of parts of it is bound to its
        // lifetime.
        unsafe { reserved::unmap(self.range) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_of_ours_is_known_as_long_as_it_lives() {
        let mapping = OwnMapping::reserve(1 << 20, 2 << 20, false).expect("reserve");
        let range = mapping.range();
        assert_eq!((range.start() % (2 << 20), range.len()), (0, 1 << 20));
        assert!(is_own(range) && is_own(PageRange::page(range.end() - 1)));
        let below = PageRange::page(range.start() - 1);
        assert!(is_own(below), "it is unmapped with the rest");
        assert!(!is_own(PageRange::at(range.end() + 4096, 4096)));
        drop(mapping);
        assert!(!is_own(range) && !is_own(below));
    }

    #[test]
    fn the_data_of_this_library_and_of_the_c_library_is_ours() {
        declare_library_data();
        assert!(is_own(PageRange::page((&raw const OWN).addr())));
        let address = (&raw const environ).addr();
        assert!(is_own(PageRange::page(address)));
    }

    unsafe extern "C" {
        static environ: *const *const std::ffi::c_char;
    }

    #[test]
    fn the_parts_between_are_not_ours() {
        let mapping = OwnMapping::reserve(1 << 20, 2 << 20, false).expect("reserve");
        let range = mapping.range();
        let around = PageRange::new(range.start() - 8192, range.end() + 4096).expect("a range");
        let mut parts = Vec::new();
        not_own(around, |part| parts.push(part));
        // Other mappings of ours may lie right beside it.
        assert!(parts.iter().all(|part| part.intersection(range).is_none()));
        not_own(range, |part| panic!("{part:?} is ours"));
        let (mut at, mut own_bytes) = (around.start(), 0);
        super::parts(around, |part, is_own| {
            assert_eq!(part.start(), at, "no gap");
            at = part.end();
            own_bytes += part.intersection(range).filter(|_| is_own).map_or(0, PageRange::len);
        });
        assert_eq!((at, own_bytes), (around.end(), range.len()));
    }
}
