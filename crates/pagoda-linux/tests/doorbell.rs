//! A forked child at its doorbell. In a process of its own: a fork waits for every descriptor that
//! is told of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagoda_linux::arena::{Adoption, ArenaSizes, Descriptor, Space};
use pagoda_linux::mem::occupancy::Occupancy;
use pagoda_linux::mem::own_memory::{declared, forget_what_parents_have};
use pagoda_linux::process::doorbell::{Answer, Doorbell};
use pagoda_linux::process::thread::exit_process;
use pagoda_linux::testing::skip::skip;
use pagoda_linux::uffd::{Message, Mode, feature};

/// A space with fork events. None where that can't be tried.
fn open() -> Option<Space> {
    let space = reserve()?;
    space.install_doorbell().expect("the pages are ours");
    Some(space)
}

/// A space that gets fork events when its doorbell is installed.
fn reserve() -> Option<Space> {
    // SAFETY: nothing is ever registered.
    let adoption = unsafe { Adoption::assume() };
    let arenas = ArenaSizes { slots: 16, slot_bytes: 4096, huge_slots: 0 };
    let features = feature::PROCESS | feature::EVENT_FORK;
    let occupancy = Occupancy::open().expect("pagemap");
    match Space::open(&adoption, Descriptor::Fresh(Mode::Full), features, arenas, occupancy) {
        Ok(space) => Some(space),
        Err(error) => {
            skip("a doorbell", error);
            None
        }
    }
}

/// Forks: `None` in the child, whose parent answers it if `answer` says so, and the child's status
/// in the parent.
fn fork(space: Space, answer: bool) -> Option<i32> {
    let ready = Arc::new(AtomicBool::new(false));
    let here = Arc::clone(&ready);
    let reader = std::thread::spawn(move || {
        here.store(true, Ordering::Release);
        // From here to the event nothing is allocated: the forking thread holds the allocator's
        // lock until it is read.
        assert_eq!(space.wait(5000), pagoda_linux::io::wait::Wait::Ready, "the event of the fork");
        let read = space.read(|message| {
            if let Message::Fork(child) = message
                && answer
            {
                space.answer_doorbell(&child);
            }
        });
        read.expect("read");
    });
    while !ready.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    // SAFETY: the child has one thread, and the C library's allocator works in it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        return None;
    }
    reader.join().expect("the reader");
    Some(status_of(child))
}

fn status_of(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: it writes one number, to a place that is there.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WEXITSTATUS(status)
}

/// A child that becomes a parent itself, again and again; the exit status of the last one goes up
/// to the first.
fn generations() -> u8 {
    let mut first = None;
    for _ in 0..4 {
        forget_what_parents_have();
        if *first.get_or_insert(declared()) != declared() {
            return 3;
        }
        let Some(space) = open() else { return 1 };
        if let Some(status) = fork(space, true) {
            return u8::try_from(status).unwrap_or(u8::MAX);
        }
        if Doorbell::wait_for_parent() != Answer::Everything {
            return 2;
        }
    }
    7
}

#[test]
fn a_child_hears_its_parent_knows_when_there_is_none_and_leaves_no_page_to_its_own_children() {
    // Before it is installed no thread has to read of a fork, nor answer the child.
    let Some(space) = reserve() else { return };
    // SAFETY: the child has one thread, and calls nothing of the C library.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let before = declared();
        Doorbell::pass_by();
        let is_gone = declared() + 1 == before && Doorbell::wait_for_parent() == Answer::Everything;
        exit_process(if is_gone { 7 } else { 8 });
    }
    assert_eq!(status_of(child), 7);
    drop(space);
    for (answer, expected) in [(true, 7), (false, 8)] {
        let Some(space) = open() else { return };
        match fork(space, answer) {
            Some(status) => assert_eq!(status, expected),
            None => exit_process(if Doorbell::wait_for_parent() == Answer::Everything { 7 } else { 8 }),
        }
    }
    let Some(space) = open() else { return };
    match fork(space, true) {
        Some(status) => assert_eq!(status, 7),
        None => {
            exit_process(if Doorbell::wait_for_parent() == Answer::Everything { generations() } else { 8 })
        }
    }
}
