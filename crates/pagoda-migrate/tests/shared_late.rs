//! Memory that processes share is used before all of it has arrived.

mod support;

use std::fs::File;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_core::size::Bytes;
use pagoda_linux::io::sparse_file::data_in;
use pagoda_linux::testing::access::Access;
use pagoda_linux::testing::large_pages;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::sandbox::{Denial, deny_userfaultfd, hide_userfaultfd_device};
use pagoda_linux::testing::shared::SharedMapping;
use pagoda_linux::testing::skip::skip;
use pagoda_linux::testing::wait::until;
use pagoda_migrate::{
    Counts, Endpoint, Error, Event, Listener, LiveOptions, Moved, Otherwise, OwnWrites, ReceiveOptions,
    SendOptions, SharedArrival, SharedMemory, Writer,
};
use support::STALL;
use support::proxy::{Fault, Plan, line};
use support::shared_file::{Looks, PAGE, Shared, unwritten};

const LEN: usize = 12 << 20;
const PAGES: usize = LEN / PAGE;
/// Pages that never held anything, and pages that were written with zeroes.
const HOLES: usize = 5;
const ZEROES: usize = 7;

/// The signal's number, on all that Pagoda runs on.
const SIGBUS: i32 = 7;

fn options(codec: Codec, channels: u16, rounds: u32) -> LiveOptions {
    LiveOptions {
        send: SendOptions {
            channels,
            codec,
            stall: STALL,
            bandwidth: Some(Bytes::mib(64)),
            ..SendOptions::default()
        },
        downtime: Duration::ZERO,
        rounds,
        otherwise: Otherwise::PostCopy,
        slow_most_percent: 0,
    }
}

fn receive_options(zero: ZeroPolicy) -> ReceiveOptions {
    ReceiveOptions { zero, wait: STALL, stall: STALL, ..ReceiveOptions::default() }
}

/// The content of a page that the writer does not change.
fn content(page: usize) -> [u8; PAGE] {
    let mut random = Random::new(page as u64, 9);
    let mut content = [0; PAGE];
    match page {
        _ if page.is_multiple_of(HOLES) || page.is_multiple_of(ZEROES) => {}
        // One word, and many.
        _ if page.is_multiple_of(3) => content.fill(page as u8 | 1),
        _ => content.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_ne_bytes())),
    }
    content
}

fn source() -> Shared {
    let shared = Shared::new(LEN);
    (0..PAGES)
        .filter(|page| !page.is_multiple_of(HOLES))
        .for_each(|page| shared.mapping.write(page * PAGE, &content(page)));
    shared
}

/// How many pages of the source hold anything but zero.
fn with_content() -> u64 {
    (0..PAGES).filter(|page| content(*page) != [0; PAGE]).count() as u64
}

fn read(shared: &Shared, page: usize) -> [u8; PAGE] {
    let mut found = [0; PAGE];
    shared.read(page * PAGE, &mut found);
    found
}

fn check(shared: &Shared, page: usize, context: &str) {
    assert!(read(shared, page) == content(page), "{context}: page {page} is not the sent one");
}

/// Nothing writes.
struct Idle;

impl Writer for Idle {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}

type Outcome = (Result<Moved, Error>, Result<Counts, Error>);

/// Sends `from`, which is not written, to `to`, which `use_it` uses from the switch on.
fn migrate(
    from: &Shared,
    to: &Shared,
    options: &LiveOptions,
    receiving: &ReceiveOptions,
    route: impl FnOnce(Endpoint) -> Endpoint,
    use_it: impl FnOnce(SharedArrival<'_>) -> Result<Counts, Error> + Send,
) -> Outcome {
    let listener = Listener::bind(&support::any_port()).expect("a listener");
    let at = route(listener.endpoint().expect("an address"));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut memory = to.memory();
            let address = to.mapping.as_ptr();
            use_it(memory.receive_late(address, listener, receiving, &mut |_| Continue(()))?)
        });
        let sent =
            from.memory().migrate_to(&at, options, &mut unwritten(), &mut Idle, &mut |_, _| Continue(()));
        (sent, receiver.join().expect("the receiver"))
    })
}

fn rest(arrival: SharedArrival<'_>) -> Result<Counts, Error> {
    arrival.receive_rest(&mut |_| Continue(()))
}

/// Whether a touch of a page by the mapping ends in SIGBUS.
fn is_poisoned(access: &Access, shared: &Shared, page: usize) -> bool {
    match access.touch(shared.mapping.range().start() + page * PAGE) {
        Ok(()) => false,
        Err(signal) => {
            assert_eq!(signal, SIGBUS);
            true
        }
    }
}

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
    for seed in runs(3) {
        let mut random = Random::new(seed, 0);
        let (from, to) = (source(), Shared::used(LEN));
        let fault = [Fault::Cut, Fault::Flip, Fault::Lose][seed as usize % 3];
        let at = 200_000 + random.below(2_000_000);
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
        assert!(counts.recoveries > 0, "{context}: {counts:?}");
        (0..PAGES).for_each(|page| check(&to, page, &context));
    }
}

