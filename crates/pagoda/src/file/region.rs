//! The work of a file region for its users: reading pages in, writing them back, and its part of
//! the helpers' work.
//!
//! This module must never copy a page that it has not seen to be there.

#[cfg(all(test, target_arch = "x86_64"))]
#[path = "address_test.rs"]
mod address_test;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_memory::RegionMemory;
use pagoda_linux::process::thread::{ran_ns, sleep_us, yield_now};
use pagoda_linux::uffd::fault_address::FaultAddress;

use super::FileError;
use super::page_file::{PageFile, Trouble};
use crate::engine::Engine;
use crate::engine::shared::Shared;
use crate::error::Errno;
use crate::file::orders::Reader;
use crate::file::seen::locked;
use crate::file::write_tracking::Tracker;
use crate::file::writeback::{RUN_BYTES, Work};
use crate::state::helpers::Member;
use crate::state::pending::{Fault, Tried};
use crate::stats::account::Account;
use crate::store::Scratch;

/// How often writes by address are looked for: each look goes through the page tables of the
/// memory.
const WRITTEN_LOOK: Duration = Duration::from_secs(1);

/// Tries that only yield in between; afterwards each is followed by a short sleep.
const YIELDS: u32 = 8;
const SLEEP_US: u32 = 20;

/// A wait for a busy entry.
#[derive(Default)]
pub(super) struct Wait {
    tries: u32,
}

impl Wait {
    pub(super) fn a_little(&mut self) {
        self.tries += 1;
        if self.tries < YIELDS { yield_now() } else { sleep_us(SLEEP_US) }
    }
}

pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    pub(super) range: PageRange,
    pub(super) file: Arc<PageFile>,
    /// As long as it lives.
    memory: Option<RegionMemory>,
    account: Arc<Account>,
    /// One sync at a time. Its holder may take the gate.
    syncing: Mutex<()>,
    /// One round after changes by others at a time, and the length of the file by the last. As for
    /// a sync, which may hold that around it.
    pub(super) looking: Mutex<u64>,
    /// How writes by address are seen, and the last look for them. Of the helper that looks after
    /// the file, with others of these taken within.
    tracking: Mutex<Option<(Option<Tracker>, Instant)>>,
    /// A helper has read ahead since the file was looked after: writing back waits for a pause.
    has_worked: AtomicBool,
    /// A writer asks for write-back in the background.
    pub(super) has_too_much_dirty: AtomicBool,
    /// Working memory, at most of as many threads as were here at once. Held around nothing else.
    works: Mutex<Vec<Work>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let engine = self.shared.engine_of_maker();
        self.memory.take().into_iter().for_each(|memory| engine.close(memory, &self.account, None));
        engine.note_all_clean(&self.file);
        engine.file_regions.fetch_sub(1, Ordering::AcqRel);
        engine.owners.leave(&self.account);
        engine.look_after_releases();
    }
}

impl Inner {
    /// Of a file that is mapped at `memory`, and that the engine manages.
    pub(super) fn new(shared: Arc<Shared>, file: Arc<PageFile>, memory: RegionMemory) -> Self {
        let range = memory.range();
        let account = shared.engine_of_maker().owners.enter(range);
        let looking = Mutex::new(file.len());
        Self {
            shared,
            range,
            file,
            memory: Some(memory),
            account,
            syncing: Mutex::new(()),
            looking,
            tracking: Mutex::new(None),
            has_worked: AtomicBool::new(true),
            has_too_much_dirty: AtomicBool::new(false),
            works: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        self.shared.engine_of_maker()
    }
    pub(super) fn memory(&self) -> &RegionMemory {
        self.memory.as_ref().expect("it is there until the last owner is gone")
    }

    pub(super) fn with_work<T>(&self, body: impl FnOnce(&mut Work) -> T) -> T {
        let spare = locked(&self.works).pop();
        let mut work = spare.unwrap_or_else(|| Work::new(self.engine()));
        let result = body(&mut work);
        locked(&self.works).push(work);
        result
    }

    /// Whether `len` bytes from `offset` on are the file's, now, too.
    pub(super) fn check(&self, offset: usize, len: usize) -> Result<(), FileError> {
        let offset = offset as u64;
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.file.len());
        let Some(end) = end else {
            return Err(FileError::BeyondEnd { offset: Bytes::new(offset), len: Bytes::new(len as u64) });
        };
        self.look().map_err(|trouble| error_of(trouble, offset))?;
        if self.file.end() < end { Err(FileError::Truncated) } else { Ok(()) }
    }

    /// Lets `copy` copy `len` bytes at `offset` of the region, entry by entry and no more than
    /// [`RUN_BYTES`] at once. It gets an offset, and which of the bytes must be there; it returns
    /// the bytes that it copied. It returns none if a page that was there a moment ago is gone, or
    /// the caller's memory is not there. Then it is called again, and told that.
    pub(super) fn each_part(
        &self,
        offset: usize,
        len: usize,
        mut copy: impl FnMut(usize, Range<usize>, bool) -> Result<usize, FileError>,
    ) -> Result<(), FileError> {
        let entry_bytes = self.engine().entry_bytes();
        let mut done = 0;
        let mut failed = false;
        while done < len {
            let at = offset + done;
            let end = len.min(done + (entry_bytes - at % entry_bytes).min(RUN_BYTES));
            let copied = copy(at, done..end, failed)?;
            failed = copied == 0;
            done += copied;
        }
        Ok(())
    }

