//! A migration over a line that is too slow: its throttling of the writer, and its reports.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pagoda::migrate::{Codec, LiveOptions, Otherwise, Pace, Writer, ZeroPolicy};
use pagoda::{BasePage, Bytes, Region};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::migrate::program::PAGE;
use crate::migrate::support::{any_port, live_options, manager, receive_options};

const REGION: Bytes = Bytes::mib(4);

/// Writes to each page in turn, far faster than the line carries them, until it is stopped, or
/// slowed down by as much as it takes to make it stop.
struct Wild {
    yields_at: u8,
    writes: AtomicU64,
    asked: Mutex<Vec<u8>>,
    strongest: AtomicU8,
    wanted: AtomicBool,
    stands: AtomicBool,
}

impl Wild {
    fn new(yields_at: u8) -> Self {
        Self {
            yields_at,
            writes: AtomicU64::new(0),
            asked: Mutex::default(),
            strongest: AtomicU8::new(0),
            wanted: AtomicBool::new(false),
            stands: AtomicBool::new(false),
        }
    }

    fn run(&self, region: &Region) {
        let mut word = 0u64;
        while !self.wanted.load(Ordering::Acquire) {
            if self.yields() {
                thread::sleep(Duration::from_micros(100));
                continue;
            }
            word += 1;
            region.write_words(word as usize * PAGE % region.len(), &word.to_ne_bytes()).expect("written");
            self.writes.store(word, Ordering::Release);
        }
        self.stands.store(true, Ordering::Release);
    }

    fn yields(&self) -> bool {
        self.strongest.load(Ordering::Acquire) >= self.yields_at
    }

    /// Waits until each page is written anew, or it has slowed down or was stopped: however seldom
    /// its thread is run, it outruns the line.
    fn goes_round(&self) {
        let most = self.writes.load(Ordering::Acquire) + REGION.get() / PAGE as u64;
        until("each page is written", || {
            let rests = self.yields() || self.wanted.load(Ordering::Acquire);
            rests || self.writes.load(Ordering::Acquire) > most
        });
    }
}

impl Writer for &Wild {
    fn throttle(&mut self, percent: u8) {
        self.asked.lock().expect("no panic").push(percent);
        self.strongest.store(percent, Ordering::Release);
    }
    fn stop(&mut self) {
        self.wanted.store(true, Ordering::Release);
        while !self.stands.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

/// Moves a region that `wild` writes to over a slow line. Returns the requested throttles, and the
/// pace after each round.
fn over_a_slow_line(wild: &Wild, rounds: u32, otherwise: Otherwise) -> (Vec<u8>, Vec<Pace>) {
    let (from, to) = (manager(Bytes::mib(32), BasePage::K64), manager(Bytes::mib(32), BasePage::K64));
    let region = from.region(REGION).create().expect("a region");
    // No two words of a page alike, so that all of it goes as content.
    (0..region.len() / 8)
        .for_each(|word| region.write_words(word * 8, &(word as u64 + 1).to_ne_bytes()).expect("written"));
    let mut options = LiveOptions {
        downtime: Duration::ZERO,
        rounds,
        otherwise,
        // It is only asked.
        slow_most_percent: 0,
        ..live_options(Codec::None, 2)
    };
    options.send.bandwidth = Some(Bytes::mib(16));
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    let receiving = receive_options(ZeroPolicy::default());
    let mut paces: Vec<Pace> = Vec::new();
    let (moved, received) = thread::scope(|scope| {
        let receiver =
            scope.spawn(|| Region::receive(&to, listener, &receiving, &mut |_| ControlFlow::Continue(())));
        scope.spawn(|| wild.run(&region));
        let moved = region.migrate_to(&at, &options, &mut &*wild, &mut |_, pace| {
            // The look that a round begins with: all that is written from here on is left after it.
            if paces.last() != Some(pace) {
                paces.push(*pace);
                wild.goes_round();
            }
            ControlFlow::Continue(())
        });
        (&*wild).stop();
        (moved, receiver.join().expect("the receiver"))
    });
    let moved = moved.expect("moved");
    received.expect("received");
    if paces.last() != Some(&moved.pace) {
        paces.push(moved.pace);
    }
    (wild.asked.lock().expect("no panic").clone(), paces)
}

/// The reported values agree, at any speed of the machine.
fn check(paces: &[Pace]) {
    assert_eq!(paces[0], Pace::default(), "before the first round");
    for (round, pace) in (0..).zip(paces) {
        assert_eq!(pace.rounds, round, "each round is told");
        assert!(pace.left <= REGION && pace.sent_per_s.get() > 0 || round == 0, "{pace:?}");
        // The downtime is the remainder over the bytes sent in a second.
        let left = pace.downtime.as_secs_f64() * pace.sent_per_s.get() as f64;
        assert!((left - pace.left.get() as f64).abs() <= 0.01 * left + 1.0, "{pace:?}");
        assert!((pace.written_per_s.get() > 0) == (pace.left.get() > 0), "{pace:?}");
    }
}

#[test]
fn a_writer_that_outruns_the_line_is_slowed_down_step_by_step() {
    if skip_without_moves("a writer that is slowed down") {
        return;
    }
    // It passes it over: the rounds are used up, and it is stopped for longer.
    let (asked, paces) = over_a_slow_line(&Wild::new(101), 6, Otherwise::StopForLonger);
    assert_eq!(asked, [20, 30, 40, 50, 60]);
    check(&paces);
    assert_eq!(paces.len(), 7);
    assert!(paces[1..].iter().all(|pace| pace.left.get() > REGION.get() * 3 / 4), "{paces:?}");
}

#[test]
fn a_writer_that_slows_down_is_waited_for_no_longer() {
    if skip_without_moves("a writer that slows down") {
        return;
    }
    let (asked, paces) = over_a_slow_line(&Wild::new(40), 100, Otherwise::GiveUp);
    assert_eq!(asked, [20, 30, 40]);
    check(&paces);
    assert_eq!(paces.last().map(|pace| pace.left), Some(Bytes::ZERO));
}
