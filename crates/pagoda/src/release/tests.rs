//! Closing on real userfaultfd, with an auditor that walks tables and stores.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use pagoda_core::page::BasePage;
use pagoda_core::page_entry::{Backing, Word};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use super::*;
use crate::state::closed::Closed;
use crate::stats::counters::Stats;
use crate::table::{give, try_take};
use crate::{Bytes, Manager, Region};

const BASE: usize = 64 << 10;
/// Base pages of a region, and how many of them are paged out: three of five.
const PAGES: usize = 400;
const OUT: usize = PAGES / 5 * 3;

/// Walks all tables and the store: every handle is in one entry, and the store has these pages,
/// those that are queued, those of closed owners that are not walked yet, and no other.
fn audit(engine: &Engine) {
    let table = engine.gate_exclusive();
    let mut known = HashSet::new();
    let mut seen_arrays = HashSet::new();
    let mut know = |word: Word| {
        assert!(!word.is_busy(), "no thread moves pages now");
        if let Backing::Handle(bits) = word.backing()
            && Handle::from_bits(bits).takes_room()
        {
            assert!(known.insert(bits), "two entries have handle {bits}");
        }
    };
    for span in table.spans() {
        if seen_arrays.insert(Arc::as_ptr(span.entries()).cast::<u8>()) {
            (0..span.entries().len()).for_each(|index| know(span.word(index)));
        }
    }
    let in_tables = known.len() as u64;
    // Others free meanwhile: what is counted first may be gone from the store, and nothing comes.
    let closed: u64 = engine.closed.queue.lock().owners().map(|closed| stored_at_most(closed)).sum();
    let queued = engine.store.releases().queued_entries();
    let objects = engine.store.usage().objects;
    assert!(
        (in_tables..=in_tables + queued + closed).contains(&objects),
        "{in_tables} in tables, {queued} queued, {closed} of closed owners, {objects} in the store"
    );
    engine.store.releases().assert_whole();
}

/// The stored pages of a closed owner, with those that a thread has taken out of their entries to
/// free them. Nothing is freed in the first sweep, and the second one's pages are counted.
fn stored_at_most(closed: &Closed) -> u64 {
    let counted = closed.stored.load(Ordering::Acquire);
    let words =
        closed.parts.iter().flat_map(|(_, entries, whole)| whole.clone().map(|index| entries.word(index)));
    let takes_room =
        |word: &Word| matches!(word.backing(), Backing::Handle(bits) if Handle::from_bits(bits).takes_room());
    counted.max(words.filter(takes_room).count() as u64)
}

/// None where this machine has no moves, which is said.
fn manager(budget_mib: u64, base: BasePage, policy: ReleasePolicy) -> Option<Manager> {
    if skip_without_moves("releases") {
        return None;
    }
    let builder = Manager::builder().budget(Bytes::mib(budget_mib)).base_page(base).user_mode_only(true);
    Some(builder.tune(|tuning| tuning.release(policy)).build().expect("manager"))
}

fn content(page: usize, byte: usize) -> u8 {
    if byte.is_multiple_of(4) { (page * 31 + byte / 4 * 17 + (byte >> 12)) as u8 } else { page as u8 }
}

fn filled(manager: &Manager) -> Region {
    let mut region = manager.region(Bytes::new((PAGES * BASE) as u64)).create().expect("region");
    let mut bytes = vec![0; BASE];
    for page in 0..PAGES {
        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = content(page, i));
        region.write_at(page * BASE, &bytes).expect("written");
    }
    let is_out = |page: &usize| page % 5 < 3;
    // A page that the kernel has only just made may be busy for a moment, and stays then.
    until("pages are busy no more", || {
        for page in (0..PAGES).filter(is_out) {
            region.page_out(page * BASE, BASE).expect("room in the store");
        }
        stored_entries(&manager.engine(), &region) == OUT
    });
    region
}

/// How many entries of a region are stored and nothing else.
fn stored_entries(engine: &Engine, region: &Region) -> usize {
    let table = engine.gate_exclusive();
    let span = table.find(region.as_ptr().addr()).expect("managed");
    let range = PageRange::at(region.as_ptr().addr(), region.len());
    let words = span.indices(range, BASE).map(|index| span.word(index));
    words.filter(|word| matches!(word.backing(), Backing::Handle(_)) && word.resident().is_empty()).count()
}

fn assert_balanced(stats: &Stats, freed: u64) {
    assert_eq!(stats.release_queued + stats.release_inline, stats.release_freed, "{stats:?}");
    assert_eq!((stats.release_freed, stats.release_queued_bytes), (freed, 0), "{stats:?}");
}

/// All owners are closed and released, and the auditor finds nothing.
fn assert_released(manager: &Manager, freed: u64) {
    let stats = manager.stats();
    assert_balanced(&stats, freed);
    assert_eq!((stats.resident_bytes, stats.staged_bytes, stats.stored_bytes), (0, 0, 0), "{stats:?}");
    audit(&manager.engine());
}

