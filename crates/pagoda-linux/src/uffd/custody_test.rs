use std::thread;
use std::time::Duration;

use super::*;
use crate::mem::region_memory::RegionMemory;
use crate::testing::skip::skip;
use crate::testing::wait::until;
use crate::uffd::{Mode, feature};

/// A custodian in a directory that goes with the test.
fn custodian() -> (tempfile::TempDir, Custodian, Bell) {
    let directory = tempfile::tempdir().expect("a directory");
    let (custodian, bell) = Custodian::open(&directory.path().join("custody")).expect("it listens");
    (directory, custodian, bell)
}

#[test]
fn a_page_that_an_ended_engine_has_not_brought_is_refused() {
    let Ok(uffd) = Uffd::open(Mode::Full, feature::PROCESS) else {
        return skip("custody", "no userfaultfd for faults of system calls");
    };
    let (directory, mut custodian, bell) = custodian();
    let memory = RegionMemory::map(1 << 20).expect("map");
    // SAFETY: the test's own mapping, which nothing else uses.
    unsafe { uffd.register(memory.range()).expect("register") };
    let line = entrust(&directory.path().join("custody"), &uffd, [7; 16]).expect("it is taken");
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut notes = Vec::new();
            custodian.serve(|note| notes.push(note));
            (custodian, notes)
        });
        // The kernel copies, and tells where it could not.
        let reading = scope.spawn(move || (memory.read_what_is_there(8192, &mut [0; 8]), memory));
        assert_eq!(uffd.wait(5000), crate::io::wait::Wait::Ready, "it waits for the page");
        drop(uffd);
        thread::sleep(Duration::from_millis(100));
        assert!(!reading.is_finished(), "the engine may still bring it");
        drop(line);
        thread::sleep(Duration::from_millis(100));
        assert!(!reading.is_finished(), "the thread may be the member's own, which is about to end");
        let (read, memory) = reading.join().expect("no panic");
        assert_eq!(read, 0);
        // Its end waits for the event to be read.
        drop(memory);
        drop(bell);
        let (custodian, notes) = serving.join().expect("no panic");
        assert_eq!(notes, [[7; 16]]);
        assert_eq!(custodian.found(), Found { member: Some(std::process::id()), pages: 1 });
    });
}

#[test]
fn a_member_that_only_connects_is_forgotten() {
    let (directory, mut custodian, _bell) = custodian();
    let (socket, address, _directory) = socket_for(&directory.path().join("custody")).expect("a socket");
    connect(&socket, &address).expect("connected");
    assert!(custodian.look(true, &mut |_| {}));
    assert_eq!(custodian.held.len(), 1);
    drop(socket);
    until("it is forgotten", || custodian.look(true, &mut |_| {}) && custodian.held.is_empty());
    assert!(!custodian.is_needed(&mut |_| {}));
}
