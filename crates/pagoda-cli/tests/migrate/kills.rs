//! Either side is killed at any byte of the transfer, by a line between them that holds still
//! there.
//!
//! `PAGODA_RUNS` says how many times (1,000 for a thorough run), `PAGODA_SEED` repeats one of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{mix, runs};

use crate::line::Line;
use crate::pair::{Place, Side, ended};

fn start(place: &Place, hold_after: u64) -> (Side, Side, Arc<Line>) {
    let mut receiver = place.receiver(&[]);
    let (line, to) = Line::behind(&receiver.address(), hold_after);
    (Side::start(&["send", &place.path("image"), &to]), receiver, line)
}

#[test]
fn a_side_that_is_killed_leaves_the_image_intact_and_no_half_of_it() {
    let whole = Place::new(0);
    let (mut sender, mut receiver, line) = start(&whole, u64::MAX);
    assert_eq!((ended(&mut sender).0, ended(&mut receiver).0), (Some(0), Some(0)));
    let total = line.passed.load(Ordering::Relaxed);
    let mut arrived = 0;
    for seed in runs(length(16, 50)) {
        let place = Place::new(0);
        // Anywhere, or where the channels end and the image gets its name; a line that never holds
        // still is killed at once.
        let at = if seed % 4 < 2 { mix(seed) % total } else { total + 20 - mix(seed) % 400 };
        let (mut sender, mut receiver, line) = start(&place, at);
        let until = Instant::now() + Duration::from_secs(60);
        let is_over = |side: &mut Side| side.child.try_wait().expect("a child").is_some();
        while !(line.held.load(Ordering::Acquire) || is_over(&mut sender) && is_over(&mut receiver)) {
            assert!(
                Instant::now() < until,
                "PAGODA_SEED={seed}: it stands still, after {at} of {total} bytes"
            );
            thread::sleep(Duration::from_micros(200));
        }
        let kill_sender = seed % 2 == 0;
        let killed = if kill_sender { &mut sender } else { &mut receiver };
        killed.child.kill().expect("killed");
        line.released.store(true, Ordering::Release);
        let (sent, received) = (ended(&mut sender), ended(&mut receiver));
        let context = format!("PAGODA_SEED={seed}, after {at} of {total} bytes: {sent:?}, {received:?}");
        assert!(place.is_intact(), "{context}");
        let is_there = place.names() == ["arrived", "image"];
        if is_there {
            arrived += 1;
            assert!(place.is_equal(), "{context}");
        } else {
            assert_eq!(place.names(), ["image"], "{context}");
        }
        // A side that reports success is right, and a side that failed says so in one line that
        // helps.
        for (status, said) in [sent, received] {
            match status {
                Some(0) => assert!(is_there, "{context}"),
                Some(status) => {
                    let last = said.lines().last().unwrap_or_default();
                    assert!(
                        status == 125 && last.starts_with("pagoda: could not ") && last.contains(';'),
                        "{context}"
                    );
                }
                None => {}
            }
        }
    }
    println!("{arrived} arrived all the same");
}
