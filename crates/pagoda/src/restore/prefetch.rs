//! Reading a recorded working set ahead, in the order in which it was touched.
//!
//! A thread of its own reads it by large pieces and copies each block to its place, where that is
//! still empty and the image's. It takes free memory only. Faults come first: it holds the gate and
//! an entry for the time of one copy, and passes over entries that a fault has. It must never put
//! content over a page that was written or discarded since.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules};
use pagoda_image::WorkingSet;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::joinable::JoinableThread;

use crate::engine::Engine;
use crate::store::{Handle, OpenImage};
use crate::table::{give, try_take};

/// Packed bytes of one read.
const READ_BYTES: u64 = 1 << 20;

/// A running or finished prefetch. Dropping it ends it.
pub(super) struct Prefetch {
    quits: Arc<AtomicBool>,
    /// Closed when it has ended, also by a panic.
    done: Mutex<Receiver<()>>,
    thread: Option<JoinableThread>,
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
        let own = Arc::clone(&quits);
        let thread = JoinableThread::start("pagoda-prefetch", move || {
            let _is_running = is_running;
            pagoda_linux::process::thread::block_signals_for_good();
            engine.prefetch_set(&open, &set, range, &own);
        });
        thread.ok().map(|thread| Self { quits, done: Mutex::new(done), thread: Some(thread) })
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
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Engine {
    fn prefetch_set(&self, open: &OpenImage, set: &WorkingSet, range: PageRange, quits: &AtomicBool) {
        let Some(image) = open.source.image() else { return };
        let (mut from, count) = (0, set.touches().len());
        let is_over = || quits.load(Ordering::Acquire) || !self.has_room();
        while from < count && !is_over() {
            let mut to = from + 1;
            while to < count && set.packed_bytes(from..to + 1) <= READ_BYTES {
                to += 1;
            }
            let read = set.read(image, from..to, &mut |touch, content| {
                if !is_over() {
                    let at = touch.block * content.len() as u64;
                    self.place_block(open, range, at, content);
                    open.touches.note(touch.block);
                }
            });
            // Faults on these pages tell of the damage, if there are any.
            if read.is_err() {
                return;
            }
            from = to;
        }
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
