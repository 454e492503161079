//! Peers that send anything else than the protocol has: each ends its own connection, in time and
//! with a line, and never the service of others.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pagoda_linux::io::local_socket::send;
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::testing::mapping::{PAGE, bytes_of};
use pagoda_linux::testing::wait::until;

use crate::peer::{Peer, SIZES, await_end, entrusted, region, send_to};
use crate::server::{Server, descriptors};

/// Longer than a connection may be silent, on a loaded machine.
const BOUND: Duration = Duration::from_secs(40);

#[test]
fn hostile_messages_end_their_own_connection_alone() {
    if crate::skips("hostile peers") {
        return;
    }
    let server = Server::start(64, &[]);
    let good = Peer::restore(&server.socket(), 64, 1, SIZES[0]);
    let ((uffd, memory), null) = (entrusted(64), File::open("/dev/null").expect("there"));
    let one = |pages, first| region(memory.range().start(), pages, first, SIZES[2]);
    let of = |pages, first| format!("[{}]", one(pages, first)).into_bytes();
    let huge_array = format!("[{}]", vec![one(1, 0); 2000].join(",")).into_bytes();
    let overlapping = format!("[{},{}]", one(2, 0), one(1, 8)).into_bytes();
    let (with, without): (&[BorrowedFd<'_>], &[BorrowedFd<'_>]) = (&[uffd.as_fd()], &[]);
    let cases: [(&str, Vec<u8>, &[BorrowedFd<'_>]); 9] = [
        ("longer than", huge_array, with),
        ("overlaps another", overlapping, with),
        ("beyond the image", of(64, 1), with),
        ("beyond the image", of(1 << 40, 0), with),
        ("no userfaultfd", of(1, 0), without),
        ("no userfaultfd", of(1, 0), &[null.as_fd(), null.as_fd()]),
        ("not Firecracker's", b"\x16\x03\x01\x00hello".to_vec(), with),
        ("no whole message", of(1, 0)[..20].to_vec(), with),
        ("no whole message", Vec::new(), without),
    ];
    let lines: Vec<_> =
        cases.iter().map(|(_, message, fds)| send_to(&server.socket(), message, fds)).collect();
    for ((why, ..), line) in cases.iter().zip(&lines) {
        assert!(await_end(line, BOUND), "{why}: {}", server.lines());
        assert!(server.lines().contains(why), "{why}: {}", server.lines());
    }
    // One that closes at once, one that sends the rest late, and one that sends more afterwards.
    drop(send_to(&server.socket(), b"[", without));
    until("its end is told", || server.lines().contains("closed before"));
    good.check(|_| false);
    assert!(send(&good.line, b"more", &[null.as_fd()]).expect("sent"));
    Peer::restore(&server.socket(), 64, 2, SIZES[1]).check(|_| false);
    server.stats_when("all but one have ended", |stats| stats["connections"] == 12 && stats["vms_now"] == 1);
}

#[test]
fn descriptors_that_were_changed_or_never_made_ready_end_their_own_guest() {
    if crate::skips("hostile descriptors") {
        return;
    }
    let server = Server::start(64, &["--prefetch", "none"]);
    let blocking = Peer::restore(&server.socket(), 64, 1, SIZES[0]);
    blocking.check(|page| page > 64);
    rustix::fs::fcntl_setfl(&blocking.uffd, rustix::fs::OFlags::empty()).expect("it blocks");
    assert!(await_end(&blocking.line, BOUND), "{}", server.lines());
    assert!(server.lines().contains("blocking"), "{}", server.lines());
    // A fault outside of all regions that were named, by a descriptor that blocks when it comes.
    let (uffd, named) = entrusted(8);
    rustix::fs::fcntl_setfl(&uffd, rustix::fs::OFlags::empty()).expect("it blocks");
    let mut other = PlainMemory::map(8 * PAGE, Pages::Small).expect("memory");
    uffd.register(&other).expect("registered");
    let message = format!("[{}]", region(named.range().start(), 8, 0, SIZES[0]));
    let line = send_to(&server.socket(), message.as_bytes(), &[uffd.as_fd()]);
    let (end, _other_end) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let thread = std::thread::spawn(move || rustix::io::write(&end, &bytes_of(other.words_mut())[..1]));
    assert!(await_end(&line, BOUND), "{}", server.lines());
    assert!(server.lines().contains("none of the regions"), "{}", server.lines());
    thread.join().expect("it does not wait").expect_err("its page was refused");
}

#[test]
fn connections_beyond_the_bound_are_turned_away_and_leave_nothing() {
    if crate::skips("too many connections") {
        return;
    }
    let server = Server::start(64, &["--vms", "2"]);
    let guests = [0, 1].map(|at| Peer::restore(&server.socket(), 64, 1, SIZES[at]));
    guests.iter().for_each(|guest| guest.check(|_| false));
    let handler = server.handler();
    let before = descriptors(handler);
    for _ in 0..100 {
        let line = send_to(&server.socket(), b"", &[]);
        assert!(await_end(&line, BOUND));
    }
    let stats = server.stats_when("all were turned away", |stats| stats["turned_away"] == 100);
    assert_eq!((&stats["connections"], descriptors(handler)), (&2.into(), before));
    drop(guests);
    server.stats_when("both have ended", |stats| stats["vms_now"] == 0);
    Peer::restore(&server.socket(), 64, 1, SIZES[0]).check(|_| false);
}
