//! Writers that are faster than the line are slowed down by their own faults, and by nothing else:
//! none of them here heeds a request to be slower.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pagoda::migrate::{Codec, Error, LiveOptions, Moved, Otherwise, Pace, Writer, ZeroPolicy};
use pagoda::{BasePage, Bytes, Managed, Manager, Region};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::migrate::adopted::Mapped;
use crate::migrate::program::{Memory, PAGE};
use crate::migrate::support::{any_port, live_options, manager, receive_options};

/// A region of 16 MiB and a line that takes half a second for it.
pub const PAGES: usize = 4096;
const LINE: Bytes = Bytes::mib(32);

/// How many pages the writer writes between two pauses, and those: at best three times as much as
/// the line carries. A busy machine only makes it slower.
const TURN: u64 = 64;
const PAUSE: Duration = Duration::from_micros(2600);

/// A writer that writes a word of each page in turn, and never does what it is asked.
pub struct Deaf<'a> {
    memory: &'a dyn Memory,
    /// The word that was written last to each page, and how many were written in all.
    shadow: Vec<AtomicU64>,
    writes: AtomicU64,
    /// The page of its write, and 1; 0 between two.
    writes_at: AtomicU64,
    reads: AtomicU64,
    only_reads: AtomicBool,
    /// Whether it looks at pages that it has written a while ago.
    pub looks: bool,
    wanted: AtomicBool,
    stands: AtomicBool,
}

impl<'a> Deaf<'a> {
    /// Fills the memory with pages that no codec or fill makes shorter.
    pub fn new(memory: &'a dyn Memory) -> Self {
        let shadow: Vec<_> = (0..PAGES as u64).map(|page| AtomicU64::new(page * 512 + 1)).collect();
        for page in 0..PAGES as u64 {
            let words: [[u8; 8]; 512] = std::array::from_fn(|at| (page * 512 + at as u64 + 1).to_ne_bytes());
            memory.write(page as usize * PAGE, words.as_flattened());
        }
        let flag = || AtomicBool::new(false);
        let (only_reads, wanted, stands) = (flag(), flag(), flag());
        let [writes, writes_at, reads] = [const { AtomicU64::new(0) }; 3];
        Self { memory, shadow, writes, writes_at, reads, only_reads, looks: true, wanted, stands }
    }

    pub fn run(&self) {
        let mut turn = 0u64;
        while !self.wanted.load(Ordering::Acquire) {
            turn += 1;
            let page = turn as usize % PAGES;
            if self.only_reads.load(Ordering::Acquire) {
                self.look_at(page);
            } else {
                if self.looks && turn.is_multiple_of(3) {
                    self.look_at((page + PAGES - PAGES / 16) % PAGES);
                }
                let word = turn << 32 | page as u64;
                self.writes_at.store(page as u64 + 1, Ordering::Release);
                self.memory.write(page * PAGE, &word.to_ne_bytes());
                self.writes_at.store(0, Ordering::Release);
                self.shadow[page].store(word, Ordering::Relaxed);
                self.writes.fetch_add(1, Ordering::Release);
            }
            if turn.is_multiple_of(TURN) {
                thread::sleep(PAUSE);
            }
        }
        self.stands.store(true, Ordering::Release);
    }

    fn look_at(&self, page: usize) {
        let mut found = [0; 8];
        self.memory.read(page * PAGE, &mut found);
        assert_eq!(u64::from_ne_bytes(found), self.shadow[page].load(Ordering::Relaxed), "page {page}");
        self.reads.fetch_add(1, Ordering::Release);
    }

    /// The page of a write that waits, if one soon does.
    pub fn waits_at(&self) -> Option<usize> {
        let writes = || match self.writes_at.load(Ordering::Acquire) {
            0 => None,
            page => Some((page as usize - 1, self.writes.load(Ordering::Acquire))),
        };
        waits(writes).map(|(page, _)| page)
    }

