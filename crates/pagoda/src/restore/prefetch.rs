//! Reading a recorded working set ahead, in the order in which it was touched.
//!
//! Threads of its own read it by large pieces and copy each block to its place, where that is still
//! empty and the image's. They take free memory only. Faults come first: a thread has the gate for
//! the time of one copy, an entry for that of one block, and passes over entries that a fault has.
//! It must never put content over a page that was written or discarded since.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_image::WorkingSet;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::joinable::JoinableThread;

use crate::engine::Engine;
use crate::store::{Handle, OpenImage};
use crate::table::{Entries, give, try_take};

/// Packed bytes of one read.
const READ_BYTES: u64 = 1 << 20;

/// Threads of a prefetch: one unpacks while another waits for the file.
const THREADS: usize = 2;

/// A running or finished prefetch. Dropping it ends it.
pub(super) struct Prefetch {
    quits: Arc<AtomicBool>,
    /// Closed when it has ended, also by a panic.
    done: Mutex<Receiver<()>>,
    threads: Vec<JoinableThread>,
}

/// What its threads share.
struct Shared {
    open: Arc<OpenImage>,
    set: WorkingSet,
    range: PageRange,
    quits: Arc<AtomicBool>,
    /// The first touch that no thread has taken.
    next: Mutex<usize>,
}

impl Shared {
    /// The touches that the calling thread is to read next: by one read.
    fn take(&self) -> Option<Range<usize>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, count) = (*next, self.set.touches().len());
        let mut to = from + 1;
        while to < count && self.set.packed_bytes(from..to + 1) <= READ_BYTES {
            to += 1;
        }
        *next = to.min(count);
        (from < count).then_some(from..to)
    }
}

impl Prefetch {
    /// Starts to prefetch `set` into `range`. None without a thread: it only saves time.
    pub(super) fn start(
        engine: Arc<Engine>,
        open: &Arc<OpenImage>,
        set: WorkingSet,
        range: PageRange,
    ) -> Option<Self> {
        let (quits, open) = (Arc::<AtomicBool>::default(), Arc::clone(open));
        let (is_running, done) = channel();
        let shared = Shared { open, set, range, quits: Arc::clone(&quits), next: Mutex::new(0) };
        let shared = Arc::new(shared);
        let start = |_| {
            let (engine, shared) = (Arc::clone(&engine), Arc::clone(&shared));
            let is_running = is_running.clone();
            JoinableThread::start("pagoda-prefetch", move || {
                let _is_running = is_running;
                pagoda_linux::process::thread::block_signals_for_good();
                engine.prefetch_set(&shared);
            })
        };
        let threads: Vec<_> = (0..THREADS).map_while(|number| start(number).ok()).collect();
        (!threads.is_empty()).then(|| Self { quits, done: Mutex::new(done), threads })
    }

    /// Waits until it is done.
    pub(super) fn wait(&self) {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.recv().expect_err("nothing is ever sent");
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.quits.store(true, Ordering::Release);
        // A thread that has panicked has printed why.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Entries whose busy bits are taken while their block is unpacked: a fault on them waits for it,
/// which is sooner there than if both unpacked it. Nothing of them is changed.
struct Claim {
    entries: Entries,
    taken: Vec<(usize, Word)>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.taken.drain(..).for_each(|(index, word)| give(&self.entries[index], word));
    }
}

impl Engine {
    fn prefetch_set(&self, shared: &Shared) {
        let Shared { open, set, range, quits, .. } = shared;
        let Some(image) = open.source.image() else { return };
        let is_over = || quits.load(Ordering::Acquire) || !self.has_room();
        while !is_over()
            && let Some(touches) = shared.take()
        {
            // Faults on these pages tell of the damage, if there are any.
            let Ok(mut part) = set.read_part(image, touches.clone()) else { return };
            for index in touches {
                if is_over() {
                    return;
                }
                let block = set.touches()[index].block;
                let at = block * u64::from(image.block_bytes());
                open.touches.note(block);
                let Some(claim) = self.claim_block(open, *range, at) else { continue };
                let Ok(content) = part.unpack(index) else { return };
                drop(claim);
                self.place_block(open, *range, at, content);
            }
        }
    }

    /// Takes the entries of a block of which something is still to be read. None if there are none:
    /// faults have it, or had it.
    fn claim_block(&self, open: &OpenImage, range: PageRange, at: u64) -> Option<Claim> {
        let at = usize::try_from(at).ok().filter(|at| *at < range.len())?;
        let block = PageRange::at(range.start() + at, open.source.block_bytes().min(range.len() - at));
        let table = self.gate_shared();
        let (span, entry_bytes) = (table.find(block.start())?, table.entry_bytes());
        let here = span.range().intersection(block)?;
        let mut claim = Claim { entries: Arc::clone(span.entries()), taken: Vec::new() };
        for (number, index) in (at / entry_bytes..).zip(span.indices(here, entry_bytes)) {
            let Some(word) = try_take(span.entry(index)) else { continue };
            let missing = span.page(index, here, entry_bytes).granules.without(word.resident());
            let handle = open.handle(number as u32, entry_bytes).map(Handle::to_bits);
            if !missing.is_empty() && handle.is_some_and(|handle| word.backing() == Backing::Handle(handle)) {
                claim.taken.push((index, word));
            } else {
                give(span.entry(index), word);
            }
        }
        (!claim.taken.is_empty()).then_some(claim)
    }

    /// Copies a block of an image to its place, as far as that is empty and the image's.
    fn place_block(&self, open: &OpenImage, range: PageRange, at: u64, content: &[u8]) {
        let Some(start) = usize::try_from(at).ok().filter(|at| *at < range.len()) else { return };
        let end = (start + content.len()).min(range.len());
        let entry_bytes = self.entry_bytes();
        let mut from = start;
        while from < end {
            let to = end.min((from / entry_bytes + 1) * entry_bytes);
            if let Some(handle) = open.handle((from / entry_bytes) as u32, entry_bytes) {
                self.place_part(handle, range.start() + from, &content[from - start..to - start]);
            }
            from = to;
        }
    }

    /// Copies a part of the page `handle` to its place in one entry.
    fn place_part(&self, handle: Handle, address: usize, content: &[u8]) {
        let table = self.gate_shared();
        if table.order.deferred() > 0 {
            return;
        }
        let Some(span) = table.find(address) else { return };
        let page = table.page_at(span, address);
        let Some(word) = try_take(span.entry(page.index)) else { return };
        let first = page.granule_of(address);
        let wanted = Granules::range(first, first + (content.len() / OS_PAGE) as u32);
        // A page that was written and evicted, or discarded, has another backing.
        let is_its = word.backing() == Backing::Handle(handle.to_bits());
        let mut after = word;
        if is_its && !self.zones.are_several() {
            for (from, to) in wanted.and(page.granules).without(word.resident()).runs() {
                let part = (from - first) as usize * OS_PAGE..(to - first) as usize * OS_PAGE;
                let progress = self.space.fill_with(page.addresses(from, to), &content[part]);
                let filled = from + (progress.bytes / OS_PAGE) as u32;
                self.ledger.took(progress.bytes as i64);
                after = self.came_in(after, Granules::range(from, filled), 0);
                if progress.stop.is_some() {
                    break;
                }
            }
        }
        self.note_use();
        self.ledger.changed(word, after);
        give(span.entry(page.index), after);
    }
}
