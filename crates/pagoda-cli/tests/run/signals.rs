//! Signals through `pagoda run`: each arrives once, and a stopped program is a stopped job.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use pagoda_linux::testing::skip::skip;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::terminal::Terminal;
use crate::unmanaged;

/// Only ever reached by a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program in a process group of its own, that has said its process number.
pub struct Running {
    pub pagoda: Child,
    pub program: u32,
    pub says: BufReader<ChildStdout>,
}

/// Starts a shell script that prints its number first and has set its traps by then.
fn start(traps: &str, rest: &str) -> Running {
    let script = format!("{traps} echo $$; {rest}");
    started(unmanaged(&["sh", "-c", &script]))
}

/// Starts a program that prints its number first.
pub fn started(mut command: Command) -> Running {
    let command = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut pagoda = command.spawn().expect("pagoda starts");
    let mut says = BufReader::new(pagoda.stdout.take().expect("piped"));
    let program = line(&mut says).parse().expect("its number");
    Running { pagoda, program, says }
}

pub fn line(says: &mut impl BufRead) -> String {
    let mut line = String::new();
    says.read_line(&mut line).expect("read");
    line.trim_end().to_owned()
}

/// A test that failed leaves no program behind, which would take a processor until someone ends it.
impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = kill_process_group(Pid::from_child(&self.pagoda), Signal::KILL);
            let _ = self.pagoda.wait();
        }
    }
}

impl Running {
    pub fn to_pagoda(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.pagoda), signal).expect("sent");
    }
    pub fn to_group(&self, signal: Signal) {
        kill_process_group(Pid::from_child(&self.pagoda), signal).expect("sent");
    }
    pub fn to_program(&self, signal: Signal) {
        kill_process(pid(self.program), signal).expect("sent");
    }
    /// The rest of its output, and its status.
    pub fn end(mut self) -> (String, Option<i32>) {
        drop(self.pagoda.stdin.take());
        let mut rest = String::new();
        self.says.read_to_string(&mut rest).expect("read");
        (rest, self.pagoda.wait().expect("it ends").code())
    }
    pub fn wait_for(&self, what: &str, pid: u32, state: impl Fn(char) -> bool) {
        let begun = Instant::now();
        while !state(state_of(pid)) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {}", state_of(pid));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    pub fn wait_until_both_stopped(&self) {
        self.wait_for("the program stops", self.program, |state| state == 'T');
        self.wait_for("pagoda stops", self.pagoda.id(), |state| state == 'T');
    }
    /// By its terminal's keys, a few times.
    pub fn stops_and_continues_by_group(&self) {
        for _ in 0..3 {
            self.to_group(Signal::TSTP);
            self.wait_until_both_stopped();
            self.to_group(Signal::CONT);
            self.wait_for("the program goes on", self.program, |state| state != 'T');
            self.wait_for("pagoda goes on", self.pagoda.id(), |state| state != 'T');
        }
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().expect("a process number")).expect("not zero")
}

/// The letter of its state; `-` if it is gone.
fn state_of(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('-')
}

/// Reads lines until standard input ends, so that a signal interrupts nothing that would be missed.
const LISTEN: &str = "while read -r word; do echo \"$word\"; done; exit 5";

#[test]
fn a_signal_to_pagoda_reaches_the_program() {
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::ALARM, "ALRM"),
    ] {
        let mut running = start(&format!("trap 'echo got {name}' {name};"), "while :; do sleep 0.01; done");
        running.to_pagoda(signal);
        assert_eq!(line(&mut running.says), format!("got {name}"));
        running.to_program(Signal::KILL);
        assert_eq!(running.end().1, Some(137));
    }
}

#[test]
fn a_program_that_a_passed_signal_ends_says_so_by_its_status() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::ABORT, 134)] {
        let running = start("", "while :; do sleep 0.01; done");
        running.to_pagoda(signal);
        assert_eq!(running.end().1, Some(status));
    }
}

#[test]
fn a_signal_of_the_program_to_its_group_comes_once() {
    let running = start("trap 'echo got it' USR1;", "kill -USR1 0; sleep 0.3; echo end; exit 3");
    assert_eq!(running.end(), ("got it\nend\n".to_owned(), Some(3)));
}

#[test]
fn a_terminal_stop_stops_both_and_a_continue_continues_both() {
    let running = start("", LISTEN);
    running.stops_and_continues_by_group();
    assert_eq!(running.end().1, Some(5));
}

#[test]
fn a_stop_sent_to_pagoda_alone_stops_the_program_and_a_continue_too() {
    let running = start("", LISTEN);
    running.to_pagoda(Signal::TSTP);
    running.wait_until_both_stopped();
    running.to_pagoda(Signal::CONT);
    running.wait_for("the program goes on", running.program, |state| state != 'T');
    assert_eq!(running.end().1, Some(5));
}

#[test]
fn a_program_that_is_stopped_and_continued_by_its_number_does_not_leave_pagoda_stopped() {
    let running = start("", LISTEN);
    running.to_program(Signal::STOP);
    running.wait_for("the program stops", running.program, |state| state == 'T');
    running.to_program(Signal::CONT);
    assert_eq!(running.end().1, Some(5));
}

#[test]
fn a_program_whose_pagoda_is_killed_goes_on() {
    let mut running = start("", LISTEN);
    // Waiting would close it.
    let mut input = running.pagoda.stdin.take().expect("piped");
    running.to_pagoda(Signal::KILL);
    running.pagoda.wait().expect("it ends");
    std::io::Write::write_all(&mut input, b"still here\n").expect("written");
    drop(input);
    assert_eq!(line(&mut running.says), "still here");
}

#[test]
fn keys_of_a_terminal_reach_the_program_once() {
    let terminal = match Terminal::open() {
        Ok(terminal) => terminal,
        // A sandbox may have none and allow none: then there are no keys.
        Err(error) => return skip("the keys of a terminal", error),
    };
    let mut command =
        unmanaged(&["sh", "-c", "trap 'echo got INT; exit 7' INT; echo ready; while :; do sleep 0.05; done"]);
    let mut user = terminal.give_to(&mut command).expect("a terminal");
    let mut pagoda = command.spawn().expect("pagoda starts");
    // The program's end is open in the program alone.
    drop(command);
    let mut says = BufReader::new(user.try_clone().expect("another descriptor"));
    assert_eq!(line(&mut says), "ready");
    // The terminal turns byte 3 into an interrupt of its whole foreground group.
    user.write_all(b"\x03").expect("written");
    let mut rest = Vec::new();
    // A terminal whose last program is gone ends in an error.
    let _ = says.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert_eq!(rest.matches("got INT").count(), 1, "{rest}");
    assert_eq!(pagoda.wait().expect("it ends").code(), Some(7), "{rest}");
}
