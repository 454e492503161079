//! Either side is killed at any byte of a live migration: the source stays whole, and the shown
//! content of the destination is whole.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::thread;

use pagoda::Region;
use pagoda::migrate::{Endpoint, Writer, ZeroPolicy};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::program::{Brake, PAGE};
use crate::migrate::sides::{Kind, Pair, listen, own_manager, say, send, wire};
use crate::migrate::support::{live_options, receive_options};

/// The content of a region, in a word.
fn digest(region: &Region) -> u64 {
    let mut page = [0; PAGE];
    (0..region.len()).step_by(PAGE).fold(0, |digest, offset| {
        region.read_at(offset, &mut page).expect("read");
        twox_hash::XxHash3_64::oneshot_with_seed(digest, &page)
    })
}

pub fn destination() {
    let (manager, listener) = (own_manager(), listen());
    let receiving = receive_options(ZeroPolicy::default());
    match Region::receive(&manager, listener, &receiving, &mut |_| ControlFlow::Continue(())) {
        Ok((region, _)) => say(&format!("arrived {:x}", digest(&region))),
        Err(error) => say(&format!("failed: {error}")),
    }
}

/// Stops the program, and prints the digest of its writes.
struct Announces<'a> {
    brake: &'a Brake,
    region: &'a Region,
}

impl Writer for Announces<'_> {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        let mut brake = self.brake;
        Writer::stop(&mut brake);
        say(&format!("stopped {:x}", digest(self.region)));
    }
}

pub fn source(to: &Endpoint, seed: u64) {
    let (codec, channels) = wire(seed);
    let options = live_options(codec, channels);
    send(seed, |region, program| {
        let brake = Brake::default();
        thread::scope(|scope| {
            let writer = scope.spawn(|| brake.run(program));
            let mut announces = Announces { brake: &brake, region };
            let sent = region.migrate_to(to, &options, &mut announces, &mut |_, _| ControlFlow::Continue(()));
            brake.stop();
            writer.join().expect("the program");
            sent
        })
    });
}

#[test]
fn a_side_that_is_killed_leaves_the_source_whole_and_no_half_of_it_at_the_destination() {
    if skip_without_moves("live migrations that are killed") {
        return;
    }
    let (mut arrived, mut total) = (0, 4_000_000);
    for seed in runs(length(12, 50)) {
        let mut random = Random::new(seed, 0);
        // Anywhere, or after the program was stopped: where the end of it is.
        let late = seed % 4 > 1;
        let at = if late { u64::MAX } else { random.below(total) as u64 };
        let mut pair = Pair::start(Kind::PreCopy, seed, at);
        let mut stopped = None;
        if late {
            stopped = pair.sender.next();
            *pair.line.left.lock().expect("no panic") =
                random.below([600, 60_000, 2_000_000][seed as usize / 4 % 3]) as u64;
        }
        let kill_sender = seed % 2 == 0;
        pair.kill(kill_sender);
        let Pair { sender, receiver, line, .. } = &mut pair;
        let mut said: Vec<String> = stopped.into_iter().collect();
        said.extend(std::iter::from_fn(|| sender.next()));
        let received = receiver.next();
        let context = format!("PAGODA_SEED={seed}, killed the sender: {kill_sender}; {said:?}, {received:?}");
        let digest = said.iter().find_map(|said| said.strip_prefix("stopped "));
        let shown = received.as_deref().and_then(|said| said.strip_prefix("arrived "));
        if let Some(shown) = shown {
            arrived += 1;
            assert_eq!(Some(shown), digest, "{context}: the shown region is whole");
        }
        let last = said.last().map_or("", String::as_str);
        if !kill_sender || !line.held.load(Ordering::Acquire) {
            let ended = ["moved", "unconfirmed"].contains(&last) || last.starts_with("goes on: ");
            assert!(ended, "{context}");
        }
        if last == "moved" && !kill_sender {
            // Killed after it had confirmed, or not at all.
            assert!(digest.is_some(), "{context}");
        }
        if last.starts_with("goes on") {
            assert!(shown.is_none(), "{context}: a region that lives on here must not live there, too");
        }
        total = total.min(line.passed.load(Ordering::Relaxed).max(1_000_000) as usize);
    }
    println!("{arrived} arrived all the same");
}
