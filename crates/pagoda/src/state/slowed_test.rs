use std::sync::Mutex;
use std::thread;

use pagoda_core::migrate::throttle::WAIT_MOST_NS;
use pagoda_linux::testing::wait::until;

use super::*;

const RANGE: PageRange = PageRange::page(0x10_0000);

fn slowed() -> SlowedPages {
    let words = PageSet::words_for(1);
    SlowedPages::new(RANGE, PageSet::new(zeroed_words(Bytes::new(words).as_usize())))
}

/// Has the next fault of `thread` wait as long as any does.
fn owes(slowed: &SlowedPages, thread: u32) {
    slowed.set_percent(90);
    assert!(!slowed.put_aside(RANGE, thread), "the first fault of a thread opens its account");
    sleep_us(2 * WAIT_MOST_NS as u32 / 1000 / 9);
}

#[test]
fn a_fault_that_has_waited_is_woken_and_told() {
    let (slowed, woken) = (slowed(), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        scope.spawn(|| slowed.serve(|page| woken.lock().expect("no panic").push(page)));
        owes(&slowed, 1);
        assert!(slowed.put_aside(RANGE, 1));
        assert!(!slowed.put_aside(RANGE, 2), "another thread owes nothing");
        until("it is woken", || !woken.lock().expect("no panic").is_empty());
        slowed.end();
    });
    assert_eq!(woken.into_inner().expect("no panic"), [RANGE]);
    let (faults, time) = slowed.told();
    assert!(faults == 1 && time >= Duration::from_nanos(WAIT_MOST_NS), "{faults}, {time:?}");
    assert!(!slowed.put_aside(RANGE, 1), "it is over");
}

#[test]
fn all_that_wait_are_woken_in_a_hurry() {
    let (slowed, woken) = (slowed(), AtomicUsize::new(0));
    for thread in 0..3 {
        owes(&slowed, thread);
    }
    let aside = (0..3).filter(|thread| slowed.put_aside(RANGE, *thread)).count();
    assert_eq!(aside, 3);
    slowed.hurry();
    assert!(slowed.waiting().list.iter().all(|wait| wait.until_ns == 0));
    thread::scope(|scope| {
        scope.spawn(|| {
            slowed.serve(|_| {
                woken.fetch_add(1, Ordering::Relaxed);
            });
        });
        until("all are woken", || woken.load(Ordering::Relaxed) == 3);
        slowed.end();
    });
}

#[test]
fn a_fault_is_put_aside_while_another_one_is_woken() {
    let (slowed, wakes, put) = (slowed(), AtomicBool::new(false), AtomicBool::new(false));
    for thread in 0..2 {
        owes(&slowed, thread);
    }
    assert!(slowed.put_aside(RANGE, 0));
    thread::scope(|scope| {
        scope.spawn(|| {
            until("one is woken", || wakes.load(Ordering::Acquire));
            put.store(slowed.put_aside(RANGE, 1), Ordering::Release);
        });
        scope.spawn(|| {
            slowed.serve(|_| {
                wakes.store(true, Ordering::Release);
                until("another one is put aside", || put.load(Ordering::Acquire));
            });
        });
        until("both have waited", || slowed.told().0 == 2);
        slowed.end();
    });
}

#[test]
fn no_more_faults_wait_than_there_is_room_for() {
    let slowed = slowed();
    owes(&slowed, 1);
    let fault = || Wait { page: RANGE, thread: 2, since_ns: now_ns(), until_ns: u64::MAX };
    slowed.waiting().list.extend((0..WAITING_MOST).map(|_| fault()));
    assert!(!slowed.put_aside(RANGE, 1));
    slowed.waiting().list.pop();
    assert!(slowed.put_aside(RANGE, 1));
    slowed.end();
    assert!(slowed.waiting().list.is_empty());
}

#[test]
fn a_page_waits_once_for_each_mark() {
    let slowed = slowed();
    assert!(!slowed.take_mark(RANGE));
    slowed.mark(RANGE);
    assert!(slowed.take_mark(RANGE) && !slowed.take_mark(RANGE));
    slowed.mark(RANGE);
    slowed.unmark(RANGE);
    assert!(!slowed.take_mark(RANGE));
}
