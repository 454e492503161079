use super::*;
use pagoda_linux::process::thread::current_id;
use std::sync::atomic::AtomicBool;

fn ended_thread() -> u32 {
    let ended = std::thread::spawn(current_id).join().expect("a thread");
    while is_alive(ended) {
        std::thread::yield_now();
    }
    ended
}

#[test]
fn a_thread_on_the_stack_of_an_ended_one_takes_over_its_pin() {
    let pins = Pins::default();
    let range = PageRange::page(0x10000);
    for _ in 0..20 {
        assert!(pins.pin(Pinner::Thread(ended_thread()), range));
    }
    assert_eq!(pins.bytes(), 4096);
    // Not that of one that lives, nor of a part of it.
    assert!(pins.pin(Pinner::Thread(current_id()), range));
    assert!(pins.pin(Pinner::Thread(ended_thread()), range) && pins.pin(Pinner::Mutex(0x10008), range));
    assert_eq!(pins.bytes(), 3 * 4096);
    pins.drop_ended_threads();
    assert_eq!(pins.bytes(), 2 * 4096);
    assert!(pins.overlaps(range));
}

#[test]
fn a_pin_lasts_until_its_owner_is_gone() {
    let pins = Pins::default();
    let (a, b, c) = (PageRange::page(0x10000), PageRange::page(0x20000), PageRange::page(0x30000));
    let ended = ended_thread();
    assert!(pins.pin(Pinner::Thread(ended), a) && pins.pin(Pinner::Thread(ended), a));
    assert!(pins.pin(Pinner::Thread(current_id()), c) && pins.pin(Pinner::Mutex(0x20008), b));
    assert!(pins.overlaps(PageRange::at(0xf000, 0x2000)) && pins.overlaps(b));
    assert_eq!(pins.bytes(), 3 * 4096);
    pins.drop_ended_threads();
    assert!(!pins.overlaps(a) && pins.overlaps(b) && pins.overlaps(c));
    pins.unpin(Pinner::Mutex(0x20008));
    assert!(!pins.overlaps(b));
}

#[test]
fn threads_that_come_and_go_leave_no_heap_of_pins_and_live_ones_meet_the_bound() {
    let pins = Pins::default();
    let ended = ended_thread();
    for page in 0..BOUND + 10 {
        assert!(pins.pin(Pinner::Thread(ended), PageRange::page(page * 4096)));
        if page % 64 == 0 {
            pins.drop_ended_threads();
        }
    }
    pins.drop_ended_threads();
    assert_eq!(pins.bytes(), 0);
    for page in 0..BOUND {
        assert!(pins.enter(Pinner::Thread(current_id()), PageRange::page(page * 4096)));
    }
    assert!(!pins.pin(Pinner::Thread(current_id()), PageRange::page(BOUND * 4096)));
}

#[test]
fn mutexes_that_were_unmapped_and_never_destroyed_leave_room_for_others() {
    let pins = Pins::default();
    // Where no program can map anything.
    let gone = |page: usize| usize::MAX - (page + 1) * 4096 + 1;
    for page in 0..BOUND {
        assert!(pins.enter(Pinner::Mutex(gone(page)), PageRange::page(gone(page))));
    }
    let there = std::ptr::from_ref(&pins).addr();
    assert!(pins.pin(Pinner::Mutex(there), PageRange::page(there)), "of those that are gone");
    assert!(pins.pin(Pinner::Thread(current_id()), PageRange::page(there)));
    assert_eq!(pins.bytes(), 2 * 4096);
    pins.unpin(Pinner::Mutex(there));
    assert_eq!(pins.mutexes.load(Ordering::SeqCst), 0);
}

#[test]
fn a_pinner_waits_for_a_move_that_may_not_have_seen_it() {
    let pins = Pins::default();
    let range = PageRange::page(0x40000);
    let moving = pins.moving();
    assert!(!moving.overlaps(range));
    let pinned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(pins.pin(Pinner::Mutex(0x40000), range));
            pinned.store(true, Ordering::SeqCst);
        });
        while !pins.overlaps(range) {
            std::thread::yield_now();
        }
        assert!(!pinned.load(Ordering::SeqCst), "it waits for the move");
        drop(moving);
    });
    assert!(pins.moving().overlaps(range));
}