#[test]
fn a_sender_that_is_lost_after_the_switch_leaves_poison_and_no_zeroes() {
    let access = Access::begin().expect("the right to try");
    let (from, to) = (source(), Shared::used(LEN));
    let mut options = options(Codec::None, 2, 0);
    options.send.recover_for = Duration::ZERO;
    let receiving =
        ReceiveOptions { recover_for: Duration::from_millis(700), ..receive_options(ZeroPolicy::default()) };
    let route = |at: Endpoint| {
        line(&at, Plan { fault: Fault::Cut, channel: 0, at: 1_000_000, is_of_the_receiver: false })
    };
    let (sent, received) = migrate(&from, &to, &options, &receiving, route, |arrival| {
        thread::scope(|scope| {
            let receiver = scope.spawn(|| rest(arrival));
            // Where a page is missing this waits until the sender is given up.
            let lost: Vec<bool> = (0..PAGES).map(|page| is_poisoned(&access, &to, page)).collect();
            let received = receiver.join().expect("no panic");
            for (page, is_lost) in lost.iter().enumerate() {
                assert_eq!(is_poisoned(&access, &to, page), *is_lost, "page {page} once more");
                if !is_lost {
                    check(&to, page, "not lost");
                }
            }
            assert!(lost.contains(&true), "nothing was lost");
            received
        })
    });
    assert!(matches!(sent, Err(Error::AfterSwitch(_))), "{sent:?}");
    assert!(matches!(received, Err(Error::NotRecovered { .. })), "{received:?}");
}

#[test]
fn an_arrival_that_is_dropped_or_ended_leaves_poison() {
    let access = Access::begin().expect("the right to try");
    for drops in [false, true] {
        let (from, to) = (source(), Shared::used(LEN));
        let receiving = receive_options(ZeroPolicy::default());
        let mut options = options(Codec::None, 2, 0);
        options.send.recover_for = Duration::ZERO;
        let (sent, received) = migrate(
            &from,
            &to,
            &options,
            &receiving,
            |at| at,
            |arrival| {
                let received = match drops {
                    true => {
                        drop(arrival);
                        Err(Error::Cancelled)
                    }
                    false => arrival.receive_rest(&mut |_| Break(())),
                };
                for page in 0..PAGES {
                    let is_lost = is_poisoned(&access, &to, page);
                    assert!(!is_lost || !page.is_multiple_of(HOLES), "a hole is not lost: {page}");
                    if !is_lost {
                        check(&to, page, "not lost");
                    }
                }
                assert!(is_poisoned(&access, &to, PAGES - 1), "it was owed");
                received
            },
        );
        assert!(matches!(sent, Err(Error::AfterSwitch(_))), "{sent:?}");
        assert!(matches!(received, Err(Error::Cancelled)), "{received:?}");
    }
}

#[test]
fn a_touch_by_another_mapping_or_the_file_is_told() {
    use std::os::unix::fs::FileExt;
    let access = Access::begin().expect("the right to try");
    const PAGE_1: usize = PAGES - 1;
    for by_file in [false, true] {
        let (from, to) = (source(), Shared::used(LEN));
        let receiving = receive_options(ZeroPolicy::default());
        let (sent, received) = migrate(
            &from,
            &to,
            &options(Codec::None, 2, 0),
            &receiving,
            |at| at,
            |arrival| {
                if by_file {
                    to.file.write_all_at(&[1], to.offset(PAGE_1 * PAGE)).expect("written");
                } else {
                    let other = SharedMapping::of(&to.file, to.offset(0), LEN).expect("mapped");
                    other.read(PAGE_1 * PAGE, &mut [0; 8]);
                }
                let received = rest(arrival);
                assert!(is_poisoned(&access, &to, PAGE_1), "it does not have its content");
                received
            },
        );
        assert!(matches!(sent, Err(Error::AfterSwitch(_))), "{sent:?}");
        let received = received.expect_err("it was touched");
        assert!(matches!(received, Error::Destination(_)), "{received}");
        let said = received.to_string();
        let at = format!("page at {} of", to.offset(PAGE_1 * PAGE));
        assert!(said.contains(&at) && said.contains("made by another process"), "{said}");
    }
}

