//! System call filters: a thread, and a child, that may make almost no call any more touch memory
//! that is swapped out.

use pagoda_linux::testing::process::{fork, wait};
use pagoda_linux::testing::sandbox::{Denial, allow_only, deny_calls};
use rustix::process::Pid;

use crate::pressure::{Arena, check, fill};
use crate::rounds::each_round;
use crate::support::memory::Mapping;

const PAGES: usize = 96;

fn told(error: std::io::Error) -> String {
    format!("seccomp: {error}")
}

/// A thread without the system calls that an engine in it would need.
pub fn thread(arena: &Arena, _: u64) -> Result<(), String> {
    each_round(arena, PAGES, |mapping, tag| {
        let mapping = &*mapping;
        let work = move || {
            let calls =
                [libc::SYS_userfaultfd, libc::SYS_ioctl, libc::SYS_mremap, libc::SYS_openat, libc::SYS_clone];
            deny_calls(&calls, Denial::NotPermitted).map_err(told)?;
            check(mapping, 0..PAGES, tag)
        };
        std::thread::scope(|scope| scope.spawn(work).join()).expect("it does not panic")
    })
}

/// A child that may only write, end, and wait.
pub fn child(arena: &Arena, _: u64) -> Result<(), String> {
    each_round(arena, PAGES, |mapping, tag| {
        let child = fork(|| in_child(mapping, tag)).map_err(|error| format!("fork: {error}"))?;
        expect_right(child)?;
        check(mapping, 0..PAGES, tag)
    })
}

/// It writes one line at most, and takes no lock. Its status.
fn in_child(mapping: &mut Mapping, tag: u64) -> i32 {
    let calls = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_exit_group,
        libc::SYS_exit,
        libc::SYS_futex,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_brk,
    ];
    let right = allow_only(&calls, Denial::NotPermitted).map_err(told).and_then(|()| {
        check(mapping, 0..PAGES, tag)?;
        fill(mapping, 0..PAGES, tag + 1);
        check(mapping, 0..PAGES, tag + 1)
    });
    status(&right)
}

/// The exit status of a child that may have found a fault. It writes one line then, and takes no
/// lock.
pub fn status(right: &Result<(), String>) -> i32 {
    let Err(wrong) = right else { return 0 };
    let _ = rustix::io::write(std::io::stderr(), wrong.as_bytes());
    9
}

/// Waits for a child.
pub fn expect_right(child: Pid) -> Result<(), String> {
    match wait(child).map_err(|error| format!("waitpid: {error}"))?.as_raw() {
        0 => Ok(()),
        status => Err(format!("the child ended with {status:#x}")),
    }
}
