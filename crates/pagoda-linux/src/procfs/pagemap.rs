//! Which OS pages of a range hold something, as runs.
//!
//! Present pages are not the only ones: while the kernel moves a page from one frame to another (a
//! compaction, say) the page table has no page for it, nor for a page in its swap. Both look like a
//! hole to a query for present pages only.
//!
//! One `PAGEMAP_SCAN` (Linux 6.7) answers for gigabytes; where there is none, the entries of
//! `/proc/self/pagemap` are read one by one. Scanning must never allocate, use thread-local
//! storage, or fault a page in: it runs in an engine thread and only looks.
//!
//! An answer is stale when it arrives: another thread may touch or discard pages meanwhile. A
//! caller must act on it by an operation that checks for itself (a move, a copy).

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use linux_raw_sys::general::{
    PAGE_IS_GUARD, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PAGE_IS_WRITTEN,
    PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING, page_region, pm_scan_arg,
};
use pagoda_core::page::OS_PAGE;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

const PAGEMAP_SCAN: Opcode = opcode::read_write::<pm_scan_arg>(b'f', 16);

/// Runs that one `PAGEMAP_SCAN` can return (24 bytes each: 12 KiB). The worst case, every other OS
/// page present, is 4 MiB a call; there is no bound on a range, since a scan with a full vector
/// continues from where it ended.
const REGIONS: usize = 512;

/// Pagemap entries that one read of the fallback fetches: 8 bytes each, 16 KiB, for 8 MiB of
/// address space.
const ENTRIES: usize = 2048;
pub(crate) const ENTRY_BYTES: usize = size_of::<u64>();
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;

/// The kind of memory behind an OS page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Memory: of this process alone, shared by a fork, or page cache.
    Memory,
    /// The kernel's shared page of zeros, small or huge: read but never written, and not counted as
    /// resident. The fallback can't tell it and says [`Memory`](Self::Memory).
    ZeroPage,
    /// Something, but no frame that the page table shows: it is in the kernel's swap, or just being
    /// moved to another frame.
    Away,
}

/// How a scanner asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanMethod {
    /// `PAGEMAP_SCAN`.
    Scan,
    /// Reading `/proc/self/pagemap`.
    Entries,
}

/// Scans the page tables of this process, any number of times.
pub struct PagemapScanner {
    file: OwnedFd,
    buffer: Buffer,
}

enum Buffer {
    Scan(Box<[page_region]>),
    Entries(Box<[u8]>),
}

impl PagemapScanner {
    /// Opens `/proc/self/pagemap`, finds out which method works, and allocates the only memory that
    /// this scanner will ever use. Call it on the thread that will scan, if that thread has a file
    /// table of its own. After a fork the child needs a scanner of its own: this one goes on
    /// showing the parent.
    ///
    /// # Errors
    /// Those of opening the file: no `/proc` (`NotFound`), not allowed, or no descriptor left.
    pub fn new() -> io::Result<Self> {
        let mut scanner = Self::with_method(ScanMethod::Scan)?;
        let on_stack = 0u8;
        let here = (&raw const on_stack).addr() & !(OS_PAGE - 1);
        match scanner.populated_runs(here, here + OS_PAGE, |_, _| {}) {
            Ok(()) => Ok(scanner),
            // ENOTTY before 6.7; a sandbox may answer with anything.
            Err(_) => Self::with_method(ScanMethod::Entries),
        }
    }

    /// A scanner that asks in one given way, whether it works here or not.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_method(method: ScanMethod) -> io::Result<Self> {
        let file =
            rustix::fs::open(c"/proc/thread-self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let empty = page_region { start: 0, end: 0, categories: 0 };
        let buffer = match method {
            ScanMethod::Scan => Buffer::Scan(vec![empty; REGIONS].into_boxed_slice()),
            ScanMethod::Entries => Buffer::Entries(vec![0; ENTRIES * ENTRY_BYTES].into_boxed_slice()),
        };
        Ok(Self { file, buffer })
    }

