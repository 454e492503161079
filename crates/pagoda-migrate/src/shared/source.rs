//! Shared memory that is being sent: its log tells the written pages, its file the pages that hold
//! something.
//!
//! At each look the log is taken first: a write after that shows at the next look. A page that is
//! written and holds something is sent. A page that the other side has and that holds nothing any
//! more is zero there as well. This module must never read through a mapping, nor change anything.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use pagoda_core::migrate::geometry::STRIPE_PAGES;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::size::Bytes;

use super::log::{DirtyLog, DirtyPages};
use super::{PAGE, SharedMemory};
use crate::live::source::{LiveReader, LiveSource, Room, TakePacked};

/// Shared memory that is being sent.
pub(super) struct SharedSource<'a> {
    memory: &'a SharedMemory,
    looking: Mutex<Looking<'a>>,
    /// Pages that the other side may hold as other than zero.
    told: PageSet,
}

struct Looking<'a> {
    log: &'a mut dyn DirtyLog,
    /// Nothing was sent yet: all pages that hold something have to be.
    is_first: bool,
}

impl<'a> SharedSource<'a> {
    pub(super) fn new(memory: &'a SharedMemory, log: &'a mut dyn DirtyLog) -> Self {
        Self { memory, looking: Mutex::new(Looking { log, is_first: true }), told: memory.page_set() }
    }
}

impl LiveSource for SharedSource<'_> {
    fn size(&self) -> Bytes {
        self.memory.len
    }

    fn collect(&self, data: &PageSet, zero: &PageSet) -> io::Result<u64> {
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let dirty = self.memory.page_set();
        looking.log.take(&mut DirtyPages::new(&dirty, self.memory.pages()))?;
        let held = self.memory.held()?;
        // What was cut off holds nothing, and is no zero.
        self.memory.check_len()?;
        let mut written = 0;
        for first in (0..self.memory.pages()).step_by(STRIPE_PAGES as usize) {
            let held = held.stripe(first);
            let changed = if looking.is_first { held } else { held.and(dirty.stripe(first)) };
            let gone = self.told.stripe(first).without(held);
            data.add_stripe(first, changed);
            zero.add_stripe(first, gone);
            written += u64::from(changed.count() + gone.count());
        }
        looking.is_first = false;
        Ok(written)
    }

    /// A page is read each time that it is asked for.
    fn hand_out_again(&self) -> io::Result<()> {
        Ok(())
    }

    fn reader<'a>(&'a self, _packs: bool) -> io::Result<Box<dyn LiveReader + 'a>> {
        Ok(Box::new(SharedReader { memory: self.memory, told: &self.told }))
    }
}

/// One channel's reader.
struct SharedReader<'a> {
    memory: &'a SharedMemory,
    told: &'a PageSet,
}

impl LiveReader for SharedReader<'_> {
    fn read(&mut self, first: u64, room: &mut Room, _packed: &mut TakePacked<'_>) -> io::Result<()> {
        let Self { memory, told } = *self;
        let pages = |run: &Range<u32>| first + u64::from(run.start)..first + u64::from(run.end);
        for run in room.content().runs() {
            let at = memory.offset + pages(&run).start * PAGE;
            memory.file.read_exact_at(room.put(run), at).map_err(|error| {
                // Short of all other reasons: it was cut off.
                memory.check_len().err().unwrap_or(error)
            })?;
        }
        room.content().runs().for_each(|run| told.add(pages(&run)));
        room.zero().runs().for_each(|run| told.remove(pages(&run)));
        Ok(())
    }
}
