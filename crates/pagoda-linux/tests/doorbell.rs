//! A forked child at its doorbell. In a process of its own: a fork waits for every descriptor that is told of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagoda_linux::doorbell::Doorbell;
use pagoda_linux::space::{Adoption, Space};
use pagoda_linux::uffd::{Message, Mode, feature};

/// Forks, and gives the child's status when `answer` says whether it gets an answer. None where that can't be tried.
fn status_of_child(answer: bool) -> Option<i32> {
    // SAFETY: nothing is ever registered.
    let adoption = unsafe { Adoption::assume() };
    let features = feature::PROCESS | feature::EVENT_FORK;
    let space = match Space::open(&adoption, Mode::Full, features, 16, 4096) {
        Ok(space) => space,
        Err(error) => {
            assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipped: {error}");
            eprintln!("SKIPPED a doorbell: {error}");
            return None;
        }
    };
    let ready = Arc::new(AtomicBool::new(false));
    let here = Arc::clone(&ready);
    let reader = std::thread::spawn(move || {
        here.store(true, Ordering::Release);
        // From here to the event nothing is allocated: whoever forks holds the allocator's lock until it is read.
        assert!(space.wait(5000), "the event of the fork");
        space.read(|message| {
            if let Message::Fork(child) = message
                && answer
            {
                space.answer_doorbell(&child);
            }
        });
    });
    while !ready.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        pagoda_linux::thread::exit_process(if Doorbell::wait_for_parent() { 7 } else { 8 });
    }
    reader.join().expect("the reader");
    let mut status = 0;
    // SAFETY: it writes one number, to a place that is there.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    Some(libc::WEXITSTATUS(status))
}

#[test]
fn a_child_hears_its_parent_and_knows_when_there_is_none() {
    if let Some(status) = status_of_child(true) {
        assert_eq!(status, 7);
        assert_eq!(status_of_child(false), Some(8));
    }
}