    /// How this scanner asks.
    #[must_use]
    pub const fn method(&self) -> ScanMethod {
        match self.buffer {
            Buffer::Scan(_) => ScanMethod::Scan,
            Buffer::Entries(_) => ScanMethod::Entries,
        }
    }

    /// Calls `f` with each maximal run of OS pages in `start..end` that hold something and have one
    /// presence, lowest address first. Unmapped pages hold nothing. A huge page that reaches out of
    /// the range is cut to it.
    ///
    /// Blocks for the kernel's lock on the address space, as a page fault does; `f` is called
    /// without it.
    ///
    /// # Errors
    /// The kernel's; runs before it were passed to `f`.
    ///
    /// # Panics
    /// If an end is not a multiple of [`OS_PAGE`].
    pub fn populated_runs(
        &mut self,
        start: usize,
        end: usize,
        f: impl FnMut(Range<usize>, Presence),
    ) -> io::Result<()> {
        assert_whole_pages(start, end);
        let mut runs = Runs { open: None, f };
        match &mut self.buffer {
            Buffer::Scan(regions) => {
                scan(&self.file, regions, start..end, What::is(POPULATED), &mut runs, |presence, _| {
                    presence
                })?;
            }
            Buffer::Entries(bytes) => read_entries(&self.file, bytes, start..end, &mut runs)?,
        }
        runs.finish();
        Ok(())
    }

    /// Calls `f` with each maximal run of OS pages in `start..end` that hold something, lowest
    /// address first, and whether they were written since the last call. It write-protects those in
    /// the same step: the next write to one shows again. A page that was never protected counts as
    /// written: all present pages the first time, and pages that came by a fill or a move since.
    /// Empty pages are passed over, and not protected either: protection is a mark in a page table,
    /// and nothing can be filled over it. A page that the kernel moves to another frame meanwhile
    /// may lose its mark by that, and shows again.
    ///
    /// Blocks as [`populated_runs`](Self::populated_runs) does.
    ///
    /// # Errors
    /// `EPERM` if a part of the range is not registered to be tracked; `Unsupported` for the
    /// fallback, which can't; else the kernel's. Runs before it were passed to `f`.
    ///
    /// # Panics
    /// If an end is not a multiple of [`OS_PAGE`].
    pub fn take_written(
        &mut self,
        start: usize,
        end: usize,
        mut f: impl FnMut(Range<usize>, Presence, bool),
    ) -> io::Result<()> {
        assert_whole_pages(start, end);
        let Buffer::Scan(regions) = &mut self.buffer else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut runs = Runs { open: None, f: |run, (presence, is_written)| f(run, presence, is_written) };
        // Among matching pages the kernel protects the written ones.
        let flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC;
        let what = What { flags, shown: SHOWN | PAGE_IS_WRITTEN, ..What::is(POPULATED) };
        scan(&self.file, regions, start..end, what, &mut runs, |presence, is_written| {
            (presence, is_written)
        })?;
        runs.finish();
        Ok(())
    }

    /// The same, but calls `f` with the written pages only. Faster where they are few: a page that
    /// the kernel passes over takes it 2 ns, one that it tells of 12 (EPYC, Linux 6.18).
    ///
    /// # Errors
    /// As [`take_written`](Self::take_written).
    ///
    /// # Panics
    /// If an end is not a multiple of [`OS_PAGE`].
    pub fn take_only_written(
        &mut self,
        start: usize,
        end: usize,
        f: impl FnMut(Range<usize>, Presence),
    ) -> io::Result<()> {
        let flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC;
        self.scan_runs(start, end, What { flags, all: PAGE_IS_WRITTEN, ..What::is(POPULATED) }, f)
    }

    /// Calls `f` with each maximal run of pages of `start..end` that hold nothing, lowest address
    /// first.
    ///
    /// # Errors
    /// `Unsupported` for the fallback; else the kernel's.
    ///
    /// # Panics
    /// If an end is not a multiple of [`OS_PAGE`].
    pub fn absent_runs(
        &mut self,
        start: usize,
        end: usize,
        mut f: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        let what = What { flags: 0, inverted: POPULATED, all: POPULATED, any: 0, shown: 0 };
        self.scan_runs(start, end, what, |run, _| f(run))
    }