    /// Waits until each page was touched anew, or it is stopped.
    pub fn goes_round(&self) {
        let touches = if self.only_reads.load(Ordering::Acquire) { &self.reads } else { &self.writes };
        let touched = || touches.load(Ordering::Acquire);
        let most = touched() + PAGES as u64;
        until("each page is touched", || self.wanted.load(Ordering::Acquire) || touched() > most);
    }

    pub fn halt(&self) {
        self.wanted.store(true, Ordering::Release);
        until("the writer stands", || self.stands.load(Ordering::Acquire));
    }

    /// The word `at` of a page.
    pub fn word(&self, page: usize, at: usize) -> u64 {
        match at {
            0 => self.shadow[page].load(Ordering::Relaxed),
            _ => (page * 512 + at + 1) as u64,
        }
    }

    /// Whether all that was written is in `memory`, and nothing else.
    pub fn check(&self, memory: &dyn Memory, context: &str) {
        let mut found = [0u8; PAGE];
        for page in 0..PAGES {
            memory.read(page * PAGE, &mut found);
            for (at, word) in found.as_chunks().0.iter().enumerate() {
                let is = u64::from_ne_bytes(*word);
                let wrote = self.word(page, at);
                assert_eq!(is, wrote, "{context}: word {at} of page {page}");
            }
        }
    }
}

/// What `access` says at two looks, if it soon is the same: an access that waits, or a thread that
/// does not run.
pub fn waits<T: PartialEq>(access: impl Fn() -> Option<T>) -> Option<T> {
    (0..2000).find_map(|_| {
        let now = access();
        thread::sleep(Duration::from_micros(300));
        now.filter(|now| access().as_ref() == Some(now))
    })
}

/// As long as it is asked nothing the writer runs.
struct Stops<'a>(&'a Deaf<'a>);

impl Writer for &Stops<'_> {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        self.0.halt();
    }
}

pub fn options(downtime: Duration) -> LiveOptions {
    let mut options = LiveOptions {
        downtime,
        rounds: 100,
        otherwise: Otherwise::GiveUp,
        slow_most_percent: LiveOptions::SLOW_MOST_PERCENT,
        ..live_options(Codec::None, 2)
    };
    options.send.bandwidth = Some(LINE);
    options
}

/// Sends `region` to a new one, with `watch` told the pace of each round that begins, and compares
/// what arrived.
pub fn send(
    region: &Managed,
    deaf: &Deaf<'_>,
    options: &LiveOptions,
    mut watch: impl FnMut(&Pace) -> ControlFlow<()>,
    context: &str,
) -> Result<Moved, Error> {
    let to = manager(Bytes::mib(48), BasePage::K64);
    let (listener, receiving) = (any_port(), receive_options(ZeroPolicy::default()));
    let at = listener.endpoint().expect("an address");
    let stops = Stops(deaf);
    let (sent, received) = thread::scope(|scope| {
        let receive = || Region::receive(&to, listener, &receiving, &mut |_| ControlFlow::Continue(()));
        let receiver = scope.spawn(receive);
        let mut rounds = None;
        let sent = region.migrate_to(&at, options, &mut &stops, &mut |_, pace| {
            // The first look is from before the first round.
            if rounds.replace(pace.rounds) == Some(pace.rounds) && pace.rounds > 0 {
                return ControlFlow::Continue(());
            }
            watch(pace)
        });
        (sent, receiver.join().expect("the receiver"))
    });
    if sent.is_ok() {
        let (arrived, _) = received.unwrap_or_else(|error| panic!("{context}: {error}"));
        deaf.check(&arrived, context);
    }
    sent
}

/// Sends `region`, which `memory` is, while it is written faster than the line carries it.
fn outrun(region: &Managed, memory: &dyn Memory, context: &str) {
    outrun_by(region, &Deaf::new(memory), context);
}

