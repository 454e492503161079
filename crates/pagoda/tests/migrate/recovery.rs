//! The network between both sides is cut at any byte after the switch, and comes back: nothing is
//! lost, nothing comes twice, and the image is used all the while.
//!
//! `PAGODA_RECOVERY_POINTS` says at how many points it is cut, `PAGODA_SEED` repeats one run.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagoda::migrate::{Codec, Counts, Endpoint, Error, Listener, Moved, ZeroPolicy};
use pagoda::{AccessError, BasePage, Bytes, Region};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::together;

use crate::migrate::cut_line::{Cut, CutLine, Plan, Seen};
use crate::migrate::late::use_at_once;
use crate::migrate::program::{Idle, PAGE, Program};
use crate::migrate::proxy::{FAULTS, Plan as WrongPlan, line};
use crate::migrate::support::{AT_ONCE, any_port, late_options, manager, receive_options, slow_options};

const REGION: Bytes = Bytes::mib(6);

/// How many points are tried, if nothing is said.
const POINTS: usize = 36;

/// Long enough for a busy machine.
const RECOVER_FOR: Duration = Duration::from_secs(60);

/// The silence after which a side gives its channels up, where one falls silent.
const STALL: Duration = Duration::from_secs(1);

/// The longest time without progress after reconnection, on a quiet machine.
const NO_PROGRESS_MOST: Duration = Duration::from_millis(100);

fn points() -> usize {
    std::env::var("PAGODA_RECOVERY_POINTS").ok().and_then(|text| text.parse().ok()).unwrap_or(POINTS)
}

/// Where the line of this seed is cut: up to three times, near the switch, in the owed pages, or
/// where that ends.
fn plan(seed: u64, random: &mut Random) -> Plan {
    // A silence takes as long as a stall.
    let how = if seed.is_multiple_of(16) { Cut::Silence } else { Cut::Ends };
    let most = [200, 60_000, 600_000, 3_000_000][random.below(4)];
    let count = 1 + random.below(3);
    let cuts = (0..count).map(|_| (random.below(most) as u64, how)).collect();
    Plan { cuts, outage: Duration::from_millis(random.below(30) as u64) }
}

/// A listener, a line to it that is cut as planned, and the address of the line.
fn behind_line(plan: Plan) -> (Listener, CutLine, Endpoint) {
    let listener = any_port();
    let Ok(Endpoint::Tcp { port, .. }) = listener.endpoint() else { panic!("it is TCP") };
    let line = CutLine::new(port, plan).expect("a line");
    let at = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: line.port };
    (listener, line, at)
}

/// The outcome of one run.
struct Run {
    moved: Result<Moved, Error>,
    counts: Counts,
    seen: Seen,
}

fn run(seed: u64) -> Run {
    let mut random = Random::new(seed, 5);
    let plan = plan(seed, &mut random);
    let (base, channels) = (BasePage::ALL[random.below(3)], 1 + random.below(3) as u16);
    let context = format!("PAGODA_SEED={seed}, {plan:?}, {base:?}, {channels} channels");
    let from = manager(Bytes::mib(24), base);
    // Now and then less fits than arrives.
    let budget = if random.one_in(4) { Bytes::mib(16) } else { Bytes::mib(32) };
    let to = manager(budget, BasePage::ALL[random.below(3)]);
    let region = from.region(REGION).create().expect("a region");
    let mut program = Program::new(&region, seed);
    program.fill();
    region.page_out(0, region.len() / 2).expect("stored");
    let shadow = program.shadow;
    let mut options = late_options(Codec::ALL[random.below(4)], channels, 0);
    let mut receiving = receive_options(ZeroPolicy::default());
    (options.send.recover_for, receiving.recover_for) = (RECOVER_FOR, RECOVER_FOR);
    if plan.cuts.iter().any(|(_, how)| *how == Cut::Silence) {
        (options.send.stall, receiving.stall) = (STALL, STALL);
    }
    let (listener, line, at) = behind_line(plan);
    thread::scope(|scope| {
        let sender = scope
            .spawn(|| region.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(())));
        let received = Region::receive_late(&to, listener, &receiving, &mut |_| ControlFlow::Continue(()));
        let (arrived, arrival) = received.unwrap_or_else(|error| panic!("{context}: {error}"));
        use_at_once(&arrived, arrival.clone(), &shadow, seed, &context);
        let counts = arrival.wait().expect("all of it");
        let named = counts.data_pages + counts.packed_pages + counts.filled_pages + counts.zero_pages;
        // All of it was owed: each page came once.
        assert_eq!(named, counts.owed_pages, "{context}: {counts:?}");
        let moved = sender.join().expect("the sender");
        Run { moved, counts, seen: line.seen() }
    })
}

/// The counts of all runs, and the longest time without progress of any.
#[derive(Default)]
struct Sum {
    cuts: usize,
    recoveries: u64,
    unheard: usize,
    longest: Duration,
}

