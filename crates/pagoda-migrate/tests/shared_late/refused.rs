//! Refusals before the switch, after which the sender goes on.

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
use pagoda_linux::testing::large_pages;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::sandbox::{Denial, deny_userfaultfd, hide_userfaultfd_device};
use pagoda_linux::testing::shared::SharedMapping;
use pagoda_linux::testing::skip::{skip, skip_without_shared_faults};
use pagoda_linux::testing::wait::until;
use pagoda_migrate::{Error, Event, Listener, OwnWrites, SharedMemory};

use crate::support::shared_file::{Looks, PAGE, Shared};
use crate::{
    HOLES, Idle, LEN, Outcome, PAGES, check, migrate, options, read, receive_options, rest, source, support,
    with_content,
};

/// The second mapping makes the page again and again, as soon as it was made a hole.
#[test]
fn an_owed_page_that_is_no_hole_ends_it_before_the_switch() {
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
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
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
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
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
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
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
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
