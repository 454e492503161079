//! The memory is used by readers and writers from the switch on.

use std::ops::ControlFlow::Continue;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::shared::SharedMapping;
use pagoda_linux::testing::skip::skip_without_shared_faults;
use pagoda_migrate::{Counts, Endpoint, Listener, LiveOptions, Otherwise, OwnWrites, SharedArrival, Writer};

use crate::support::proxy::{Fault, Plan, line};
use crate::support::shared_file::{PAGE, Shared, unwritten};
use crate::{
    Idle, LEN, PAGES, check, content, migrate, options, read, receive_options, rest, source, support,
    with_content,
};

/// Writes words until it is stopped.
struct Scribbler<'a> {
    memory: &'a Shared,
    shadow: Mutex<Vec<u8>>,
    wanted: AtomicBool,
    stands: AtomicBool,
}

impl<'a> Scribbler<'a> {
    fn new(memory: &'a Shared) -> Self {
        let shadow = (0..PAGES).flat_map(content).collect();
        Self {
            memory,
            shadow: Mutex::new(shadow),
            wanted: AtomicBool::default(),
            stands: AtomicBool::default(),
        }
    }

    fn run(&self, seed: u64) {
        let (mut random, mut shadow) = (Random::new(seed, 1), self.shadow.lock().expect("no panic"));
        while !self.wanted.load(Ordering::Acquire) {
            let (at, word) = (random.below(LEN / 8) * 8, random.next().to_ne_bytes());
            self.memory.write(at, &word);
            shadow[at..at + 8].copy_from_slice(&word);
        }
        drop(shadow);
        self.stands.store(true, Ordering::Release);
    }
}

impl Writer for &Scribbler<'_> {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        self.wanted.store(true, Ordering::Release);
        while !self.stands.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

/// Reads pages in disorder by several threads, and writes others, while the rest arrives.
fn use_at_once(to: &Shared, shadow: &[u8], arrival: SharedArrival<'_>, seed: u64, context: &str) -> Counts {
    const OWN: usize = 4;
    let is_own = |page: usize| page % OWN == seed as usize % OWN;
    let counts = thread::scope(|scope| {
        for reader in 0..3 {
            let mut random = Random::new(seed, 10 + reader);
            scope.spawn(move || {
                for _ in 0..PAGES {
                    let page = random.below(PAGES);
                    if !is_own(page) {
                        let due = &shadow[page * PAGE..][..PAGE];
                        assert!(read(to, page) == due, "{context}: page {page} is not the sent one");
                    }
                }
            });
        }
        scope.spawn(move || {
            let mut random = Random::new(seed, 20);
            let mut own = shadow.to_vec();
            for _ in 0..PAGES {
                let page = random.below(PAGES / OWN) * OWN + seed as usize % OWN;
                let (at, word) = (page * PAGE + random.below(PAGE / 8) * 8, random.next().to_ne_bytes());
                to.mapping.write(at, &word);
                own[at..at + 8].copy_from_slice(&word);
                assert!(read(to, page) == own[page * PAGE..][..PAGE], "{context}: a write to {page} is lost");
            }
            (0..PAGES).filter(|page| is_own(*page)).for_each(|page| {
                assert!(read(to, page) == own[page * PAGE..][..PAGE], "{context}: a write to {page} is lost");
            });
        });
        rest(arrival).unwrap_or_else(|error| panic!("{context}: {error}"))
    });
    (0..PAGES).filter(|page| !is_own(*page)).for_each(|page| {
        assert!(read(to, page) == shadow[page * PAGE..][..PAGE], "{context}: page {page} in the end");
    });
    counts
}

#[test]
fn memory_that_is_used_at_once_is_as_it_was_when_its_writer_was_stopped() {
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
    let mut asked = 0;
    for seed in runs(1) {
        for (at, codec) in Codec::ALL.into_iter().enumerate() {
            let (rounds, channels) = (at as u32 % 3, [1, 3][(at + seed as usize) % 2]);
            let zero = ZeroPolicy::ALL[(at + seed as usize) % ZeroPolicy::ALL.len()];
            let context = format!("seed {seed}: {codec:?}, {zero:?}, {channels} channels, {rounds} rounds");
            let (from, to) = (source(), Shared::used(LEN));
            let scribbler = &Scribbler::new(&from);
            let listener = Listener::bind(&support::any_port()).expect("a listener");
            let endpoint = listener.endpoint().expect("an address");
            let counts = thread::scope(|scope| {
                let receiver = scope.spawn(|| {
                    let (mut memory, receiving) = (to.memory(), receive_options(zero));
                    let address = to.mapping.as_ptr();
                    let arrival = memory
                        .receive_late(address, listener, &receiving, &mut |_| Continue(()))
                        .unwrap_or_else(|error| panic!("{context}: {error}"));
                    assert!(!arrival.is_whole(), "{context}");
                    let shadow = scribbler.shadow.lock().expect("no panic");
                    use_at_once(&to, &shadow, arrival, seed, &context)
                });
                scope.spawn(move || scribbler.run(seed));
                let options = options(codec, channels, rounds);
                let sent = from.memory().migrate_to(
                    &endpoint,
                    &options,
                    &mut &from,
                    &mut &*scribbler,
                    &mut |_, _| Continue(()),
                );
                scribbler.wanted.store(true, Ordering::Release);
                sent.unwrap_or_else(|error| panic!("{context}: {error}"));
                receiver.join().expect("the receiver")
            });
            assert!(counts.owed_pages > 0, "{context}: {counts:?}");
            asked += counts.asked;
            [&from, &to].iter().for_each(|shared| shared.check_beside(&context));
        }
    }
    assert!(asked > 0, "no page was asked for");
}