    /// Brings in the page at `offset` for `reader`, unless it is there by the table and `anew` is
    /// not said. Serves the fault that an access would have, in this thread. As long as no memory
    /// can be had it waits, as an access would; but where that ends the process this is an error.
    pub(super) fn bring_in(&self, offset: usize, anew: bool, reader: Reader) -> Result<(), FileError> {
        let engine = self.engine();
        let address = (self.range.start() + offset) & !(OS_PAGE - 1);
        let error = |trouble| error_of(trouble, offset as u64);
        if let Some(trouble) = self.file.why_lost(offset as u64) {
            return Err(error(trouble));
        }
        if !anew && engine.zone_in_region(address).is_some() {
            self.file.reads.note_asked(offset / engine.entry_bytes());
            return Ok(());
        }
        let since_ns = ran_ns();
        let (mut fault, mut wait) =
            (Fault::new(FaultAddress::of_byte(address), false, since_ns), Wait::default());
        let is_served = self.with_work(|Work { scratch, .. }| {
            while engine.serve_alone(&mut fault, scratch) != Tried::Served {
                if engine.lacks_memory() && ran_ns().saturating_sub(since_ns) > engine.give_up_ns {
                    return false;
                }
                // The handlers are woken to read an event in the way: reading it here would take
                // faults of others.
                wait.a_little();
            }
            true
        });
        if !is_served {
            return Err(FileError::NoMemory);
        }
        engine.note_file_read(address, reader);
        self.file.why_lost(offset as u64).map_or(Ok(()), |trouble| Err(error(trouble)))
    }

    /// Copies from the region by way of memory of our own: the caller's may be managed and out, and
    /// then the kernel copies nothing where it serves faults of user mode alone.
    pub(super) fn read_by_way(&self, offset: usize, into: &mut [u8]) -> usize {
        self.with_work(|Work { content, .. }| {
            let copied = self.memory().read_what_is_there(offset, &mut content[..into.len()]);
            into[..copied].copy_from_slice(&content[..copied]);
            copied
        })
    }

    /// The same the other way.
    pub(super) fn write_by_way(&self, offset: usize, from: &[u8]) -> usize {
        self.with_work(|Work { content, .. }| {
            content[..from.len()].copy_from_slice(from);
            self.memory().write_what_is_there(offset, &content[..from.len()])
        })
    }

    pub(super) fn write_all_back(&self) {
        self.with_work(|work| self.engine().write_all_back(&self.file, self.memory(), work));
    }

    pub(super) fn sync(&self) -> Result<(), FileError> {
        if !self.file.is_writable() {
            return Ok(());
        }
        let _one = locked(&self.syncing);
        let looked = self.look();
        self.write_all_back();
        let unwritten = self.file.take_untold();
        let flushed = self.file.flush();
        // Pages that may be lost go before kept ones and those known to be gone: the kernel tells
        // once.
        let flushed = flushed.map_err(|errno| FileError::Unsafe { errno: Errno(errno.raw_os_error()) });
        if let Err(error) = flushed.and(looked.map_err(|trouble| error_of(trouble, 0))) {
            // The next sync tells of pages that are gone. It tries kept ones again.
            if let Some(gone @ (Trouble::Truncated | Trouble::Changed)) = unwritten {
                self.file.is_untold(gone);
            }
            return Err(error);
        }
        if self.file.end() < self.file.len() {
            return Err(FileError::Truncated);
        }
        match unwritten {
            Some(Trouble::Truncated) => Err(FileError::Truncated),
            Some(Trouble::Changed) => Err(FileError::Changed),
            Some(Trouble::Os(errno)) => Err(FileError::Unwritten { errno }),
            None => Ok(()),
        }
    }
}

impl Member for Inner {
    fn has_work(&self) -> bool {
        self.file.orders.are_any() || self.has_too_much_dirty.load(Ordering::Relaxed)
    }

    fn work(&self, scratch: &mut Scratch) {
        self.has_worked.store(true, Ordering::Relaxed);
        if let Some(part) = self.file.orders.next() {
            self.engine().read_part(&self.file, self.range, &part, scratch);
        } else if self.has_too_much_dirty.swap(false, Ordering::Relaxed) {
            self.write_back_in_background();
        }
    }

    /// Users of addresses have no other way to learn of changes by others, or to have their writes
    /// written back.
    fn look_after(&self) {
        let mut tracking = locked(&self.tracking);
        let (tracker, looked) = tracking.get_or_insert_with(|| (Tracker::new(self), Instant::now()));
        let is_idle = !self.has_worked.swap(false, Ordering::Relaxed) && !self.has_work();
        // The next call returns the trouble.
        let _ = self.look();
        if let Some(tracker) = tracker
            && looked.elapsed() >= WRITTEN_LOOK
        {
            self.note_written_by_address(tracker);
            self.write_back_in_background();
            *looked = Instant::now();
        } else if is_idle {
            self.write_back_in_background();
        }
    }
}

/// The error of a reader for trouble with the page at `offset`.
fn error_of(trouble: Trouble, offset: u64) -> FileError {
    match trouble {
        Trouble::Truncated => FileError::Truncated,
        Trouble::Changed => FileError::Changed,
        Trouble::Os(errno) => {
            FileError::Unreadable { offset: Bytes::new(offset / OS_PAGE as u64 * OS_PAGE as u64), errno }
        }
    }
}

impl Engine {
    /// Of which zone the frame of the page at `address` is, if it is in its region, as far as the
    /// table knows.
    pub(super) fn zone_in_region(&self, address: usize) -> Option<usize> {
        let table = self.gate_shared();
        let span = table.find(address)?;
        let page = table.page_at(span, address);
        let word = span.word(page.index);
        word.resident().has(page.granule_of(address)).then(|| word.zone())
    }
}

#[cfg(test)]
#[path = "region_test.rs"]
mod tests;