#[test]
fn counters_balance_at_every_exit_and_the_auditor_finds_nothing() {
    for policy in ReleasePolicy::ALL {
        let Some(manager) = manager(256, BasePage::K64, policy) else { return };
        let engine = manager.engine();
        let [closed, discarded, kept, dropped] = [(); 4].map(|()| filled(&manager));
        audit(&engine);
        assert_eq!(manager.stats().stored_bytes, (4 * OUT * BASE) as u64);

        let account = closed.account();
        closed.close();
        audit(&engine);
        manager.flush_releases();
        audit(&engine);
        assert_balanced(&manager.stats(), OUT as u64);
        let released = account.released();
        assert_eq!((released.freed, released.bytes), (OUT as u64, (OUT * BASE) as u64));
        assert!(released.cpu_ns > 0 && released.stored_back_ns > 0, "{released:?}");
        let background = policy.workers() > 0;
        if background {
            assert_eq!((released.early, released.inline), (0, 0), "{policy:?}: the frames are back first");
            assert!(released.frames_back_ns <= released.stored_back_ns);
        }
        assert_eq!(released.early > 0, policy == ReleasePolicy::OneAtATime, "{released:?}");

        // Half is discarded, and reads zero; the other half is as it was.
        discarded.discard(0, PAGES / 2 * BASE).expect("discard");
        let mut byte = [1];
        discarded.read_at(BASE, &mut byte).expect("read");
        assert_eq!(byte, [0]);
        discarded.read_at((PAGES - 2) * BASE + 4, &mut byte).expect("read");
        assert_eq!(byte, [content(PAGES - 2, 4)]);
        manager.flush_releases();
        assert_balanced(&manager.stats(), (OUT + OUT / 2) as u64);
        audit(&engine);

        // The rest ends with the manager, which does not wait to be flushed.
        drop((discarded, kept, dropped));
        drop(manager);
        audit(&engine);
        engine.publish_library_gauges();
        let stats = engine.counters.snapshot();
        assert_balanced(&stats, stats.release_freed);
        assert_eq!(engine.store.usage().objects, 0, "{policy:?}: nothing is leaked");
    }
}

/// The bytes that may be held above the budget for a moment, for each thread that stores: a segment
/// by which the store grew, and an evicted batch that is counted twice until it is stored.
const IN_FLIGHT_BYTES: u64 = (2 << 20) + (8 * BASE as u64);
/// Handlers, the reclaimer, and the caller.
const STORING_THREADS: u64 = crate::state::pending::HANDLERS_MAX as u64 + 2;

#[test]
fn an_equal_owner_opens_at_once_and_holds_no_more_than_the_one_before() {
    for policy in [ReleasePolicy::Background, ReleasePolicy::Workers, ReleasePolicy::Spans] {
        let Some(manager) = manager(64, BasePage::K64, policy) else { return };
        let len = Bytes::mib(length(80, 128));
        let mut bytes = vec![0; BASE];
        let mut round = |manager: &Manager| {
            let mut region = manager.region(len).create().expect("region");
            let mut peak = 0;
            for page in 0..region.len() / BASE {
                bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = content(page, i));
                region.write_at(page * BASE, &bytes).expect("written");
                if page % 16 == 0 {
                    peak = peak.max(manager.stats().anon_bytes);
                }
            }
            let mut back = [0; 16];
            for page in 0..region.len() / BASE {
                region.read_at(page * BASE, &mut back).expect("read");
                assert!((0..16).all(|i| back[i] == content(page, i)), "page {page}");
            }
            region.close();
            peak
        };
        let before = round(&manager);
        for _ in 0..length(2, 3) {
            let peak = round(&manager);
            let bound = before + STORING_THREADS * IN_FLIGHT_BYTES;
            assert!(peak <= bound, "{policy:?}: {peak} at once, {before} before");
        }
        manager.flush_releases();
        let stats = manager.stats();
        assert!(stats.release_queued > 0, "{stats:?}");
        assert_released(&manager, stats.release_freed);
    }
}

/// Closes a region in a thread of its own, which is left alone if it never returns.
fn close_elsewhere(region: Region) -> Arc<AtomicBool> {
    let is_closed = Arc::new(AtomicBool::new(false));
    let closed = Arc::clone(&is_closed);
    std::thread::spawn(move || {
        region.close();
        closed.store(true, Ordering::Release);
    });
    is_closed
}

#[test]
fn a_close_waits_for_no_handler_and_no_worker() {
    let Some(manager) = manager(256, BasePage::K64, ReleasePolicy::Background) else { return };
    let engine = manager.engine();
    let region = filled(&manager);
    engine.quit_handlers.store(true, Ordering::Release);
    engine.end_workers();
    manager.join_threads(&["pagoda-handler", "pagoda-release"]);
    let is_closed = close_elsewhere(region);
    until("a close where no handler is", || is_closed.load(Ordering::Acquire));
    let stats = manager.stats();
    assert_eq!(
        (stats.events_unmap, stats.resident_bytes, stats.staged_bytes),
        (0, 0, 0),
        "its frames are back"
    );
    assert_eq!(stats.release_queued_bytes, (OUT * BASE) as u64, "the stored pages wait");
    manager.flush_releases();
    assert_released(&manager, OUT as u64);
}