#[test]
fn a_network_that_is_cut_after_the_switch_costs_time_alone() {
    if skip_without_moves("recovery of post-copy") {
        return;
    }
    let asked = std::env::var_os("PAGODA_SEED").is_some();
    let wanted = self::points();
    let is_timed = std::env::var_os("PAGODA_TIMES").is_some();
    let sum = Mutex::new(Sum::default());
    let seeds = if asked { runs(1) } else { 0..wanted as u64 };
    together::each(seeds, if is_timed { 1 } else { AT_ONCE }, |seed| {
        if sum.lock().expect("no run panicked").cuts >= wanted && !asked {
            return;
        }
        let Run { moved, counts, seen } = run(seed);
        let is_unheard = match moved {
            Ok(_) => false,
            // Only the last word was lost: all is there, and the sender says that it does not know.
            Err(Error::AfterSwitch(_)) if seen.cuts > 0 => true,
            Err(error) => panic!("PAGODA_SEED={seed}: {error}"),
        };
        let mut sum = sum.lock().expect("no run panicked");
        sum.cuts += seen.cuts;
        sum.recoveries += counts.recoveries;
        sum.unheard += usize::from(is_unheard);
        sum.longest = sum.longest.max(seen.no_progress);
    });
    let Sum { cuts: points, recoveries, unheard, longest } = sum.into_inner().expect("no run panicked");
    println!(
        "{points} points: {recoveries} recoveries, {unheard} senders that did not hear the end, {longest:?} without progress"
    );
    assert!(asked || points > 0 && recoveries > 0, "{points} points, {recoveries} recoveries");
    assert!(asked || unheard <= points / 20, "{unheard} of {points} did not hear the end");
    if is_timed {
        assert!(longest <= NO_PROGRESS_MOST, "{longest:?} without progress");
    }
}

/// Bytes that are damaged, lost, doubled or swapped on one of the first channels, in either
/// direction: before the switch both sides fail, after it all arrives over others.
#[test]
fn a_line_that_does_wrong_after_the_switch_is_replaced() {
    if skip_without_moves("post-copy over bad lines") {
        return;
    }
    let recovered = AtomicU64::new(0);
    // They mostly wait for a line that does not answer.
    together::each(runs(length(10, 40)), 2 * AT_ONCE, |seed| {
        let mut random = Random::new(seed, 6);
        let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
        let region = from.region(REGION).create().expect("a region");
        let mut program = Program::new(&region, seed);
        program.fill();
        let is_of_the_receiver = random.one_in(4);
        let plan = WrongPlan {
            fault: FAULTS[seed as usize % FAULTS.len()],
            channel: random.below(2),
            at: if is_of_the_receiver { random.below(400) } else { random.below(1_000_000) },
            is_of_the_receiver,
        };
        let context = format!("PAGODA_SEED={seed}, {plan:?}");
        let mut options = late_options(Codec::None, 2, 0);
        let mut receiving = receive_options(ZeroPolicy::default());
        (options.send.recover_for, receiving.recover_for) = (RECOVER_FOR, RECOVER_FOR);
        (options.send.stall, receiving.stall) = (STALL, STALL);
        // A sender whose receiver was never told to run connects in vain for as long.
        options.send.recover_for = Duration::from_secs(10);
        let listener = any_port();
        let at = line(&listener.endpoint().expect("an address"), plan);
        let shadow = program.shadow;
        thread::scope(|scope| {
            let sender = scope
                .spawn(|| region.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(())));
            let received =
                Region::receive_late(&to, listener, &receiving, &mut |_| ControlFlow::Continue(()));
            match received {
                Ok((arrived, arrival)) => {
                    use_at_once(&arrived, arrival.clone(), &shadow, seed, &context);
                    let counts = arrival.wait().expect("all of it");
                    recovered.fetch_add(counts.recoveries, Ordering::Relaxed);
                    let sent = sender.join().expect("the sender");
                    assert!(matches!(sent, Ok(_) | Err(Error::AfterSwitch(_))), "{context}: {sent:?}");
                }
                Err(error) => {
                    let sent = sender.join().expect("the sender");
                    assert!(sent.is_err(), "{context}: {error}, {sent:?}");
                }
            }
        });
    });
    assert!(recovered.into_inner() > 0 || std::env::var_os("PAGODA_SEED").is_some(), "no line was replaced");
}

