//! Both sides are stopped for longer than their patience (Ctrl-Z, a debugger, a frozen group): they
//! gave each other up when they went on.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pagoda_linux::testing::wait::until;
use rustix::process::{Pid, Signal, kill_process};

use crate::line::Line;
use crate::pair::{Place, Side, ended};

/// Longer than the patience that the tests give.
const STOPPED: Duration = Duration::from_secs(7);
const PATIENCE: &str = "4";

fn send(sides: &[&Side], signal: Signal) {
    for side in sides {
        kill_process(Pid::from_child(&side.child), signal).expect("it is there");
    }
}

fn stop(sides: &[&Side]) {
    send(sides, Signal::STOP);
    for side in sides {
        let stat = format!("/proc/{}/stat", side.child.id());
        until("it is stopped", || fs::read_to_string(&stat).expect("its state").contains(") T "));
    }
    std::thread::sleep(STOPPED);
    send(sides, Signal::CONT);
}

fn both_end_well(place: &Place, sender: &mut Side, receiver: &mut Side) {
    let (sent, received) = (ended(sender), ended(receiver));
    assert_eq!((sent.0, received.0), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert!(place.is_equal());
}

#[test]
fn a_receiver_that_was_stopped_had_waited_for_nobody() {
    let place = Place::new(11);
    let mut receiver = place.receiver(&["--wait", PATIENCE]);
    let to = receiver.address();
    stop(&[&receiver]);
    let mut sender = Side::start(&["send", &place.path("image"), &to]);
    both_end_well(&place, &mut sender, &mut receiver);
}

#[test]
fn two_sides_that_were_stopped_in_their_handshake_gave_up() {
    let place = Place::new(12);
    let mut receiver = place.receiver(&["--timeout", PATIENCE]);
    // Within the first message.
    let (line, to) = Line::behind(&receiver.address(), 1);
    let mut sender = Side::start(&["send", &place.path("image"), &to, "--timeout", PATIENCE]);
    until("they talk", || line.held.load(Ordering::Acquire));
    stop(&[&sender, &receiver]);
    line.released.store(true, Ordering::Release);
    both_end_well(&place, &mut sender, &mut receiver);
}
