//! A cancellation comes at any moment, and a line fails at any byte after a switch: the source is
//! whole, and the other side has all of it, the right pages of it, or nothing.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pagoda::migrate::{
    Arrival, Codec, Endpoint, Error, LiveOptions, Moved, ReceiveOptions, Writer, ZeroPolicy,
};
use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::random::{Random, may_end, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::together;

use crate::migrate::program::{Brake, Idle, PAGE, Program};
use crate::migrate::proxy::{FAULTS, Fault, Plan, line};
use crate::migrate::support::{AT_ONCE, any_port, late_options, live_options, manager, receive_options};

/// Short, so that silence is noticed soon, and long enough for a busy machine.
const STALL: Duration = Duration::from_secs(2);

type Outcome = (Result<Moved, Error>, Result<(Region, Arrival), Error>);

/// Moves `region` over `route` until it is cancelled at look `at`, if there are so many. The
/// receiver takes a silence of `stall`.
fn cancelled_at(
    at: usize,
    region: &Region,
    writer: &mut dyn Writer,
    to: &Manager,
    options: &LiveOptions,
    stall: Duration,
    route: impl FnOnce(Endpoint) -> Endpoint,
) -> Outcome {
    let listener = any_port();
    let endpoint = route(listener.endpoint().expect("an address"));
    let receiving = ReceiveOptions { wait: STALL, stall, ..receive_options(ZeroPolicy::default()) };
    thread::scope(|scope| {
        let receiver = scope
            .spawn(|| Region::receive_late(to, listener, &receiving, &mut |_| ControlFlow::Continue(())));
        let mut looks = 0;
        let sent = region.migrate_to(&endpoint, options, writer, &mut |_, _| {
            looks += 1;
            if looks > at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (sent, receiver.join().expect("the receiver"))
    })
}

/// The same while `program` goes on until it is stopped.
fn cancelled_beside(
    at: usize,
    region: &Region,
    program: &mut Program<'_>,
    to: &Manager,
    options: &LiveOptions,
    stall: Duration,
    route: impl FnOnce(Endpoint) -> Endpoint,
) -> Outcome {
    let brake = Brake::default();
    thread::scope(|scope| {
        let writer = scope.spawn(|| brake.run(program));
        let outcome = cancelled_at(at, region, &mut &brake, to, options, stall, route);
        brake.stop();
        writer.join().expect("the program");
        outcome
    })
}

/// More than any migration here has.
const LOOKS_MOST: usize = 400;

/// Cancels at one look after another until one migration has no look left. Returns how often the
/// outcome was unclear.
fn cancel_at_each(
    program: &mut Program<'_>,
    mut one: impl FnMut(usize, &mut Program<'_>) -> Outcome,
    source: &Region,
) -> usize {
    let mut unclear = 0;
    for at in 0..LOOKS_MOST {
        let (sent, received) = one(at, program);
        let context = format!("look {at}: {sent:?}, {:?}", received.as_ref().map(|_| ()));
        assert_eq!(program.differs(source), None, "{context}: the source");
        match (&sent, received) {
            (Err(Error::Cancelled), Err(_)) => continue,
            (Err(Error::Unconfirmed), Err(_)) => unclear += 1,
            (Ok(_) | Err(Error::Unconfirmed), Ok((arrived, arrival))) => {
                unclear += usize::from(sent.is_err());
                arrival.wait().unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(program.differs(&arrived), None, "{context}");
            }
            _ => panic!("{context}"),
        }
        if sent.is_ok() {
            assert!(at > 2, "{at} looks are no choice");
            return unclear;
        }
    }
    panic!("it was still being moved after {LOOKS_MOST} looks");
}

#[test]
fn cancelling_at_any_look_leaves_the_source_whole() {
    if skip_without_moves("a live migration that is cancelled") {
        return;
    }
    // In rounds and with the writer stopped; and the owed pages in the end, whose transfer runs to
    // its end from the switch on.
    together::each(0..2, 2, |at| {
        let options = [live_options(Codec::Lz4, 2), late_options(Codec::None, 2, 2)][at as usize].clone();
        let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
        let region = from.region(Bytes::mib(2)).create().expect("a region");
        let mut program = Program::new(&region, 11);
        program.fill();
        region.page_out(0, region.len() / 2).expect("stored");
        let one = |at: usize, program: &mut Program<'_>| {
            cancelled_beside(at, &region, program, &to, &options, STALL, |to| to)
        };
        cancel_at_each(&mut program, one, &region);
    });
}

#[test]
fn cancelling_while_all_is_confirmed_is_an_unknown_outcome() {
    if skip_without_moves("a live migration that is cancelled in the end") {
        return;
    }
    let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
    let region = from.region(Bytes::mib(2)).create().expect("a region");
    let mut program = Program::new(&region, 12);
    program.fill();
    let options = live_options(Codec::None, 1);
    let (sent, received) = cancelled_at(LOOKS_MOST, &region, &mut Idle, &to, &options, STALL, |to| to);
    drop(received.expect("received"));
    // The last frame of the only channel, behind its hello, is held up for longer than looks are
    // apart.
    let at = Bytes::new(sent.expect("sent").counts.wire_bytes).as_usize() + 100;
    let is_of_the_receiver = false;
    let pause = |to: Endpoint| line(&to, Plan { fault: Fault::Pause, channel: 0, at, is_of_the_receiver });
    let one =
        |at: usize, _: &mut Program<'_>| cancelled_at(at, &region, &mut Idle, &to, &options, STALL, pause);
    assert!(cancel_at_each(&mut program, one, &region) > 0, "nothing was held up");
}

#[test]
fn after_a_switch_over_a_line_that_fails_arrived_pages_are_right_and_the_rest_is_lost() {
    if skip_without_moves("post-copy over bad lines") {
        return;
    }
    let faults = [&FAULTS[..], &[Fault::Pause]].concat();
    let [refused, lost] = [const { AtomicUsize::new(0) }; 2];
    let seen_both = || refused.load(Ordering::Relaxed) > 0 && lost.load(Ordering::Relaxed) > 0;
    together::each(runs(28), AT_ONCE, |seed| {
        if may_end(seed, 14, seen_both()) {
            return;
        }
        let mut random = Random::new(seed, 2);
        let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
        let region = from.region(Bytes::mib(4)).create().expect("a region");
        let mut program = Program::new(&region, seed);
        program.fill();
        let channels = 1 + random.below(3) as u16;
        let mut options = late_options(Codec::ALL[random.below(4)], channels, random.below(2) as u32);
        let fault = faults[seed as usize % faults.len()];
        // A line that only pauses is waited for, however busy the machine is.
        let stall = if fault == Fault::Pause { options.send.stall } else { STALL };
        options.send.stall = stall;
        // The sender does not come back: see `recovery` for one that does.
        options.send.recover_for = Duration::ZERO;
        // Some of the connections are for requests, and carry the requested pages.
        let plan = Plan {
            fault,
            channel: random.below(2 * usize::from(channels)),
            at: random.below(300_000),
            is_of_the_receiver: false,
        };
        let route = |to: Endpoint| line(&to, plan);
        let (sent, received) =
            cancelled_beside(usize::MAX, &region, &mut program, &to, &options, stall, route);
        let context = format!("PAGODA_SEED={seed}, {plan:?}: {sent:?}, {:?}", received.as_ref().map(|_| ()));
        assert_eq!(program.differs(&region), None, "{context}: the source");
        let Ok((arrived, arrival)) = received else {
            assert!(sent.is_err() && fault != Fault::Pause, "{context}");
            refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let whole = arrival.wait();
        let mut missing = 0;
        for page in 0..arrived.len() / PAGE {
            let mut found = [0; PAGE];
            match arrived.read_at(page * PAGE, &mut found) {
                Ok(()) => assert!(program.wrote(page, &found), "{context}: page {page}"),
                Err(_) => missing += 1,
            }
        }
        match whole {
            // Only the last word may be missing.
            Ok(_) => assert_eq!(missing, 0, "{context}"),
            Err(error) => {
                assert!(sent.is_err() && fault != Fault::Pause, "{context}: {error}");
                lost.fetch_add(usize::from(missing > 0), Ordering::Relaxed);
            }
        }
        if fault == Fault::Pause {
            assert!(sent.is_ok(), "{context}");
        }
    });
    if std::env::var_os("PAGODA_SEED").is_none() && std::env::var_os("PAGODA_RUNS").is_none() {
        assert!(seen_both(), "{refused:?} were refused, {lost:?} lost pages");
    }
}
