//! Either side is killed at any byte of a migration by post-copy. Before the switch the source
//! stays whole; after it arrived pages are right at the destination, and a read of a missing one is
//! an error, and never waits.

use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;

use pagoda::Region;
use pagoda::migrate::{Endpoint, Writer, ZeroPolicy};
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::random::{Random, may_end, runs};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::program::{PAGE, Program};
use crate::migrate::sides::{Kind, Pair, REGION, listen, own_manager, say, send, wire};
use crate::migrate::support::{late_options, receive_options};

const SIGBUS: i32 = libc::SIGBUS;

/// Says when it is stopped.
struct Announces;

impl Writer for Announces {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        say("stopped");
    }
}

pub fn source(to: &Endpoint, seed: u64) {
    let (codec, channels) = wire(seed);
    let options = late_options(codec, channels, 0);
    send(seed, |region, _| {
        region.migrate_to(to, &options, &mut Announces, &mut |_, _| ControlFlow::Continue(()))
    });
}

/// Whether the destination reads as if nothing could be lost, and so waits for pages in the kernel
/// when the source is.
fn reads_by_address(seed: u64) -> bool {
    seed.is_multiple_of(4)
}

/// Checks all pages that arrive, and in the end touches lost ones.
pub fn destination(seed: u64) {
    let manager = own_manager();
    let same = manager.region(REGION).create().expect("a region");
    let mut program = Program::new(&same, seed);
    program.fill();
    let listener = listen();
    let receiving = receive_options(ZeroPolicy::default());
    let received = Region::receive_late(&manager, listener, &receiving, &mut |_| ControlFlow::Continue(()));
    let (region, arrival) = match received {
        Ok(received) => received,
        Err(error) => return say(&format!("failed: {error}")),
    };
    say("switched");
    let pages = region.len() / PAGE;
    let mut lost = None;
    let mut random = Random::new(seed, 3);
    let by_address = reads_by_address(seed);
    let mut look = |page: usize| {
        let mut found = [0; PAGE];
        let read = if by_address {
            found = load(region.as_ptr().wrapping_add(page * PAGE));
            Ok(())
        } else {
            region.read_at(page * PAGE, &mut found)
        };
        match read {
            Err(_) => lost = Some(page),
            Ok(()) => assert!(program.wrote(page, &found), "page {page} is not the sent one"),
        }
    };
    // Some are asked for, and the others come as they do.
    (0..200).for_each(|_| look(random.below(pages)));
    let outcome = arrival.wait();
    (0..pages).for_each(look);
    match (outcome, lost) {
        (Ok(_), None) => say("whole"),
        (Err(error), None) => say(&format!("nothing is lost: {error}")),
        (Err(error), Some(page)) => {
            say(&format!("lost: {error}"));
            let _ = load::<1>(region.as_ptr().wrapping_add(page * PAGE));
            say("read a lost page");
        }
        (Ok(_), Some(page)) => say(&format!("page {page} is said to be lost")),
    }
}

/// How many points a side is killed at, if nothing is said.
const RUNS: u64 = 28;
/// The normal form ends after so many, if they showed enough.
const SHORT: u64 = 12;

#[test]
fn a_side_that_is_killed_before_the_switch_or_after_it_leaves_one_that_knows_what_it_has() {
    if skip_without_moves("post-copy that is killed") {
        return;
    }
    let (mut lost, mut before) = (0, 0);
    for seed in runs(RUNS) {
        if may_end(seed, SHORT, lost > 2 && before > 0) {
            break;
        }
        let mut random = Random::new(seed, 0);
        // In the handshake and the owed pages, or after them.
        let at = random.below([3_000, 400_000, 2_000_000][seed as usize / 2 % 3]) as u64;
        let mut pair = Pair::start(Kind::PostCopy, seed, at);
        let kill_sender = seed % 2 == 0;
        pair.kill(kill_sender);
        let Pair { sender, receiver, .. } = &mut pair;
        let sent: Vec<String> = std::iter::from_fn(|| sender.next()).collect();
        let received: Vec<String> = std::iter::from_fn(|| receiver.next()).collect();
        let status = receiver.child.wait().expect("its end");
        let context =
            format!("PAGODA_SEED={seed}, killed the sender: {kill_sender}; {sent:?}, {received:?}, {status}");
        let has_switched = received.iter().any(|said| said == "switched");
        if kill_sender {
            let last = received.last().expect("it says its outcome");
            if has_switched {
                // All of it, or an error to a reader of a missing page: by a call, and by the
                // address.
                let is_lost = last.starts_with("lost: ") || last == "switched" && reads_by_address(seed);
                assert!(is_lost || last == "whole" || last.starts_with("nothing is lost"), "{context}");
                assert_eq!(status.signal(), is_lost.then_some(SIGBUS), "{context}");
                lost += u32::from(is_lost);
            } else {
                before += 1;
                assert!(last.starts_with("failed: ") && status.success(), "{context}");
            }
        } else {
            let last = sent.last().expect("it says its outcome");
            if last.starts_with("goes on") {
                assert!(!has_switched, "{context}: a region that lives on here must not live there, too");
            } else {
                assert!(["moved", "unconfirmed", "gone"].contains(&last.as_str()), "{context}");
            }
        }
    }
    // Of fewer than always it may be none.
    if runs(RUNS).count() as u64 >= RUNS {
        assert!(lost > 2 && before > 0, "{lost} lost something, {before} ended before the switch");
    }
}
