//! Spans that are handed over: nothing of them is walked by the closing thread, on any layout.

use pagoda_linux::process::thread::now_ns;
use pagoda_linux::testing::access::Access;
use pagoda_linux::testing::area::Area;

use super::*;

/// The order in which the pages of a region are stored.
#[derive(Clone, Copy, Debug)]
enum Layout {
    InOrder,
    Shuffled,
    /// In order, and then half of them again, at random.
    Rewritten,
}

fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut pages: Vec<usize> = (0..count).collect();
    let mut word = seed;
    for at in (1..count).rev() {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        pages.swap(at, (word >> 33) as usize % (at + 1));
    }
    pages
}

fn held_by(manager: &Manager, yes: bool) {
    manager.engine().store.releases().are_held.store(yes, Ordering::Release);
    manager.engine().store.releases().ring();
}

/// A region of `count` stored base pages. Each differs from the others and takes room.
fn stored(manager: &Manager, base: BasePage, count: usize, layout: Layout) -> Region {
    let base = base.bytes();
    let mut region = manager.region(Bytes::new((count * base) as u64)).create().expect("region");
    let fill = |region: &mut Region, page: usize, salt: usize| {
        for at in (0..base).step_by(512) {
            region.write_at(page * base + at, &(page * 131 + at + salt).to_le_bytes()).expect("written");
        }
    };
    let order = match layout {
        Layout::InOrder | Layout::Rewritten => (0..count).collect(),
        Layout::Shuffled => shuffled(count, 7),
    };
    let go = |region: &mut Region, order: &[usize], salt: usize| {
        for pages in order.chunks(16) {
            pages.iter().for_each(|page| fill(region, *page, salt));
            for page in pages {
                region.page_out(page * base, base).expect("room in the store");
            }
        }
    };
    go(&mut region, &order, 1);
    if matches!(layout, Layout::Rewritten) {
        go(&mut region, &shuffled(count, 9)[..count / 2], 2);
    }
    until("all of it is stored", || {
        region.page_out(0, region.len()).expect("room in the store");
        manager.stats().stored_bytes == region.len() as u64 && manager.stats().staged_bytes == 0
    });
    region
}

/// More entries than twenty batches of single handles have words, where they are of 4 KiB.
#[test]
fn a_close_frees_nothing_inline_on_any_layout() {
    assert_eq!(ReleasePolicy::default(), ReleasePolicy::Spans);
    for (base, count, policy) in [
        (BasePage::K4, 12_000, ReleasePolicy::Spans),
        (BasePage::K4, 12_000, ReleasePolicy::Background),
        (BasePage::K64, 600, ReleasePolicy::Spans),
    ] {
        for layout in [Layout::InOrder, Layout::Shuffled, Layout::Rewritten] {
            let Some(manager) = manager(256, base, policy) else { return };
            let region = stored(&manager, base, count, layout);
            let account = region.account();
            held_by(&manager, true);
            region.close();
            let at_close = account.released();
            assert_eq!((at_close.inline, at_close.freed), (0, 0), "{layout:?} {base:?}: the worker has it");
            assert_eq!(manager.engine().store.usage().objects, count as u64, "and it is still held");
            let keeps_table = manager.stats().table_bytes > 0;
            assert_eq!(keeps_table, policy == ReleasePolicy::Spans, "and so is its table");
            held_by(&manager, false);
            manager.flush_releases();
            let released = account.released();
            let count = count as u64;
            assert_eq!((released.queued, released.inline, released.freed), (count, 0, count), "{layout:?}");
            assert_eq!((released.early, manager.stats().table_bytes), (0, 0), "{layout:?}");
            assert_released(&manager, count);
        }
    }
}

/// The worker does not run: the manager's end does its work.
#[test]
fn a_manager_that_is_dropped_releases_what_closed_before() {
    let Some(manager) = manager(256, BasePage::K64, ReleasePolicy::Spans) else { return };
    let engine = manager.engine();
    held_by(&manager, true);
    let first = filled(&manager);
    let second = filled(&manager);
    first.close();
    second.close();
    assert_eq!(engine.store.usage().objects, 2 * OUT as u64);
    drop(manager);
    assert_eq!(engine.store.usage().objects, 0);
    engine.publish_library_gauges();
    let stats = engine.counters.snapshot();
    assert_eq!((stats.release_queued, stats.release_freed), (2 * OUT as u64, 2 * OUT as u64));
    assert_eq!((stats.resident_bytes, stats.staged_bytes, stats.table_bytes), (0, 0, 0));
}