#[test]
fn a_file_that_is_cut_short_after_the_switch_is_an_error() {
    let access = Access::begin().expect("the right to try");
    let (from, to) = (source(), Shared::used(LEN));
    let receiving = receive_options(ZeroPolicy::default());
    let (sent, received) = migrate(
        &from,
        &to,
        &options(Codec::None, 2, 0),
        &receiving,
        |at| at,
        |arrival| {
            to.file.set_len(to.offset(LEN / 2)).expect("shorter");
            let received = rest(arrival);
            (PAGES / 2..PAGES).for_each(|page| assert!(is_poisoned(&access, &to, page), "page {page}"));
            received
        },
    );
    assert!(matches!(sent, Err(Error::AfterSwitch(_))), "{sent:?}");
    let received = received.expect_err("it was cut short").to_string();
    assert!(received.contains("cut it short"), "{received}");
    assert_eq!(to.file.metadata().expect("metadata").len(), to.offset(LEN / 2), "it was made longer");
}

#[test]
fn a_mapping_that_goes_meanwhile_ends_nothing() {
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

/// The second mapping makes the page again and again, as soon as it was made a hole.
#[test]
fn an_owed_page_that_is_no_hole_ends_it_before_the_switch() {
    for attempt in 0.. {
        let (from, to) = (source(), Shared::used(LEN));
        let stops = AtomicBool::new(false);
        let (sent, received) = thread::scope(|scope| {
            scope.spawn(|| {
                let other = SharedMapping::of(&to.file, to.offset(0), LEN).expect("mapped");
                while !stops.load(Ordering::Acquire) {
                    other.write(PAGE, &[1; 8]);
                }
            });
            let receiving = receive_options(ZeroPolicy::default());
            let mut options = options(Codec::None, 2, 0);
            options.send.recover_for = Duration::ZERO;
            let outcome = migrate(&from, &to, &options, &receiving, |at| at, rest);
            stops.store(true, Ordering::Release);
            outcome
        });
        let received = received.expect_err("a page is no hole").to_string();
        match sent {
            // The writer may run again.
            Err(Error::Peer(_)) => {
                assert!(received.contains("could not be given back"), "{received}");
                to.discard(PAGE, PAGE);
                assert!(to.is_all(0), "something is left");
                (0..PAGES).for_each(|page| check(&from, page, "the source"));
                return;
            }
            // It was made a moment too late.
            Err(Error::AfterSwitch(_)) => assert!(received.contains("made by another"), "{received}"),
            other => panic!("{other:?}"),
        }
        assert!(attempt < 50, "it was always a moment too late");
    }
}

/// All pages arrive in the first round, and are told as written: so all are owed. Where `holds` is
/// set a device holds one of them.
fn move_to_large_pages(to: &Shared, holds: bool) -> Outcome {
    let from = source();
    let held = Mutex::new(None);
    let is_held = AtomicBool::new(!holds);
    let mut tells_all = Looks::new(|look, dirty: &mut pagoda_migrate::DirtyPages<'_>| {
        if look == 2 {
            until("a page is held", || is_held.load(Ordering::Acquire));
            // Many runs, of which each divides what came together.
            (0..dirty.pages())
                .filter(|page| holds || page % 13 < 9)
                .for_each(|page| dirty.add(page..page + 1));
        }
        Ok(())
    });
    let listener = Listener::bind(&support::any_port()).expect("a listener");
    let at = listener.endpoint().expect("an address");
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut memory, receiving) = (to.memory(), receive_options(ZeroPolicy::Drop));
            let mut watch = |event: Event<'_>| {
                let Event::Moving(progress) = event else { return Continue(()) };
                if progress.counts().data_pages > 0 && !is_held.load(Ordering::Acquire) {
                    // One that was never sent came with others.
                    let at = |page: usize| to.offset(page * PAGE);
                    let has_data =
                        |page: &usize| data_in(&to.file, at(*page)..at(page + 1)).expect("asked").is_some();
                    if let Some(page) = (0..PAGES).step_by(HOLES).find(has_data) {
                        let other = SharedMapping::of(&to.file, to.offset(0), LEN).expect("mapped");
                        *held.lock().expect("no panic") = Some(other.hold(page * PAGE).expect("held"));
                        is_held.store(true, Ordering::Release);
                    }
                }
                Continue(())
            };
            let arrival = memory.receive_late(to.mapping.as_ptr(), listener, &receiving, &mut watch)?;
            thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let mut random = Random::new(1, 1);
                    (0..PAGES).for_each(|_| check(to, random.below(PAGES), "large pages"));
                });
                let received = rest(arrival);
                reader.join().expect("the reader");
                received
            })
        });
        let options = options(Codec::None, 2, 1);
        let sent =
            from.memory().migrate_to(&at, &options, &mut tells_all, &mut Idle, &mut |_, _| Continue(()));
        (sent, receiver.join().expect("the receiver"))
    })
}

