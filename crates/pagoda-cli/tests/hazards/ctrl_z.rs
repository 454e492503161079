//! Processes that are stopped (Ctrl-Z, a debugger) for longer than any patience of their engine:
//! they, or what waited for them, were ended when they went on.
//!
//! `PAGODA_STOPPED_SECONDS` says how long.

use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::time::Duration;

use pagoda_linux::testing::wait::{until, until_ended};
use rustix::process::Signal;

use crate::members::{Member, members, send};
use crate::program::Program;

/// Longer than a parent and its child wait for each other while both run, which is 10 s.
const STOPPED_S: u64 = 12;

/// Forks that are tried before one is stopped at the right moment.
const TRIES: u64 = 300;

/// How long the other side has to come to where it waits.
const SETTLES: Duration = Duration::from_millis(300);

fn stopped_for() -> Duration {
    let seconds = std::env::var("PAGODA_STOPPED_SECONDS").ok();
    Duration::from_secs(seconds.map_or(STOPPED_S, |seconds| seconds.parse().expect("a number of seconds")))
}

/// Whether a thread of this process is within this system call.
fn is_within(process: i32, call: i64) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let call = format!("{call} ");
    let mut calls =
        threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("syscall")).ok());
    calls.any(|text| text.starts_with(&call))
}

/// A run of the program until it is told to end.
struct Run<'a> {
    program: &'a Program,
    timeout: Child,
}

impl<'a> Run<'a> {
    fn start(program: &'a Program) -> Self {
        let over = program.directory().join("over");
        let over = over.to_str().expect("a path in UTF-8");
        let file = File::create(program.directory().join("said")).expect("a file");
        let mut command = program.managed(&["--quiet", "--memory", "32M"], &[over]);
        command.stdout(file.try_clone().expect("a descriptor")).stderr(file).stdin(Stdio::null());
        Self { program, timeout: command.spawn().expect("it starts") }
    }

    /// A parent and a child of its that was forked just now.
    fn fork(&mut self) -> (Member, Member) {
        let mut found = None;
        let mut before: Vec<i32> = members(&self.program.path()).iter().map(|member| member.id).collect();
        until("it forks", || {
            assert!(matches!(self.timeout.try_wait(), Ok(None)), "it has ended");
            let all = members(&self.program.path());
            found = all.iter().find_map(|child| {
                let parent = all.iter().find(|parent| parent.id == child.parent)?;
                (!before.contains(&child.id)).then_some((*parent, *child))
            });
            before.retain(|id| all.iter().any(|member| member.id == *id));
            found.is_some()
        });
        found.expect("it was just found")
    }

    fn ends_well(mut self) {
        File::create(self.program.directory().join("over")).expect("a file");
        let status = until_ended("the program", &mut self.timeout).expect("it is waited for");
        let said = fs::read_to_string(self.program.directory().join("said")).expect("what it said");
        assert!(status.success() && said.is_empty(), "{status}\n{said}");
    }
}

/// Stops one side of a hand-over while the other waits for it within a system call.
fn stop_in_a_hand_over(stops: impl Fn(Member, Member) -> (Member, Member), call: i64) {
    let Some(program) = Program::build("stopped", &[]) else { return };
    let mut run = Run::start(&program);
    let is_stopped = (0..TRIES).any(|attempt| {
        let (stopped, waits) = {
            let (parent, child) = run.fork();
            stops(parent, child)
        };
        std::thread::sleep(Duration::from_millis(attempt % 30 * 2));
        send(stopped.id, Signal::STOP);
        std::thread::sleep(SETTLES);
        let is_right = is_within(waits.id, call);
        if is_right {
            std::thread::sleep(stopped_for());
        }
        send(stopped.id, Signal::CONT);
        is_right
    });
    run.ends_well();
    assert!(is_stopped, "no child was found within a hand-over");
}

#[test]
fn a_child_was_ended_whose_parent_was_stopped_while_it_gave_it_its_memory() {
    stop_in_a_hand_over(|parent, child| (parent, child), libc::SYS_recvfrom);
}

#[test]
fn a_child_that_was_stopped_while_it_was_given_its_memory_was_ended() {
    stop_in_a_hand_over(|parent, child| (child, parent), libc::SYS_sendto);
}