/// The entry is neither waited for by the close, nor lost. A new region, perhaps at the same
/// addresses, has entries of its own.
#[test]
fn a_busy_page_is_left_to_the_worker_and_a_new_region_is_another() {
    let Some(manager) = manager(256, BasePage::K64, ReleasePolicy::Spans) else { return };
    let region = filled(&manager);
    let start = region.as_ptr().addr();
    let entries = Arc::clone(manager.engine().gate_shared().find(start).expect("managed").entries());
    // One in memory and one that is stored: each is found by another sweep.
    let words = [4, 10].map(|index| (index, try_take(&entries[index]).expect("no thread moves it")));
    let account = region.account();
    region.close();
    assert_eq!(account.released().frames_back_ns, 0, "it does not wait, and they are not back");
    let next = filled(&manager);
    assert_eq!(account.released().freed, 0, "frames come first");
    // The worker looks at the busy ones again and again, and at those in between. A thread without
    // room may hold a busy one: it must be told that there is nothing more.
    let engine = manager.engine();
    until("no more is to be had", || !engine.help_with_spans());
    assert!(manager.stats().release_queued_bytes <= (OUT * BASE) as u64, "each is counted once");
    for (index, word) in words {
        give(&entries[index], word);
    }
    until("the worker has them", || account.released().freed == OUT as u64);
    let mut byte = [0];
    for page in 0..PAGES {
        next.read_at(page * BASE + 4, &mut byte).expect("read");
        assert_eq!(byte, [content(page, 4)], "page {page}");
    }
    next.close();
    manager.flush_releases();
    drop(entries);
    assert_released(&manager, 2 * OUT as u64);
}

/// The worker does not run, and the next region needs the memory.
#[test]
fn frames_of_a_closed_region_are_taken_before_anything_is_evicted() {
    let Some(manager) = manager(64, BasePage::K64, ReleasePolicy::Spans) else { return };
    held_by(&manager, true);
    let fill = |region: &mut Region| {
        for at in (0..region.len()).step_by(4096) {
            region.write_at(at, &(at + 1).to_le_bytes()).expect("written");
        }
    };
    let mut peak = 0;
    let mut round = || {
        // A worker that is found stalled gets nothing any more, and a close walks its entries.
        let engine = manager.engine();
        engine.closed.queue.lock().worker_gets_on(now_ns() / 1000);
        let of = |stats: Stats| (stats.evictions, stats.release_stalls);
        let before = of(manager.stats());
        let has_closed = engine.closed.queue.lock().has_frames();
        let mut region = manager.region(Bytes::mib(36)).create().expect("region");
        fill(&mut region);
        peak = peak.max(manager.stats().anon_bytes);
        region.close();
        (has_closed, of(manager.stats()) == before)
    };
    assert_eq!(round(), (false, true), "there is room");
    // Without help each round evicts all that does not fit, 128 base pages and more. With it a
    // thread evicts only while another one is kept from running with the last piece.
    until("a round evicts nothing", || round() == (true, true));
    assert!(peak <= (64 << 20) + IN_FLIGHT_BYTES, "{peak}");
    held_by(&manager, false);
    manager.flush_releases();
    assert_released(&manager, manager.stats().release_freed);
}

/// Others' faults are served while an entry of the range is busy: no handler walks it.
#[test]
fn no_fault_waits_for_the_entries_of_a_large_unmapping_or_discard() {
    const LEN: usize = 64 << 20;
    let Some(manager) = manager(256, BasePage::K64, ReleasePolicy::Spans) else { return };
    let engine = manager.engine();
    let access = Access::begin().expect("signal handlers");
    for is_unmapped in [true, false] {
        let mut area = Area::new(LEN / 4096, 0).expect("memory");
        let region = manager.adopt(area.foreign()).expect("adopted");
        for page in (0..LEN / 4096).step_by(4) {
            area.write(&access, page, 0, page as u64 + 1).expect("it is ours");
        }
        until("it is stored", || {
            region.page_out(0, LEN).expect("room in the store");
            // A quarter of it has content.
            manager.stats().stored_bytes == LEN as u64 / 4 && manager.stats().staged_bytes == 0
        });
        let start = area.foreign().range().start();
        let entries = Arc::clone(engine.gate_shared().find(start).expect("managed").entries());
        let index = entries.len() / 2;
        let word = try_take(&entries[index]).expect("no thread moves it");
        let pages = 0..LEN / 4096;
        if is_unmapped { area.map(pages) } else { area.discard(pages) }.expect("done");
        // A fault of another owner, beside the event, which is read by now.
        let mut other = manager.region(Bytes::mib(1)).create().expect("region");
        other.write_at(0, &[7]).expect("written");
        let mut gate =
            || engine.gate_shared().find(start).is_none_or(|span| !Arc::ptr_eq(span.entries(), &entries));
        until("the event is applied", &mut gate);
        other.write_at(1 << 19, &[7]).expect("written");
        assert_eq!(area.read(&access, 4, 0), Ok(0), "nothing comes back");
        area.write(&access, 8, 0, 5).expect("it is ours");
        give(&entries[index], word);
        manager.flush_releases();
        assert_eq!(area.read(&access, 8, 0), Ok(5), "nor is anything lost");
        other.close();
        drop((region, entries));
        manager.flush_releases();
        assert_released(&manager, manager.stats().release_freed);
    }
}
