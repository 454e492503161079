//! Pages that are lost after the switch are poisoned, and never read as zero.

use std::ops::ControlFlow::Break;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_linux::testing::access::Access;
use pagoda_linux::testing::shared::SharedMapping;
use pagoda_linux::testing::skip::skip_without_shared_faults;
use pagoda_migrate::{Endpoint, Error, ReceiveOptions};

use crate::support::proxy::{Fault, Plan, line};
use crate::support::shared_file::{PAGE, Shared};
use crate::{HOLES, LEN, PAGES, check, migrate, options, receive_options, rest, source};

/// The signal's number, on all that Pagoda runs on.
const SIGBUS: i32 = 7;

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

#[test]
fn a_sender_that_is_lost_after_the_switch_leaves_poison_and_no_zeroes() {
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
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
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
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
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
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
    if skip_without_shared_faults("post-copy into shared memory") {
        return;
    }
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