/// Where a machine has much else to do, even the slowed writer writes more in a round than goes in
/// the shortest of these. All of it takes half a second.
const DOWNTIMES_MS: [u64; 3] = [100, 200, 300];

fn outrun_by(region: &Managed, deaf: &Deaf<'_>, context: &str) {
    let try_with = |downtime_ms| {
        let downtime = Duration::from_millis(downtime_ms);
        let moved = outrun_within(region, deaf, downtime, context);
        moved.map_err(|error| eprintln!("{context}: {error}")).ok().map(|moved| (moved.pace, downtime))
    };
    let moved = DOWNTIMES_MS.into_iter().find_map(try_with);
    let (pace, downtime) = moved.unwrap_or_else(|| panic!("{context}: it was never slow enough"));
    assert!(pace.downtime <= downtime, "{context}: {pace:?}");
    assert!(pace.rounds > 2 && pace.delayed_faults > 0, "{context}: {pace:?}");
    let most = Duration::from_micros(200) * u32::try_from(pace.delayed_faults).expect("few");
    assert!(pace.delayed >= most, "{context}: {pace:?}");
    deaf.check(deaf.memory, context);
}

fn outrun_within(
    region: &Managed,
    deaf: &Deaf<'_>,
    downtime: Duration,
    context: &str,
) -> Result<Moved, Error> {
    deaf.wanted.store(false, Ordering::Release);
    deaf.stands.store(false, Ordering::Release);
    thread::scope(|scope| {
        let writer = scope.spawn(|| deaf.run());
        // In the first two rounds all pages are written, however slow the machine is.
        let watch = |pace: &Pace| {
            if pace.rounds < 2 {
                deaf.goes_round();
            }
            ControlFlow::Continue(())
        };
        let moved = send(region, deaf, &options(downtime), watch, context);
        deaf.halt();
        writer.join().expect("the writer");
        moved
    })
}

fn region(manager: &Manager) -> Region {
    manager.region(Bytes::new((PAGES * PAGE) as u64)).create().expect("a region")
}

#[test]
fn a_writer_that_outruns_the_line_is_slowed_down_until_it_does_not() {
    if skip_without_moves("a writer that is slowed down") {
        return;
    }
    for base in [BasePage::K4, BasePage::K64, BasePage::M2] {
        let from = manager(Bytes::mib(64), base);
        let region = region(&from);
        outrun(&region, &region, &format!("{base:?}"));
    }
}

#[test]
fn a_writer_of_pages_with_a_stored_copy_is_slowed_down() {
    if skip_without_moves("a writer of pages with a stored copy") {
        return;
    }
    for base in [BasePage::K4, BasePage::K64] {
        let from = manager(Bytes::mib(64), base);
        let region = region(&from);
        let (deaf, context) = (Deaf::new(&region), format!("{base:?}"));
        region.page_out(0, region.len()).expect("stored");
        // Reading them leaves the copies.
        deaf.check(&region, &context);
        outrun_by(&region, &deaf, &context);
    }
}

#[test]
fn a_writer_of_adopted_memory_is_slowed_down() {
    if skip_without_moves("a writer of adopted memory") {
        return;
    }
    let from = manager(Bytes::mib(64), BasePage::K64);
    let mapped = Mapped::new(PAGES * PAGE);
    let region = mapped.adopt(&from);
    // The handle of the manager is nothing that a migration needs.
    drop(from);
    outrun(&region, &mapped.bytes, "adopted");
}

#[test]
fn a_writer_that_serves_its_own_faults_is_slowed_down() {
    if skip_without_moves("a writer that serves its own faults") {
        return;
    }
    let builder = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).serve_in_thread(true);
    let from = builder.build().expect("a manager");
    let region = region(&from);
    outrun(&region, &region, "in thread");
}

