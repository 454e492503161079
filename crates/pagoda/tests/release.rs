//! Closing while threads of a real-time class have every processor: nothing waits for a worker or a
//! handler that does not run.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pagoda::{Bytes, Manager, ReleasePolicy};
use pagoda_linux::testing::skip::{skip, skip_without_moves};
use pagoda_linux::testing::wait::{EndsWith, until};
use rustix::thread::{gettid, sched_getaffinity};

const WHAT: &str = "closing under real-time load";
const BASE: usize = 64 << 10;
const PAGES: usize = 64;
/// More than a work item has batches.
const OWNERS: usize = 40;
/// The load ends after that also where closes wait for it, as they must not: they take no
/// thousandth of it.
const LOAD_MOST: Duration = Duration::from_secs(20);

/// Gives a thread of this process a priority in the real-time class. False if that is not
/// permitted.
fn real_time(thread: i32, priority: u32) -> bool {
    let status = Command::new("chrt").args(["-f", "-p", &priority.to_string(), &thread.to_string()]).output();
    status.is_ok_and(|output| output.status.success())
}

fn own_number() -> i32 {
    gettid().as_raw_nonzero().get()
}

#[test]
fn closes_return_while_real_time_threads_have_every_processor() {
    if skip_without_moves(WHAT) {
        return;
    }
    let builder = Manager::builder().budget(Bytes::mib(512)).user_mode_only(true);
    let manager = builder.tune(|tuning| tuning.release(ReleasePolicy::Background)).build().expect("manager");
    let mut regions = Vec::new();
    for owner in 0..OWNERS {
        let mut region = manager.region(Bytes::new((PAGES * BASE) as u64)).create().expect("region");
        for at in (0..region.len()).step_by(512) {
            region.write_at(at, &(at * (owner + 3)).to_le_bytes()).expect("written");
        }
        region.page_out(0, region.len()).expect("room in the store");
        regions.push(region);
    }
    let stored = manager.stats().stored_bytes / BASE as u64;
    // A few may have been busy, and stay.
    assert!(stored as usize > OWNERS * PAGES / 2, "{stored} stored");

    // The closing thread goes before the load; all threads of the manager, handlers and worker,
    // behind it, as all ordinary threads do.
    if !real_time(own_number(), 20) {
        return skip(WHAT, "this process may not use the real-time class, or there is no chrt");
    }
    // All that this process may run on, whatever share of their time it has.
    let processors = sched_getaffinity(None).expect("known").count() as usize;
    let events =
        |stats: &pagoda::stats::counters::Stats| [stats.events_unmap, stats.events_remove, stats.faults];
    let before = events(&manager.stats());
    let [ready, permitted] = [const { AtomicUsize::new(0) }; 2];
    let [go, stop, waited] = [const { AtomicBool::new(false) }; 3];
    std::thread::scope(|scope| {
        let ends = EndsWith(&stop);
        for _ in 0..processors {
            // They inherit the class of the thread that makes them, and step back.
            scope.spawn(|| {
                permitted.fetch_add(usize::from(real_time(own_number(), 10)), Ordering::SeqCst);
                ready.fetch_add(1, Ordering::SeqCst);
                let mut loaded = None;
                while !stop.load(Ordering::SeqCst) {
                    if !go.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    } else if loaded.get_or_insert_with(Instant::now).elapsed() < LOAD_MOST {
                        std::hint::spin_loop();
                    } else {
                        return waited.store(true, Ordering::SeqCst);
                    }
                }
            });
        }
        until("a thread for each processor", || {
            std::thread::sleep(Duration::from_millis(1));
            ready.load(Ordering::SeqCst) == processors
        });
        assert_eq!(permitted.load(Ordering::SeqCst), processors, "as this thread was");
        go.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        regions.into_iter().for_each(pagoda::Region::close);
        // Only here does the load end: had a close waited for the worker, it would have ended by
        // itself.
        drop(ends);
    });
    assert!(!waited.load(Ordering::SeqCst), "closes did not return under the load");
    let at_close = manager.stats();
    // A close waits for nothing that a handler would have to read, apply or serve, for any number
    // of owners and entries.
    assert_eq!(events(&at_close), before, "no handler had anything to do");
    assert_eq!(at_close.resident_bytes, 0, "and all frames are back");
    assert_eq!(
        at_close.release_queued + at_close.release_inline,
        stored,
        "every entry went one way or the other"
    );
    manager.flush_releases();
    let stats = manager.stats();
    assert_eq!(stats.release_queued + stats.release_inline, stats.release_freed);
    assert_eq!((stats.release_freed, stats.stored_bytes, stats.release_early), (stored, 0, 0));
}