/// A close that meets an entry which another thread moves can't go on. The others do.
#[test]
fn no_thread_waits_while_a_close_walks_its_entries() {
    let Some(manager) = manager(256, BasePage::K64, ReleasePolicy::Background) else { return };
    let engine = manager.engine();
    let region = filled(&manager);
    let mut other = manager.region(Bytes::mib(16)).create().expect("region");
    let start = region.as_ptr().addr();
    let entries = Arc::clone(engine.gate_shared().find(start).expect("managed").entries());
    let word = try_take(&entries[7]).expect("no thread moves it");
    let is_closed = close_elsewhere(region);
    let has_gone_on = Arc::new(AtomicBool::new(false));
    let (others_engine, goes_on) = (manager.engine(), Arc::clone(&has_gone_on));
    let other = std::thread::spawn(move || {
        until("the region has left the table", || others_engine.gate_shared().find(start).is_none());
        // Faults of another owner, and an event.
        other.write_at(5 << 20, &[7]).expect("written");
        other.discard(0, BASE).expect("discard");
        goes_on.store(true, Ordering::Release);
        other
    });
    until("the others go on", || has_gone_on.load(Ordering::Acquire));
    assert!(!is_closed.load(Ordering::Acquire), "it waits for the entry");
    give(&entries[7], word);
    until("the close", || is_closed.load(Ordering::Acquire));
    other.join().expect("no panic").close();
    manager.flush_releases();
    assert_released(&manager, OUT as u64);
}

/// A worker that is not scheduled any more: the reclaimer sees it, or else the closing thread does.
#[test]
fn a_worker_that_stalls_is_counted_once_and_nothing_is_left_to_it() {
    let out = OUT as u64;
    for is_reclaimer_there in [true, false] {
        let Some(manager) = manager(256, BasePage::K64, ReleasePolicy::Background) else { return };
        let engine = manager.engine();
        let [first, second, third] = [(); 3].map(|()| filled(&manager));
        engine.store.releases().are_held.store(true, Ordering::Release);
        if !is_reclaimer_there {
            engine.quit.store(true, Ordering::Release);
            engine.bell.ring();
            manager.join_threads(&[crate::engine::shared::RECLAIMER]);
        }
        first.close();
        assert_eq!(manager.stats().release_queued, out);
        if is_reclaimer_there {
            until("the reclaimer sees it", || manager.stats().release_freed == out);
            assert_eq!(manager.stats().release_stalls, 1);
        } else {
            std::thread::sleep(std::time::Duration::from_micros(
                pagoda_core::release::queue::STALL_US + 100_000,
            ));
            assert_eq!(manager.stats().release_stalls, 0, "no thread has looked");
        }
        second.close();
        third.close();
        let stats = manager.stats();
        assert_eq!((stats.release_stalls, stats.release_freed), (1, 3 * out), "{stats:?}");
        let handed_over = if is_reclaimer_there { out } else { 2 * out };
        assert_eq!(stats.release_queued, handed_over, "from then on it is inline");
        audit(&engine);
    }
}

/// The gate of the published series: one owner alone frees its pages itself.
#[test]
fn behind_a_gate_of_two_an_owner_that_closes_alone_hands_nothing_over() {
    let out = OUT as u64;
    if skip_without_moves("releases") {
        return;
    }
    for (gate, queued) in [(0, out), (1, out), (2, 0)] {
        let builder = Manager::builder().budget(Bytes::mib(256)).user_mode_only(true);
        let tuned = |tuning: crate::Tuning| tuning.release(ReleasePolicy::Background).release_gate(gate);
        let manager = builder.tune(tuned).build().expect("manager");
        filled(&manager).close();
        manager.flush_releases();
        let stats = manager.stats();
        assert_eq!((stats.release_queued, stats.release_inline), (queued, out - queued), "gate {gate}");
        let releases = &manager.engine().store;
        let first = releases.releases().closer();
        assert_eq!(first.opens_the_gate(), gate < 2);
        assert!(releases.releases().closer().opens_the_gate(), "the second one");
    }
}

/// Owners close and open from several threads at once, at the addresses that the others left.
#[test]
fn owners_that_close_beside_each_other_lose_nothing() {
    let Some(manager) = manager(512, BasePage::K64, ReleasePolicy::default()) else { return };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let region = filled(&manager);
                    let mut byte = [0];
                    for page in (0..PAGES).step_by(7) {
                        region.read_at(page * BASE + 8, &mut byte).expect("read");
                        assert_eq!(byte, [content(page, 8)], "page {page}");
                    }
                    region.close();
                }
            });
        }
    });
    manager.flush_releases();
    assert_eq!(manager.engine().store.usage().objects, 0);
    assert_released(&manager, manager.stats().release_freed);
}

#[path = "spans_tests.rs"]
mod spans_tests;
