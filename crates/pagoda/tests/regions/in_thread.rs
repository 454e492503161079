//! Faults that are served in the thread that has them (SIGBUS mode): every byte against a shadow,
//! and SIGBUS of other causes left to others.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::bus::{BUS_ERROR, end_on_bus_error, touch_beyond_a_file};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::process::{fork, wait};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use rustix::process::{Pid, Signal, kill_process_group};

const PAGE_WORDS: usize = 512;
const REGION: Bytes = Bytes::mib(48);
const THREADS: u64 = 3;

/// Of a thread: by the last look at all of it each has touched more than its part of the budget.
fn steps() -> usize {
    length(10_000, 20_000)
}

fn manager(base: BasePage) -> Manager {
    let builder = Manager::builder().budget(Bytes::mib(64)).base_page(base).serve_in_thread(true);
    builder.spill_to("/var/tmp", Bytes::gib(1)).build().expect("manager")
}

/// Writes, reads, discards and pages out for so many steps, and looks at all of it in the end.
fn work(mut region: Region, seed: u64, steps: usize) {
    let mut random = Random::new(seed, 0);
    let pages = region.len() / 4096;
    // Of each page the word that it was filled with; each other word follows from it.
    let mut shadow = vec![0u64; pages];
    let word = |seed: u64, index: usize| if seed == 0 { 0 } else { seed.rotate_left(index as u32 / 8) };
    for step in 0..steps {
        let page = random.below(pages);
        match random.below(100) {
            0 => {
                let count = (1 + random.below(40)).min(pages - page);
                region.discard(page * 4096, count * 4096).expect("discarded");
                shadow[page..page + count].fill(0);
            }
            1 => region.page_out(page * 4096, 4096 * (pages - page).min(64)).expect("room in the store"),
            2..50 => {
                let seed = random.next();
                shadow[page] = seed;
                let words = &mut region.words_mut()[page * PAGE_WORDS..][..PAGE_WORDS];
                words.iter_mut().enumerate().for_each(|(index, to)| *to = word(seed, index));
            }
            _ => {
                let index = random.below(PAGE_WORDS);
                let found = region.words_mut()[page * PAGE_WORDS + index];
                assert_eq!(found, word(shadow[page], index), "step {step}, page {page}, word {index}");
            }
        }
    }
    for (page, words) in region.words_mut().chunks(PAGE_WORDS).enumerate() {
        for (index, found) in words.iter().enumerate() {
            assert_eq!(*found, word(shadow[page], index), "page {page}, word {index}");
        }
    }
}

#[test]
fn threads_writes_are_read_in_regions_of_all_base_pages_side_by_side() {
    if skip_without_moves("faults in their own threads") {
        return;
    }
    let manager = manager(BasePage::K64);
    thread::scope(|scope| {
        for base in BasePage::ALL {
            let region = manager.region(REGION).base_page(base).create().expect("region");
            scope.spawn(move || work(region, 0x9e37_79b9 + base.bytes() as u64, steps()));
        }
    });
    let stats = manager.stats();
    let counts = [stats.faults_huge, stats.faults_staged, stats.faults_stored, stats.stores];
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn threads_writes_are_read_at_each_base_page() {
    if skip_without_moves("faults in their own threads") {
        return;
    }
    for base in BasePage::ALL {
        let manager = manager(base);
        thread::scope(|scope| {
            for id in 0..THREADS {
                let region = manager.region(REGION).create().expect("region");
                scope.spawn(move || work(region, 0x9e37_79b9 * (id + 1) + base.bytes() as u64, steps()));
            }
        });
        let stats = manager.stats();
        assert!(stats.stores > 0 && stats.faults_stored > 0, "it ran over its budget: {stats:?}");
        assert!(stats.anon_peak_bytes <= (64 + 16) << 20, "{} is over budget", stats.anon_peak_bytes);
    }
}

#[test]
fn a_fault_needs_no_more_stack_than_is_documented() {
    if skip_without_moves("faults on small stacks") {
        return;
    }
    let manager = manager(BasePage::K64);
    let regions: Vec<_> = (0..THREADS).map(|_| manager.region(REGION).create().expect("region")).collect();
    let threads: Vec<_> = (regions.into_iter().zip(0..))
        .map(|(region, seed)| {
            // The stack of the work itself is on top of it.
            let thread = thread::Builder::new().stack_size((64 + 16) << 10);
            thread.spawn(move || work(region, seed + 5, steps())).expect("a thread")
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("right content"));
    assert!(manager.stats().faults_stored > 0, "{:?}", manager.stats());
}

#[test]
fn managers_come_and_go_while_others_serve() {
    if skip_without_moves("managers with faults in their own threads") {
        return;
    }
    thread::scope(|scope| {
        for id in 0..THREADS {
            scope.spawn(move || {
                for round in 0..length(10, 20) {
                    let region = manager(BasePage::K64).region(Bytes::mib(4)).create().expect("region");
                    work(region, 77 * (id + 1) + round, 300);
                }
            });
        }
    });
}

const ROLE: &str = "PAGODA_TEST_ROLE";

/// Not a test: the work of the other processes.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "handled" {
        end_on_bus_error().expect("a handler");
    }
    let manager = manager(BasePage::K64);
    if role == "forking" {
        fork_while_others_fault(&manager);
        return;
    }
    let mut region = manager.region(Bytes::mib(4)).create().expect("region");
    region.words_mut().fill(7);
    assert!(region.words_mut().iter().all(|word| *word == 7));
    let read = touch_beyond_a_file();
    unreachable!("a byte that is not there: {read:?}");
}

/// Children see a bus error of another cause while the parent's engine may be in the middle of
/// anything.
fn fork_while_others_fault(manager: &Manager) {
    let is_done = AtomicBool::new(false);
    let begun = Barrier::new(THREADS as usize + 1);
    thread::scope(|scope| {
        for id in 0..THREADS {
            let mut region = manager.region(Bytes::mib(8)).create().expect("region");
            let (is_done, begun) = (&is_done, &begun);
            scope.spawn(move || {
                let mut random = Random::new(3, id);
                begun.wait();
                while !is_done.load(Ordering::Relaxed) {
                    // Each discard is an event, for which the engine closes its gate.
                    let page = random.below(2048);
                    region.words_mut()[page * PAGE_WORDS] = 1;
                    region.discard(page * 4096, 4096).expect("discarded");
                }
            });
        }
        begun.wait();
        let children: Vec<_> = (0..length(1000, 2000))
            .map(|_| fork(|| touch_beyond_a_file().map_or(1, i32::from)).expect("a child"))
            .collect();
        for child in children {
            assert_eq!(wait(child).expect("waited for").terminating_signal(), Some(7));
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

fn run(role: &str) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "regions::in_thread::role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    let mut running = command.stdout(Stdio::null()).process_group(0).spawn().expect("run");
    let begin = Instant::now();
    loop {
        if let Some(status) = running.try_wait().expect("waited for") {
            return status;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            // Its children, too.
            kill_process_group(Pid::from_child(&running), Signal::KILL).expect("killed");
            panic!("{role} hangs");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_bus_error_of_no_region_goes_where_it_went_before() {
    if skip_without_moves("bus errors of other causes") {
        return;
    }
    assert_eq!(run("handled").code(), Some(BUS_ERROR));
    assert_eq!(run("unhandled").signal(), Some(7));
}

#[test]
fn a_forked_child_never_waits_for_its_parents_engine() {
    if skip_without_moves("bus errors in children") {
        return;
    }
    assert_eq!(run("forking").code(), Some(0));
}
