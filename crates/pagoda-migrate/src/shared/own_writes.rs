//! The writes by a mapping of this process, as a log: for shared memory that nothing else writes.

use std::io;
use std::ops::Range;

use pagoda_core::migrate::geometry::STRIPE_PAGES;
use pagoda_core::migrate::pages::{PageSet, StripePages};
use pagoda_core::page::OS_PAGE;
use pagoda_linux::io::memory_file::check_shows;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::write_log::{Tracked, WriteLog};

use super::SharedMemory;
use super::log::{DirtyLog, DirtyPages};

/// A log of the writes by one mapping of shared memory, which the kernel keeps: by write protection
/// of userfaultfd (Linux 6.7), as long as this value lives. A first write to a page after each look
/// costs its thread about 2 µs more. A guest of KVM that has its memory by this mapping is seen as
/// any thread is.
///
/// It is for memory that this mapping alone writes. **It does not see writes by another mapping,
/// also of this process, by another process (vhost-user), by write(2) to the file, or by a device
/// to pinned pages (VFIO, registered buffers of io_uring).** Where there are such writers hand in a
/// [`DirtyLog`] of your own that asks this one and them.
///
/// Nor does it see that a page was given back (a hole, as for a balloon) and then read. Tell such
/// pages in a log of your own as well.
pub struct OwnWrites {
    memory: SharedMemory,
    range: PageRange,
    log: WriteLog,
}

impl OwnWrites {
    /// Tracks the writes by the mapping of all of `memory` that begins at `address`. It has to stay
    /// where it is.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no shared mapping of all of it;
    /// [`ResourceBusy`](io::ErrorKind::ResourceBusy) if a userfaultfd has a part of it, as that of
    /// another `OwnWrites`; [`Unsupported`](io::ErrorKind::Unsupported) if the kernel tracks no
    /// such writes, or not for this process; else those of reading `/proc`. Each says why.
    pub fn new(memory: &SharedMemory, address: *const u8) -> io::Result<Self> {
        let memory = SharedMemory { file: memory.file.try_clone()?, offset: memory.offset, len: memory.len };
        let start = address.addr();
        let end = start.checked_add(memory.len.as_usize());
        let range = end.and_then(|end| PageRange::new(start, end)).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a mapping begins at a whole page of 4096 bytes")
        })?;
        check_shows(range, &memory.file, memory.offset)?;
        let log = WriteLog::start(range).map_err(refused)?;
        Ok(Self { memory, range, log })
    }
}

/// The user's words for a refusal.
fn refused(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::ResourceBusy {
        let why = "writes to the shared memory are tracked already, or its mapping has another userfaultfd";
        return io::Error::new(error.kind(), why);
    }
    let why = format!(
        "the kernel does not tell of writes to shared memory here ({error}); that takes Linux 6.7 and \
         userfaultfd, else hand in a dirty log"
    );
    io::Error::new(io::ErrorKind::Unsupported, why)
}

impl DirtyLog for OwnWrites {
    fn take(&mut self, dirty: &mut DirtyPages<'_>) -> io::Result<()> {
        let Self { memory, range, log } = self;
        // A mapping that was moved is tracked no more.
        check_shows(*range, &memory.file, memory.offset)?;
        let pages = |run: &Range<usize>| {
            let page = |address: usize| ((address - range.start()) / OS_PAGE) as u64;
            page(run.start)..page(run.end)
        };
        // A page that comes to hold something after this look is in the page table from then on.
        let held = memory.held()?;
        let mut absent_dirty = Vec::new();
        let taken = log.take(
            |run| dirty.add(pages(&run)),
            |tracked, run| protect_held(tracked, &held, pages(&run), range.start(), &mut absent_dirty),
        );
        absent_dirty.into_iter().for_each(|pages| dirty.add(pages));
        taken.map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => refused(error),
            _ => error,
        })
    }
}

/// Protects those of `pages` that hold something, and adds them to `dirty`: they were written by
/// this mapping and left its page table, or were never in it.
fn protect_held(
    tracked: &Tracked<'_>,
    held: &PageSet,
    pages: Range<u64>,
    start: usize,
    dirty: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    let stripe = u64::from(STRIPE_PAGES);
    let address = |page: u64| start + page as usize * OS_PAGE;
    for first in (pages.start / stripe * stripe..pages.end).step_by(STRIPE_PAGES as usize) {
        let mut part = StripePages::default();
        let within = |page: u64| (page.clamp(first, first + stripe) - first) as u32;
        part.add(within(pages.start)..within(pages.end));
        for run in held.stripe(first).and(part).runs() {
            let run = first + u64::from(run.start)..first + u64::from(run.end);
            tracked.protect(address(run.start)..address(run.end))?;
            dirty.push(run);
        }
    }
    Ok(())
}
