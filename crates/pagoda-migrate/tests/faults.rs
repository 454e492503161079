//! Lines that fail: for any lost, late, doubled, swapped or missing bytes, both sides report an
//! error and nothing is shown.
//!
//! `PAGODA_SEED` repeats one run; `PAGODA_RUNS` says how many there are.

mod support;

use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use pagoda_core::migrate::handshake::Codec;
use pagoda_linux::testing::random::{Random, each_at_once, runs};
use pagoda_migrate::{Error, ImageDestination, ReceiveOptions, SendOptions};
use support::proxy::{FAULTS, Fault, Plan, line};
use support::{Place, any_port, receive_options, send_options, tally, transfer_to};

/// Short, so that silence is noticed soon, and long enough for a busy machine.
const STALL: Duration = Duration::from_secs(1);

/// Runs at a time: they mostly wait for a stall.
const AT_ONCE: u64 = 6;

/// What a channel's receiver sends: its greeting, its answer, the end of its offers, and the
/// end of a round.
const RECEIVER_BYTES: usize = 56 + 64 + 48 + 24;

/// The least that a channel's sender sends: its hello, and the frames that end it.
const LEAST_BYTES: usize = 128 + 2 * 48;

#[test]
fn a_line_that_fails_is_an_error_on_both_sides_and_nothing_is_shown() {
    let seen = Mutex::new(Vec::new());
    each_at_once(runs(60), AT_ONCE, |seed| {
        let mut random = Random::new(seed, 1);
        let place = Place::with_image(seed, 6 << 20);
        let before = fs::read(place.image()).expect("read");
        let channels = 1 + random.below(3) as u16;
        let codec = Codec::ALL[random.below(4)];
        let fault = FAULTS[seed as usize % FAULTS.len()];
        let channel = random.below(usize::from(channels));
        // Within the bytes that each channel sends for sure, or anywhere in it: past its end
        // nothing happens.
        let is_of_the_receiver = random.one_in(4);
        let most = match random.below(2) {
            _ if is_of_the_receiver => RECEIVER_BYTES,
            0 => LEAST_BYTES,
            _ => 200_000,
        };
        let plan = Plan { fault, channel, at: random.below(most), is_of_the_receiver };
        let sending = SendOptions { channels, codec, stall: STALL, ..send_options() };
        let receiving = ReceiveOptions { wait: STALL, stall: STALL, ..receive_options() };
        let mut destination = ImageDestination::new(place.arrived()).expect("nothing is there");
        let route = |to| line(&to, plan);
        let (sent, received) =
            transfer_to(&place.image(), &mut destination, &any_port(), &sending, &receiving, route);
        drop(destination);
        let context = format!("PAGODA_SEED={seed}, {plan:?}: {sent:?}, {received:?}");
        assert!(fs::read(place.image()).expect("read") == before, "{context}");
        match (&sent, &received) {
            // The fault was behind the last byte, or had no effect: both swapped pieces were the
            // same.
            (Ok(_), Ok(_)) => assert!(place.is_equal(), "{context}"),
            // All was there, and the last word was lost: the sender does not know, and says so.
            (Err(Error::Unconfirmed), Ok(_)) => assert!(place.is_equal(), "{context}"),
            (Err(sender), Err(receiver)) => {
                assert_eq!(place.names(), ["image"], "{context}");
                for error in [sender.to_string(), receiver.to_string()] {
                    assert!(!error.contains('\n') && error.contains(';'), "{error}");
                }
            }
            _ => panic!("{context}"),
        }
        seen.lock().expect("no run panicked").push((fault, received.is_ok()));
    });
    let tally = tally(seen.into_inner().expect("no run panicked"));
    println!("{tally:?}");
    if std::env::var_os("PAGODA_SEED").is_none() && std::env::var_os("PAGODA_RUNS").is_none() {
        assert!(FAULTS.iter().all(|fault| tally.get(&(*fault, false)).is_some_and(|count| *count > 2)));
    }
}

#[test]
fn a_slow_line_is_waited_for() {
    for channel in 0..2 {
        let place = Place::with_image(9, 6 << 20);
        let plan = Plan { fault: Fault::Pause, channel, at: 5000, is_of_the_receiver: false };
        let mut destination = ImageDestination::new(place.arrived()).expect("nothing is there");
        let options = (send_options(), receive_options());
        let route = |to| line(&to, plan);
        let (sent, received) =
            transfer_to(&place.image(), &mut destination, &any_port(), &options.0, &options.1, route);
        sent.expect("sent");
        received.expect("received");
        assert!(place.is_equal());
    }
}