    /// Calls `f` with each maximal run of matching pages of one presence.
    fn scan_runs(
        &mut self,
        start: usize,
        end: usize,
        what: What,
        f: impl FnMut(Range<usize>, Presence),
    ) -> io::Result<()> {
        assert_whole_pages(start, end);
        let Buffer::Scan(regions) = &mut self.buffer else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut runs = Runs { open: None, f };
        scan(&self.file, regions, start..end, what, &mut runs, |presence, _| presence)?;
        runs.finish();
        Ok(())
    }

    /// Calls `f` with each maximal run of guards (`MADV_GUARD_INSTALL`) in `start..end`, lowest
    /// address first.
    ///
    /// # Errors
    /// `Unsupported` for the fallback, `EINVAL` before Linux 6.16, which can't tell; else the
    /// kernel's.
    ///
    /// # Panics
    /// If an end is not a multiple of [`OS_PAGE`].
    pub fn guards(&mut self, start: usize, end: usize, mut f: impl FnMut(Range<usize>)) -> io::Result<()> {
        self.scan_runs(start, end, What::is(PAGE_IS_GUARD), |run, _| f(run))
    }

    /// How many bytes of `start..end` are mapped by huge pages.
    ///
    /// # Errors
    /// `Unsupported` for the fallback, which can't tell; else the kernel's.
    ///
    /// # Panics
    /// If an end is not a multiple of [`OS_PAGE`].
    pub fn huge_bytes(&mut self, start: usize, end: usize) -> io::Result<usize> {
        let mut bytes = 0;
        self.scan_runs(start, end, What::is(PAGE_IS_HUGE), |run, _| bytes += run.len())?;
        Ok(bytes)
    }
}

fn assert_whole_pages(start: usize, end: usize) {
    assert!(
        start.is_multiple_of(OS_PAGE) && end.is_multiple_of(OS_PAGE),
        "whole OS pages: {start:#x}..{end:#x}"
    );
}

/// Joins pieces that touch and are alike, so that a run never ends where a buffer did.
struct Runs<K, F> {
    open: Option<(Range<usize>, K)>,
    f: F,
}

impl<K: PartialEq, F: FnMut(Range<usize>, K)> Runs<K, F> {
    fn push(&mut self, piece: Range<usize>, kind: K) {
        match &mut self.open {
            Some((run, same)) if *same == kind && run.end == piece.start => run.end = piece.end,
            open => {
                if let Some((run, kind)) = open.replace((piece, kind)) {
                    (self.f)(run, kind);
                }
            }
        }
    }

    fn finish(mut self) {
        if let Some((run, kind)) = self.open.take() {
            (self.f)(run, kind);
        }
    }
}

/// The categories of which a page that holds something has one.
const POPULATED: u32 = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;

/// The categories by which presences differ.
const SHOWN: u32 = PAGE_IS_PRESENT | PAGE_IS_PFNZERO;

/// The pages that a scan looks for, and its action on them.
#[derive(Clone, Copy)]
struct What {
    flags: u32,
    /// Categories that count where a page does not have them.
    inverted: u32,
    /// A matching page has all of these.
    all: u32,
    /// And one of these, if there are any.
    any: u32,
    /// The categories of these that separate runs.
    shown: u32,
}

impl What {
    /// Only looks, for pages with one of these.
    const fn is(any: u32) -> Self {
        Self { flags: 0, inverted: 0, all: 0, any, shown: SHOWN }
    }
}

