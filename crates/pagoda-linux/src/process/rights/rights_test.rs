//! What a status says of rights, and a change that waits for threads.

use std::sync::Mutex;

use super::reader::parse;
use super::*;
use crate::testing::wait::until;

/// There is one change at a time.
static ONE: Mutex<()> = Mutex::new(());

#[test]
fn the_rights_in_a_status_are_those_that_the_kernel_says() {
    let status =
        b"Name:\tx (Uid:) y\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapPrm:\t000001fffeffffff\n\
        CapEff:\t00000000000000ff\n";
    let (permitted, in_effect) = (0x1ff_feff_ffff, 0xff);
    let rights = Rights { users: [1, 2, 3], groups: [5, 6, 7], permitted, in_effect };
    assert_eq!(parse(status).map(|(rights, _)| rights), Some(rights));
    assert_eq!(parse(b"Uid:\t1\t2\n"), None);
    let mut reader = RightsReader::new().expect("proc");
    assert_eq!(reader.read().map(|(rights, _)| rights), of_this_thread().ok());
    assert_eq!(reader.look(), None, "they are this thread's");
}

#[test]
fn a_change_waits_for_a_thread_that_has_not_begun() {
    let _one = ONE.lock();
    let rights = of_this_thread().expect("asked");
    thread_is_made();
    let change = std::thread::spawn(move || follow_program(rights));
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(!change.is_finished(), "it has the rights of before");
    thread_was_made();
    change.join().expect("it ends");
}

/// The watcher looks on meanwhile: a handler that sleeps follows up to 100 ms later.
#[test]
fn a_reader_has_threads_follow_and_waits_for_none() {
    let _one = ONE.lock();
    let rights = of_this_thread().expect("asked");
    let mut reader = RightsReader::new().expect("proc");
    reader.changed = Some(rights);
    thread_is_made();
    until("the change is told", || {
        reader.follow();
        reader.followers.is_some()
    });
    thread_was_made();
    until("all have followed", || {
        reader.follow();
        reader.followers.is_none()
    });
}

#[test]
fn a_thread_without_rights_has_none_in_effect() {
    // Of a thread of its own: it does not get them back.
    std::thread::spawn(|| {
        give_up();
        let all = capabilities().expect("asked");
        assert_eq!((all.permitted() & !KEPT, all.in_effect() & !KEPT_IN_EFFECT), (0, 0));
    })
    .join()
    .expect("it ends");
}
