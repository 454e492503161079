//! Slowing down the writers of a region that is sent, by their own faults.
//!
//! Of the pages that were written in the last round some leave for staged frames, as in reclaim: no
//! byte is copied. The next access to each is a fault, which waits (`fault/slowed`). How many they
//! are and how long a fault waits is decided in `pagoda_core::migrate::throttle`. This module must
//! never leave a thread waiting after the migration has ended, in whatever way.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::throttle;
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::page_entry::{Backing, Granules};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::joinable::JoinableThread;
use pagoda_linux::process::thread::block_signals_for_good;
use pagoda_migrate::{Delayed, SlowDown};

use crate::engine::Engine;
use crate::state::slowed::SlowedPages;
use crate::store::{Handle, Scratch, Store};
use crate::table::{Span, give, try_take};

/// The part of a round's time that choosing and staging its pages may take: the writers run
/// undisturbed meanwhile.
const STAGING_SHARE: u32 = 4;

/// A region whose writers may be slowed down. Dropping it ends that.
pub(super) struct Slowing {
    engine: Arc<Engine>,
    range: PageRange,
    at_work: Mutex<AtWork>,
}

#[derive(Default)]
struct AtWork {
    pages: Option<Arc<SlowedPages>>,
    /// Wakes the faults that have waited.
    thread: Option<JoinableThread>,
}

impl Slowing {
    pub(super) fn new(engine: Arc<Engine>, range: PageRange) -> Self {
        Self { engine, range, at_work: Mutex::default() }
    }

    /// Has pages of `due` fault once more. Without a thread that could wake the faults nothing is
    /// slowed down.
    pub(super) fn slow_down(&self, due: &PageSet, how: SlowDown) {
        let Ok(pages) = self.pages(due) else { return };
        pages.set_percent(how.percent);
        let entry_pages = (self.engine.entry_bytes() / OS_PAGE) as u64;
        let all = (self.range.len() / OS_PAGE) as u64;
        let begins = (0..all).step_by(entry_pages as usize);
        let has_any = |first: &u64| due.has_any(*first..(first + entry_pages).min(all));
        let count = begins.clone().filter(has_any).count() as u64;
        let chosen = throttle::pages_to_fault(how.percent, how.took, count);
        let until = Instant::now() + how.took / STAGING_SHARE;
        let mut scratch = Scratch::new(self.engine.base);
        for (nth, first) in (0..).zip(begins.filter(has_any)) {
            if throttle::is_chosen(nth, chosen, count) {
                if Instant::now() >= until || self.engine.free() < self.engine.marks().low {
                    return;
                }
                let Some(page) = (first..all).find(|page| due.has(*page)) else { return };
                self.slow_page(page, &pages, due, &mut scratch);
            }
        }
    }

    /// Begins, unless it has begun.
    fn pages(&self, due: &PageSet) -> io::Result<Arc<SlowedPages>> {
        let mut at_work = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pages) = &at_work.pages {
            return Ok(Arc::clone(pages));
        }
        let pages = Arc::new(SlowedPages::new(self.range, due.share()));
        let lifts = Lifts { engine: Arc::clone(&self.engine), pages: Arc::clone(&pages) };
        let serve = move || {
            // Its own fault on a slowed page, in a signal's handler, would never be woken.
            block_signals_for_good();
            lifts.pages.serve(|page| lifts.engine.space.wake(page));
        };
        at_work.thread = Some(JoinableThread::start("pagoda-slows", serve)?);
        self.engine.slowed.enter(Arc::clone(&pages));
        at_work.pages = Some(Arc::clone(&pages));
        Ok(pages)
    }

    /// Stages the due pages of the base page of page `number`, if they can go.
    fn slow_page(&self, number: u64, pages: &SlowedPages, due: &PageSet, scratch: &mut Scratch) {
        let engine = &*self.engine;
        let address = self.range.start() + number as usize * OS_PAGE;
        let table = engine.gate_shared();
        let may_move = !engine.is_released() && !engine.is_making_any_own() && table.order.deferred() == 0;
        let Some(span) = table.find(address).filter(|_| may_move) else { return };
        if span.entries().file().is_some() {
            return;
        }
        let index = table.page_at(span, address).index;
        let page = span.page(index, span.range(), table.entry_bytes());
        if engine.leaves_huge(&table, span, address) {
            // It comes back as base pages, some of which are chosen after the next round.
            if engine.ledger.room_bytes() >= 2 * HUGE_FRAME as u64 {
                engine.evict_of_huge(table, address, page.addresses(0, 1), scratch);
            }
            return;
        }
        if !engine.gives_up_copy(span, index) {
            return;
        }
        let word = span.word(index);
        let mut leaves = Granules::NONE;
        for at in page.granules.and(word.resident()).runs().flat_map(|(from, to)| from..to) {
            let here = page.addresses(at, at + 1);
            let is_due = self.range.intersection(here).is_some()
                && due.has(((here.start() - self.range.start()) / OS_PAGE) as u64);
            if is_due {
                leaves = leaves.or(Granules::range(at, at + 1));
                // Before it leaves: the fault may come at once.
                pages.mark(here);
            }
        }
        let mut copied = Vec::new();
        let stays = page.granules.without(leaves);
        engine.stage_page_from(&table, span, index, &page.without(stays), &mut copied);
        drop(table);
        for out in copied {
            engine.settle_copied(out, scratch);
        }
    }

    /// All threads run as fast as they can.
    pub(super) fn full_speed(&self) {
        let mut at_work = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((thread, pages)) = at_work.thread.take().zip(at_work.pages.as_ref()) else { return };
        self.engine.slowed.leave(pages);
        pages.end();
        // It lifts all that waits, also if it has panicked.
        let _ = thread.join();
    }

    pub(super) fn delayed(&self) -> Delayed {
        let at_work = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        let (faults, time) = at_work.pages.as_ref().map(|pages| pages.told()).unwrap_or_default();
        Delayed { faults, time }
    }
}

impl Engine {
    /// Frees the stored copy of a page of the region, which is most likely out of date: a page that
    /// leaves with one is compared with it, and packed where that differs. False if the copy is the
    /// only content of a part, or the page is busy: then it stays as it is.
    fn gives_up_copy(&self, span: &Span, index: usize) -> bool {
        let Some(word) = try_take(span.entry(index)) else { return false };
        let Backing::Handle(handle) = word.backing() else {
            give(span.entry(index), word);
            return true;
        };
        let stored = Handle::from_bits(handle);
        // The others read as zero without it, too.
        let is_needed = !self.store.content_of(stored).without(word.resident()).is_empty();
        let after = if is_needed { word } else { word.with_backing(Backing::None) };
        if !is_needed {
            self.store.free(stored);
            self.ledger.changed(word, after);
        }
        give(span.entry(index), after);
        !is_needed
    }
}

impl Drop for Slowing {
    fn drop(&mut self) {
        self.full_speed();
    }
}

/// Wakes all threads that wait, once the thread that would is about to end.
struct Lifts {
    engine: Arc<Engine>,
    pages: Arc<SlowedPages>,
}

impl Drop for Lifts {
    fn drop(&mut self) {
        self.pages.end();
        self.engine.space.wake(self.pages.range);
    }
}
