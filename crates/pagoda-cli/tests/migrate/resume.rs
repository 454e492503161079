//! `pagoda recv --resume`: content that has arrived before a line breaks is kept, and sent once.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagoda_linux::testing::random::{mix, runs};

use crate::line::Line;
use crate::pair::{Place, Side, ended};

/// Of them there are some in which the first attempt breaks off in the middle.
const RUNS: u64 = 8;

/// The bytes that a sender says it has sent, in MiB.
fn content_mib(said: &str) -> f64 {
    let line = said.lines().find(|line| line.contains("of content")).expect("it tells what it sent");
    let before = line.split(" of content").next().expect("a size");
    let mut words = before.rsplit(' ');
    let (unit, number) = (words.next().expect("a unit"), words.next().expect("a number"));
    let number: f64 = number.parse().expect("a number");
    match unit {
        "MiB" => number,
        "KiB" => number / 1024.0,
        _ => 0.0,
    }
}

/// A transfer whose line ends after so many bytes; what either side says.
fn broken_off(place: &Place, after: u64) -> (String, String) {
    let mut receiver = place.receiver(&["--resume"]);
    let (line, to) = Line::behind(&receiver.address(), after);
    let mut sender = Side::start(&["send", &place.path("image"), &to, "--codec", "none", "--channels", "1"]);
    let until = Instant::now() + Duration::from_secs(60);
    while !line.held.load(Ordering::Acquire) {
        assert!(Instant::now() < until, "it stands still");
        std::thread::sleep(Duration::from_micros(200));
    }
    sender.child.kill().expect("killed");
    line.released.store(true, Ordering::Release);
    let (sent, received) = (ended(&mut sender), ended(&mut receiver));
    assert_eq!(received.0, Some(125), "{received:?}");
    (sent.1, received.1)
}

/// The second attempt, over a whole line.
fn gone_on(place: &Place) -> (String, String) {
    let mut receiver = place.receiver(&["--resume"]);
    let to = receiver.address();
    let mut sender = Side::start(&["send", &place.path("image"), &to, "--codec", "none"]);
    let (sent, received) = (ended(&mut sender), ended(&mut receiver));
    assert_eq!((sent.0, received.0), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert!(place.is_equal());
    assert_eq!(place.names(), ["arrived", "image"]);
    (sent.1, received.1)
}

#[test]
fn a_transfer_that_broke_off_goes_on_where_it_was() {
    let mut kept = 0;
    for seed in runs(RUNS) {
        let place = Place::new(seed);
        // Of 3 MiB and some frames.
        let after = if seed == 0 { 2_600_000 } else { mix(seed) % 3_000_000 };
        let (_, received) = broken_off(&place, after);
        assert!(received.contains("is kept in ") && received.contains("the same command"), "{received}");
        assert_eq!(place.names(), ["arrived.partial", "image"]);
        let (sent, received) = gone_on(&place);
        let is_kept = sent.contains("kept of an earlier transfer");
        assert_eq!(is_kept, received.contains("kept of an earlier transfer"), "{sent} {received}");
        if is_kept {
            kept += 1;
            assert!(content_mib(&sent) < 2.0, "PAGODA_SEED={seed}: {sent}");
        }
    }
    assert!(kept > 0 || runs(RUNS).count() < RUNS as usize, "nothing was ever kept");
}

/// The first stripe of the part is there, and one byte of it is not the sender's any more; then one
/// byte of a hole is, which the sender never names.
#[test]
fn what_is_kept_is_compared_and_nothing_else_of_it_stays() {
    for at in [70_000, 5 << 20] {
        let place = Place::new(7);
        broken_off(&place, 2_600_000);
        let partial = OpenOptions::new().write(true).open(place.path("arrived.partial")).expect("a part");
        partial.write_all_at(&[0x77], at).expect("written");
        drop(partial);
        let (sent, _) = gone_on(&place);
        // The stripe that differs is sent again, whatever else was kept.
        let is_kept = sent.contains("kept of an earlier transfer");
        assert!(is_kept && at > 1 << 20 || content_mib(&sent) >= 1.0, "{sent}");
    }
}

#[test]
fn a_part_of_another_image_is_given_back() {
    let place = Place::new(8);
    let longer = vec![0x55; 9 << 20];
    fs::write(place.path("arrived.partial"), longer).expect("written");
    std::process::Command::new("chmod")
        .args(["600", &place.path("arrived.partial")])
        .status()
        .expect("chmod");
    let (sent, _) = gone_on(&place);
    assert!(!sent.contains("kept of an earlier transfer"), "{sent}");
}

#[test]
fn one_process_at_a_time_receives_a_file() {
    let place = Place::new(9);
    let mut first = place.receiver(&["--resume"]);
    let _ = first.address();
    let mut second = place.receiver(&["--resume"]);
    let (status, said) = ended(&mut second);
    assert_eq!(status, Some(125), "{said}");
    assert!(said.contains("another process receives"), "{said}");
}