#[test]
fn a_sender_that_does_not_come_back_is_waited_for_as_long_as_it_was_said() {
    if skip_without_moves("a sender that dies after the switch") {
        return;
    }
    let bound = Duration::from_secs(1);
    let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
    let region = from.region(REGION).create().expect("a region");
    (0..region.len()).step_by(PAGE).for_each(|at| region.write_words(at, &[7; 8]).expect("written"));
    let mut options = late_options(Codec::None, 2, 0);
    options.send.recover_for = bound;
    let mut receiving = receive_options(ZeroPolicy::default());
    receiving.recover_for = bound;
    let plan = Plan { cuts: vec![(400_000, Cut::Ends)], outage: Duration::from_secs(60) };
    let (listener, _line, at) = behind_line(plan);
    // Before the line is cut, however late this thread is run after that.
    let began = Instant::now();
    thread::scope(|scope| {
        let sender = scope
            .spawn(|| region.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(())));
        let (arrived, arrival) =
            Region::receive_late(&to, listener, &receiving, &mut |_| ControlFlow::Continue(()))
                .expect("shown");
        let error = arrival.wait().map(drop).expect_err("the line does not come back");
        assert!(began.elapsed() >= bound, "it was given up after {:?}", began.elapsed());
        assert!(matches!(&*error, Error::NotRecovered { within, .. } if *within == bound), "{error}");
        let text = error.to_string();
        assert!(text.contains("did not come back within 1s") && text.contains(';'), "{text}");
        // A page is there, or it is an error to read it: nothing else.
        let lost = (0..arrived.len() / PAGE).filter(|page| {
            let mut word = [0; 8];
            match arrived.read_at(page * PAGE, &mut word) {
                Ok(()) => assert_eq!(word, [7; 8], "page {page}"),
                Err(error) => assert!(matches!(error, AccessError::Lost), "{error}"),
            }
            word == [0; 8]
        });
        assert!(lost.count() > 0);
        let sent = sender.join().expect("the sender");
        assert!(
            matches!(&sent, Err(Error::AfterSwitch(error)) if matches!(**error, Error::NotRecovered { .. })),
            "{sent:?}"
        );
    });
}

/// The first cut is before a page arrives, and the second so late that a time that began with the
/// first is over: pages arrived between them.
#[test]
fn a_line_that_is_cut_again_after_a_long_time_is_replaced_again() {
    if skip_without_moves("a second recovery") {
        return;
    }
    // On a busy machine even a line that is up at once takes long to be found.
    let recover_for = Duration::from_secs(6);
    let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
    let region = from.region(REGION).create().expect("a region");
    let mut program = Program::new(&region, 1);
    program.fill();
    let shadow = program.shadow;
    let mut options = slow_options(1, Bytes::kib(384));
    options.send.recover_for = recover_for;
    let mut receiving = receive_options(ZeroPolicy::default());
    receiving.recover_for = RECOVER_FOR;
    let plan = Plan { cuts: vec![(1, Cut::Ends), (5 << 19, Cut::Ends)], outage: Duration::ZERO };
    let (listener, _line, at) = behind_line(plan);
    // Before the line is cut, however late this thread is run after that.
    let began = Instant::now();
    thread::scope(|scope| {
        let sender = scope
            .spawn(|| region.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(())));
        let (arrived, arrival) =
            Region::receive_late(&to, listener, &receiving, &mut |_| ControlFlow::Continue(()))
                .expect("shown");
        use_at_once(&arrived, arrival.clone(), &shadow, 1, "cut twice");
        let recoveries = arrival.wait().expect("all of it").recoveries;
        assert!(recoveries == 2 && began.elapsed() > recover_for, "{recoveries}, {:?}", began.elapsed());
        sender.join().expect("the sender").expect("sent");
    });
}

/// A stranger that does not know the session comes again and again, and asks for the sender's
/// channels.
#[test]
fn strangers_get_no_channel_of_a_migration_that_has_switched() {
    if skip_without_moves("strangers after the switch") {
        return;
    }
    let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
    let region = from.region(Bytes::mib(2)).create().expect("a region");
    (0..region.len()).step_by(PAGE).for_each(|at| region.write_words(at, &[7; 8]).expect("written"));
    let refused = AtomicUsize::new(0);
    let options = slow_options(1, Bytes::mib(1));
    let other = from.region(Bytes::mib(2)).create().expect("a region");
    other.write_words(0, &[9; 8]).expect("written");
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    thread::scope(|scope| {
        let sender = scope
            .spawn(|| region.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(())));
        let receiving = receive_options(ZeroPolicy::default());
        let (arrived, arrival) =
            Region::receive_late(&to, listener, &receiving, &mut |_| ControlFlow::Continue(()))
                .expect("shown");
        while arrival.outcome().is_none() && refused.load(Ordering::Relaxed) < 3 {
            let stranger = late_options(Codec::None, 1, 0);
            let sent = other.migrate_to(&at, &stranger, &mut Idle, &mut |_, _| ControlFlow::Continue(()));
            let is_turned_away = match &sent {
                Err(Error::Refused(_) | Error::Connect(_) | Error::NotPagoda) => true,
                // The listener was closed in the middle of an introduction.
                Err(Error::Lost { .. }) => arrival.outcome().is_some(),
                _ => false,
            };
            assert!(is_turned_away, "{sent:?}");
            refused.fetch_add(usize::from(matches!(sent, Err(Error::Refused(_)))), Ordering::Relaxed);
        }
        arrival.wait().expect("all of it");
        (0..arrived.len()).step_by(PAGE).for_each(|at| {
            let mut word = [0; 8];
            arrived.read_at(at, &mut word).expect("read");
            assert_eq!(word, [7; 8], "at {at}");
        });
        sender.join().expect("the sender").expect("sent");
    });
    assert!(refused.into_inner() > 0, "no stranger was told");
}