#[test]
fn pages_that_came_together_are_owed_one_by_one_or_the_switch_is_refused() {
    for holds in [false, true] {
        let file = match large_pages::file(Shared::file_len(LEN)) {
            Ok(file) => file,
            Err(error) => return skip("post-copy into large pages", error),
        };
        let to = Shared::of(file, LEN);
        let (sent, received) = move_to_large_pages(&to, holds);
        if holds {
            // The writer may run again.
            assert!(matches!(sent, Err(Error::Peer(_))), "{sent:?}");
            let received = received.expect_err("a page is held").to_string();
            assert!(received.contains("could not be given back"), "{received}");
            assert!(to.is_all(0), "something is left");
        } else {
            assert!(sent.expect("sent").owed_for.is_some());
            assert!(received.expect("received").owed_pages > with_content() / 2);
            (0..PAGES).for_each(|page| check(&to, page, "large pages"));
        }
        to.check_beside("large pages");
    }
}

fn refusal(memory: &mut SharedMemory, address: *const u8) -> String {
    let listener = Listener::bind(&support::any_port()).expect("a listener");
    // It would wait for a sender otherwise.
    let refused =
        memory.receive_late(address, listener, &receive_options(ZeroPolicy::Drop), &mut |_| Break(()));
    match refused.map(drop).expect_err("refused") {
        Error::Destination(why) => why.to_string(),
        other => panic!("{other}"),
    }
}

#[test]
fn refusals_change_nothing_and_say_why() {
    let to = Shared::used(LEN);
    let (mut memory, at) = (to.memory(), to.mapping.as_ptr());
    let mut refusal = |address| refusal(&mut memory, address);
    assert!(refusal(at.wrapping_add(1)).contains("whole page"));
    assert!(refusal(at.wrapping_add(PAGE)).contains("no shared mapping of this memory"));
    let writes = OwnWrites::new(&to.memory(), at).expect("tracked");
    assert!(refusal(at).contains("another userfaultfd"));
    drop(writes);
    let address = at.addr();
    let said = thread::scope(|scope| {
        let denied = scope.spawn(|| {
            hide_userfaultfd_device().expect("hidden");
            deny_userfaultfd(Denial::NotPermitted).expect("denied");
            self::refusal(&mut to.memory(), std::ptr::without_provenance(address))
        });
        denied.join().expect("no panic")
    });
    assert!(said.contains("can't be made to wait") && said.contains("without post-copy"), "{said}");
    let path = format!("/proc/self/fd/{}", to.file.as_raw_fd());
    let read_only = File::open(path).expect("opened");
    let mut read_only = SharedMemory::new(read_only, to.offset(0), Bytes::new(LEN as u64)).expect("memory");
    assert!(self::refusal(&mut read_only, at).contains("read only"));
    // Another length: the sender is told, and nothing is given up.
    let from = Shared::used(LEN - PAGE);
    let receiving = receive_options(ZeroPolicy::default());
    let (sent, received) = migrate(&from, &to, &options(Codec::None, 1, 0), &receiving, |at| at, rest);
    sent.expect_err("refused");
    assert!(received.expect_err("another length").to_string().contains("give as much as is sent"));
    assert!(to.is_all(0xe7));
    // After all of these it is as free as before.
    drop(OwnWrites::new(&to.memory(), at).expect("tracked"));
}

/// Nothing is shown of a sender that ends before the switch; and no thread waits for good.
#[test]
fn a_failure_before_the_switch_leaves_zeroes_and_no_poison() {
    let (from, to) = (source(), Shared::used(LEN));
    let mut fails = Looks::new(|look, _: &mut pagoda_migrate::DirtyPages<'_>| match look {
        1 | 2 => Ok(()),
        _ => Err(std::io::Error::other("the log is gone")),
    });
    let listener = Listener::bind(&support::any_port()).expect("a listener");
    let at = listener.endpoint().expect("an address");
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut memory, receiving) = (to.memory(), receive_options(ZeroPolicy::Drop));
            let address = to.mapping.as_ptr();
            memory.receive_late(address, listener, &receiving, &mut |_| Continue(())).map(drop)
        });
        // A thread that touches it too early.
        let early = scope.spawn(|| read(&to, 2));
        let options = options(Codec::None, 2, 4);
        let sent = from.memory().migrate_to(&at, &options, &mut fails, &mut Idle, &mut |_, _| Continue(()));
        sent.expect_err("it failed");
        receiver.join().expect("no panic").expect_err("nothing to show");
        early.join().expect("it waits no more");
    });
    (0..PAGES).for_each(|page| assert_eq!(read(&to, page), [0; PAGE], "page {page}"));
}