#[test]
fn pages_that_are_only_read_do_not_count_as_written() {
    if skip_without_moves("a slowed reader") {
        return;
    }
    for base in [BasePage::K4, BasePage::K64] {
        let from = manager(Bytes::mib(64), base);
        let region = region(&from);
        let deaf = Deaf::new(&region);
        let context = format!("{base:?}");
        let mut seen = 0;
        let moved = thread::scope(|scope| {
            let reader = scope.spawn(|| deaf.run());
            let watch = |pace: &Pace| {
                // All pages are written in the first round, and slowed after it. In all others all
                // of them are read.
                deaf.only_reads.store(pace.rounds > 0, Ordering::Release);
                deaf.goes_round();
                seen = pace.rounds;
                ControlFlow::Continue(())
            };
            // Not one page may be left.
            let moved = send(&region, &deaf, &options(Duration::ZERO), watch, &context);
            deaf.halt();
            reader.join().expect("the reader");
            moved
        });
        let pace = moved.unwrap_or_else(|error| panic!("{context}: {error}")).pace;
        assert!(pace.delayed_faults > 0 && seen > 0, "{context}: {pace:?}");
    }
}

#[test]
fn a_region_beyond_its_budget_loses_no_write_to_slowing_down() {
    if skip_without_moves("slowing down where memory is short") {
        return;
    }
    for base in [BasePage::K4, BasePage::K64] {
        let from = manager(Bytes::mib(16), base);
        // Half as much again as there is room for.
        let beside = from.region(Bytes::mib(8)).create().expect("a region");
        let content: [u8; PAGE] = std::array::from_fn(|at| at as u8);
        (0..beside.len() / PAGE).for_each(|page| beside.write_words(page * PAGE, &content).expect("written"));
        let region = region(&from);
        let deaf = Deaf::new(&region);
        let context = format!("{base:?}");
        let options = LiveOptions {
            rounds: 8,
            otherwise: Otherwise::StopForLonger,
            ..options(Duration::from_millis(20))
        };
        let moved = thread::scope(|scope| {
            let writer = scope.spawn(|| deaf.run());
            let moved = send(&region, &deaf, &options, |_| ControlFlow::Continue(()), &context);
            deaf.halt();
            writer.join().expect("the writer");
            moved
        });
        moved.unwrap_or_else(|error| panic!("{context}: {error}"));
        deaf.check(&region, &context);
    }
}

#[test]
fn a_migration_that_ends_otherwise_leaves_its_writer_at_full_speed() {
    if skip_without_moves("the end of slowing down") {
        return;
    }
    let from = manager(Bytes::mib(64), BasePage::K64);
    let region = region(&from);
    let deaf = Deaf::new(&region);
    thread::scope(|scope| {
        let writer = scope.spawn(|| deaf.run());
        for ends in ["is cancelled", "gives up", "panics"] {
            let given_up = LiveOptions { rounds: 4, ..options(Duration::ZERO) };
            let mut told = Pace::default();
            let watch = |pace: &Pace| {
                told = *pace;
                deaf.goes_round();
                match (pace.delayed_faults > 0, ends) {
                    (true, "is cancelled") => ControlFlow::Break(()),
                    (true, "panics") => panic!("on purpose"),
                    _ => ControlFlow::Continue(()),
                }
            };
            let sends = || send(&region, &deaf, &given_up, watch, ends);
            let sent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(sends));
            match (ends, sent) {
                ("is cancelled", Ok(Err(Error::Cancelled)))
                | ("gives up", Ok(Err(Error::TooMuchWritten { .. })))
                | ("panics", Err(_)) => {}
                (_, sent) => panic!("{ends}: {sent:?}"),
            }
            assert!(told.delayed_faults > 0, "{ends}: {told:?}");
            // It runs on, and every page comes back by its next touch.
            deaf.goes_round();
            assert_eq!(region.usage().staged, Bytes::ZERO, "{ends}");
        }
        deaf.halt();
        writer.join().expect("the writer");
    });
    deaf.check(&region, "at the source");
}
