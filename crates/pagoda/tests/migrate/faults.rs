//! Failures on the way, impossible requests, and zero pages that come and go.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pagoda::migrate::{Codec, Error, LiveOptions, Otherwise, ReceiveOptions, Writer, ZeroPolicy};
use pagoda::{BasePage, Bytes, Region};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::together;

use crate::migrate::program::{Brake, Idle, PAGE, Program};
use crate::migrate::proxy::{FAULTS, Fault, Plan, line};
use crate::migrate::support::{AT_ONCE, any_port, live_options, manager, migrate, receive_options};

/// Short, so that silence is noticed soon, and long enough for a busy machine.
const STALL: Duration = Duration::from_secs(2);

#[test]
fn a_line_that_fails_is_an_error_on_both_sides_and_the_source_goes_on() {
    if skip_without_moves("live migration over bad lines") {
        return;
    }
    // A slow line is waited for.
    let faults = [&FAULTS[..], &[Fault::Pause]].concat();
    let failed = AtomicUsize::new(0);
    together::each(runs(length(14, 28)), AT_ONCE, |seed| {
        let mut random = Random::new(seed, 0);
        let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
        let region = from.region(Bytes::mib(8)).create().expect("a region");
        let mut program = Program::new(&region, seed);
        program.fill();
        region.page_out(0, region.len() / 2).expect("stored");
        let channels = 1 + random.below(3) as u16;
        let plan = Plan {
            fault: faults[seed as usize % faults.len()],
            channel: random.below(usize::from(channels)),
            at: random.below(300_000),
            is_of_the_receiver: false,
        };
        let mut options = live_options(Codec::ALL[random.below(4)], channels);
        let mut receiving = receive_options(ZeroPolicy::default());
        // A line that only pauses is waited for, however busy the machine is.
        if plan.fault != Fault::Pause {
            options.send.stall = STALL;
            (receiving.wait, receiving.stall) = (STALL, STALL);
        }
        let (sent, received) =
            migrate(&region, &mut program, &to, &options, &receiving, |to| line(&to, plan));
        let context = format!("PAGODA_SEED={seed}, {plan:?}: {sent:?}, {:?}", received.as_ref().map(|_| ()));
        match (&sent, &received) {
            // The fault was behind the last byte, or had no effect; or only the last word was lost,
            // and the sender says so.
            (Ok(_) | Err(Error::Unconfirmed), Ok((arrived, _))) => {
                assert_eq!(program.differs(arrived), None, "{context}");
            }
            (Err(sender), Err(receiver)) if plan.fault != Fault::Pause => {
                failed.fetch_add(1, Ordering::Relaxed);
                for error in [sender.to_string(), receiver.to_string()] {
                    assert!(!error.contains('\n') && error.contains(';'), "{error}");
                }
            }
            _ => panic!("{context}"),
        }
        (0..2000).for_each(|_| program.step());
        assert_eq!(program.differs(&region), None, "{context}: the source");
        // And it can be sent again, whole.
        drop(received);
        let good = live_options(Codec::Lz4, 2);
        let receiving = receive_options(ZeroPolicy::default());
        let (sent, received) = migrate(&region, &mut program, &to, &good, &receiving, |to| to);
        sent.unwrap_or_else(|error| panic!("{context}, then {error}"));
        let (arrived, _) = received.unwrap_or_else(|error| panic!("{context}, then {error}"));
        let differ = (program.differs(&region), program.differs(&arrived));
        assert_eq!(differ, (None, None), "{context}, and then once more");
    });
    if std::env::var_os("PAGODA_SEED").is_none() {
        assert!(failed.into_inner() > 0, "no fault was one");
    }
}

#[test]
fn only_a_region_that_may_be_read_is_sent_and_once_at_a_time() {
    if skip_without_moves("a region that can't be sent") {
        return;
    }
    let from = manager(Bytes::mib(32), BasePage::K64);
    let region = from.region(Bytes::mib(4)).create().expect("a region");
    let options = live_options(Codec::Lz4, 1);
    // The listener there accepts nothing.
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    let migrate = |region: &Region, options: &LiveOptions| {
        region.migrate_to(&at, options, &mut Idle, &mut |_, _| ControlFlow::Continue(()))
    };
    let mut slow = options.clone();
    slow.send.stall = Duration::from_secs(1);
    thread::scope(|scope| {
        let first = scope.spawn(|| migrate(&region, &slow));
        let mut second = migrate(&region, &slow);
        while !matches!(second, Err(Error::SentAlready)) && !first.is_finished() {
            second = migrate(&region, &slow);
        }
        let first = first.join().expect("no panic");
        assert!(matches!(first, Err(Error::SentAlready | Error::Silent(_))), "{first:?}");
        assert!(
            matches!(second, Err(Error::SentAlready)) || matches!(first, Err(Error::SentAlready)),
            "{second:?}"
        );
    });
    let mut closed = from.region(Bytes::kib(64)).create().expect("a region");
    closed.protect(0, PAGE, pagoda::Access::None).expect("protected");
    let sent = migrate(&closed, &options);
    assert!(matches!(sent, Err(Error::Source(_))), "{sent:?}");
}