/// Pushes matching pages, as the kind that `kind` makes of their presence and of whether they were
/// written, where that is shown.
fn scan<K: PartialEq, F: FnMut(Range<usize>, K)>(
    file: &OwnedFd,
    regions: &mut [page_region],
    range: Range<usize>,
    what: What,
    runs: &mut Runs<K, F>,
    kind: impl Fn(Presence, bool) -> K,
) -> io::Result<()> {
    let mut from = range.start;
    while from < range.end {
        let mut argument = pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: u64::from(what.flags),
            start: from as u64,
            end: range.end as u64,
            walk_end: 0,
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            category_inverted: u64::from(what.inverted),
            category_mask: u64::from(what.all),
            category_anyof_mask: u64::from(what.any),
            return_mask: u64::from(what.shown),
        };
        // SAFETY: the opcode is that of `pm_scan_arg`; the kernel writes the argument and at most
        // `vec_len` regions at `vec`, which is borrowed for the call; its write-protect flags
        // change where writes are reported, and no content.
        let found = match unsafe { pagemap_scan(file, &mut argument) } {
            Err(Errno::INTR) => continue,
            found => found?,
        };
        for region in &regions[..found.min(regions.len())] {
            let is = |category| region.categories & u64::from(category) != 0;
            let presence = match (is(PAGE_IS_PFNZERO), is(PAGE_IS_PRESENT)) {
                (true, _) => Presence::ZeroPage,
                (false, true) => Presence::Memory,
                (false, false) => Presence::Away,
            };
            runs.push(region.start as usize..region.end as usize, kind(presence, is(PAGE_IS_WRITTEN)));
        }
        let walked = argument.walk_end as usize;
        if walked <= from {
            // Never seen; without this a kernel that makes no progress would spin us for good.
            return Err(io::ErrorKind::InvalidData.into());
        }
        from = walked;
    }
    Ok(())
}

/// # Safety
/// `argument.vec` must be valid for writes of `argument.vec_len` regions.
unsafe fn pagemap_scan(file: &OwnedFd, argument: &mut pm_scan_arg) -> Result<usize, Errno> {
    use std::os::fd::AsRawFd;
    // By hand: `rustix`'s typed ioctls drop the return value, which is the number of regions.
    let at = std::ptr::from_mut(argument).expose_provenance();
    // SAFETY: the descriptor is open, the argument borrowed for the call, the rest is the caller's
    // promise.
    unsafe {
        crate::raw_syscall::syscall3(
            linux_raw_sys::general::__NR_ioctl,
            file.as_raw_fd() as usize,
            PAGEMAP_SCAN as usize,
            at,
        )
    }
}

/// Whether the page of this entry of `/proc/self/pagemap` holds something.
pub(crate) const fn is_populated(entry: [u8; ENTRY_BYTES]) -> bool {
    u64::from_ne_bytes(entry) & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0
}

/// Whether this entry's page is mapped elsewhere, too. The kernel says so also of its page of
/// zeros.
pub(crate) const fn is_shared(entry: [u8; ENTRY_BYTES]) -> bool {
    u64::from_ne_bytes(entry) & (ENTRY_PRESENT | ENTRY_EXCLUSIVE) == ENTRY_PRESENT
}

fn read_entries<F: FnMut(Range<usize>, Presence)>(
    file: &OwnedFd,
    bytes: &mut [u8],
    range: Range<usize>,
    runs: &mut Runs<Presence, F>,
) -> io::Result<()> {
    let mut from = range.start;
    while from < range.end {
        let want = bytes.len().min((range.end - from) / OS_PAGE * ENTRY_BYTES);
        let offset = (from / OS_PAGE * ENTRY_BYTES) as u64;
        let got = match rustix::io::pread(file, &mut bytes[..want], offset) {
            Err(Errno::INTR) => continue,
            got => got? / ENTRY_BYTES,
        };
        // Past the end of user addresses there is nothing to read, and nothing that holds anything.
        if got == 0 {
            return Ok(());
        }
        for entry in bytes[..got * ENTRY_BYTES].as_chunks().0 {
            if is_populated(*entry) {
                let is_present = u64::from_ne_bytes(*entry) & ENTRY_PRESENT != 0;
                let presence = if is_present { Presence::Memory } else { Presence::Away };
                runs.push(from..from + OS_PAGE, presence);
            }
            from += OS_PAGE;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "pagemap_test.rs"]
mod tests;