#[test]
fn pages_that_are_zero_or_hold_nothing_stay_holes_and_read_as_zero() {
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
    let (from, to) = (source(), Shared::used(LEN));
    let (sent, received) = migrate(
        &from,
        &to,
        &options(Codec::None, 2, 0),
        &receive_options(ZeroPolicy::Drop),
        |at| at,
        |arrival| {
            // A hole that the sender has not, while pages are owed.
            check(&to, 0, "a hole");
            rest(arrival)
        },
    );
    let moved = sent.expect("sent");
    let counts = received.expect("received");
    assert!(moved.owed_for.is_some() && counts.owed_pages >= with_content(), "{counts:?}");
    // One hole was read.
    assert_eq!(to.held(), with_content() + 1);
    (0..PAGES).for_each(|page| check(&to, page, "zeroes"));
    // The mapping is free again, and a page that is given back reads as zero.
    let tracked = OwnWrites::new(&to.memory(), to.mapping.as_ptr()).expect("no userfaultfd is left");
    drop(tracked);
    to.discard(PAGE, PAGE);
    assert_eq!(read(&to, 1), [0; PAGE]);
}

#[test]
fn a_sender_that_does_not_switch_leaves_nothing_owed() {
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
    let (from, to) = (source(), Shared::used(LEN));
    let options = LiveOptions { otherwise: Otherwise::StopForLonger, ..options(Codec::None, 2, 3) };
    let receiving = receive_options(ZeroPolicy::default());
    let (sent, received) = migrate(
        &from,
        &to,
        &options,
        &receiving,
        |at| at,
        |arrival| {
            assert!(arrival.is_whole());
            (0..PAGES).for_each(|page| check(&to, page, "whole"));
            rest(arrival)
        },
    );
    assert!(sent.expect("sent").owed_for.is_none());
    assert_eq!(received.expect("received").owed_pages, 0);
}

#[test]
fn channels_that_are_cut_after_the_switch_cost_no_page() {
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
    let mut recoveries = 0;
    for seed in runs(6) {
        let mut random = Random::new(seed, 0);
        let (from, to) = (source(), Shared::used(LEN));
        let fault = [Fault::Cut, Fault::Flip, Fault::Lose][seed as usize % 3];
        // Behind all that comes before the switch. Requests may leave a channel less than this.
        let at = 60_000 + random.below(400_000);
        let plan = Plan { fault, channel: random.below(2), at, is_of_the_receiver: false };
        let context = format!("seed {seed}: {plan:?}");
        let route = |at: Endpoint| line(&at, plan);
        let receiving = receive_options(ZeroPolicy::default());
        let (sent, received) =
            migrate(&from, &to, &options(Codec::None, 2, 0), &receiving, route, |arrival| {
                thread::scope(|scope| {
                    let to = &to;
                    let reader = scope.spawn(move || {
                        (0..PAGES).for_each(|_| check(to, random.below(PAGES), "while they are cut"));
                    });
                    let received = rest(arrival);
                    reader.join().expect("the reader");
                    received
                })
            });
        sent.unwrap_or_else(|error| panic!("{context}: {error}"));
        let counts = received.unwrap_or_else(|error| panic!("{context}: {error}"));
        recoveries += counts.recoveries;
        (0..PAGES).for_each(|page| check(&to, page, &context));
    }
    assert!(recoveries > 2, "{recoveries} recoveries");
}

#[test]
fn a_mapping_that_goes_meanwhile_ends_nothing() {
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
    let (from, mut to) = (source(), Shared::used(LEN));
    let other = SharedMapping::of(&to.file, to.offset(0), LEN).expect("mapped");
    // The one that is registered goes, and the other one shows all in the end.
    let gone = std::mem::replace(&mut to.mapping, other);
    let listener = Listener::bind(&support::any_port()).expect("a listener");
    let at = listener.endpoint().expect("an address");
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut memory, receiving) = (to.memory(), receive_options(ZeroPolicy::default()));
            let arrival = memory.receive_late(gone.as_ptr(), listener, &receiving, &mut |_| Continue(()))?;
            drop(gone);
            rest(arrival)
        });
        let options = options(Codec::None, 2, 0);
        from.memory()
            .migrate_to(&at, &options, &mut unwritten(), &mut Idle, &mut |_, _| Continue(()))
            .expect("sent");
        receiver.join().expect("no panic").expect("received");
    });
    (0..PAGES).for_each(|page| check(&to, page, "by another mapping"));
}