#[test]
fn giving_up_or_cancelling_leaves_the_source_as_it_is() {
    if skip_without_moves("a live migration that is given up") {
        return;
    }
    let (from, to) = (manager(Bytes::mib(32), BasePage::K64), manager(Bytes::mib(32), BasePage::K64));
    let region = from.region(Bytes::mib(8)).create().expect("a region");
    let mut program = Program::new(&region, 7);
    program.fill();
    // More is written than sent.
    let mut options = LiveOptions {
        downtime: Duration::ZERO,
        rounds: 2,
        otherwise: Otherwise::GiveUp,
        ..live_options(Codec::None, 2)
    };
    options.send.bandwidth = Some(Bytes::mib(64));
    let receiving = receive_options(ZeroPolicy::default());
    let (sent, received) = migrate(&region, &mut program, &to, &options, &receiving, |to| to);
    assert!(matches!(sent, Err(Error::TooMuchWritten { .. })), "{sent:?}");
    assert!(received.is_err());
    assert_eq!(program.differs(&region), None);
    // At any moment: at once, or in some round.
    for at in [0, 3, 9] {
        let listener = any_port();
        let endpoint = listener.endpoint().expect("an address");
        // Where nothing comes the receiver waits in vain.
        let wait = if at == 0 { STALL } else { receiving.wait };
        let receiving = ReceiveOptions { wait, ..receiving.clone() };
        let mut options = LiveOptions { rounds: 100, otherwise: Otherwise::GiveUp, ..options.clone() };
        options.send.bandwidth = Some(Bytes::mib(32));
        let brake = Brake::default();
        let (sent, received) = thread::scope(|scope| {
            let receiver = scope
                .spawn(|| Region::receive(&to, listener, &receiving, &mut |_| ControlFlow::Continue(())));
            let writer = scope.spawn(|| brake.run(&mut program));
            let mut looks = 0;
            let sent = region.migrate_to(&endpoint, &options, &mut &brake, &mut |_, _| {
                looks += 1;
                if looks > at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            brake.stop();
            writer.join().expect("the program");
            if at == 0 {
                // No sender has come.
                drop(std::net::TcpStream::connect(endpoint.to_string().trim_start_matches("tcp://")));
            }
            (sent, receiver.join().expect("the receiver"))
        });
        assert!(matches!(sent, Err(Error::Cancelled)), "{sent:?}");
        assert!(received.is_err());
        assert_eq!(program.differs(&region), None);
    }
}

/// Says that it has stopped, and goes on: a word in each round.
struct Liar<'a> {
    region: &'a Region,
    /// How many words it has written since it was stopped. None before.
    words: Cell<Option<u64>>,
}

impl Liar<'_> {
    /// Writes how many these are now to the region's last word.
    fn write(&self, words: u64) {
        self.region.write_words(self.region.len() - 8, &words.to_ne_bytes()).expect("written");
        self.words.set(Some(words));
    }
}

impl Writer for &Liar<'_> {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        self.write(1);
    }
}

#[test]
fn a_writer_that_does_not_stop_is_noticed() {
    if skip_without_moves("a writer that does not stop") {
        return;
    }
    let (from, to) = (manager(Bytes::mib(32), BasePage::K64), manager(Bytes::mib(32), BasePage::K64));
    let region = from.region(Bytes::mib(8)).create().expect("a region");
    // The last page is the liar's.
    let mut program = Program::of_part(&region, region.len() - PAGE, 3);
    program.fill();
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    let brake = Brake::default();
    let receiving = receive_options(ZeroPolicy::default());
    let liar = Liar { region: &region, words: Cell::new(None) };
    let (sent, received) = thread::scope(|scope| {
        let receiver =
            scope.spawn(|| Region::receive(&to, listener, &receiving, &mut |_| ControlFlow::Continue(())));
        let writer = scope.spawn(|| brake.run(&mut program));
        let options = live_options(Codec::Lz4, 2);
        // Called at the start of each round: something is left after it, whenever the other threads
        // run.
        let sent = region.migrate_to(&at, &options, &mut &liar, &mut |_, _| {
            if let Some(words) = liar.words.get() {
                liar.write(words + 1);
            }
            ControlFlow::Continue(())
        });
        brake.stop();
        writer.join().expect("the program");
        (sent, receiver.join().expect("the receiver"))
    });
    assert!(matches!(sent, Err(Error::NotStopped)), "{sent:?}");
    assert!(received.is_err());
    assert_eq!(program.differs(&region), None);
    let mut words = [0; 8];
    region.read_at(region.len() - 8, &mut words).expect("read");
    assert_eq!(Some(u64::from_ne_bytes(words)), liar.words.get());
}
