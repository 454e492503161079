//! Running a program natively and managed: its output, its status, and its anonymous memory seen from outside.
//!
//! This module must never wait for ever: a program that passes its time limit is killed with all its processes.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::programs::Program;

/// A hang is what this ends: every program takes seconds, and minutes on a machine that is busy otherwise.
const RUN_TIME_MAX: Duration = Duration::from_secs(300);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// A directory on a disk that goes with its value.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self(tempfile::tempdir_in("/var/tmp").expect("a directory in /var/tmp"))
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// A run without Pagoda.
pub struct Native {
    pub output: String,
    pub status: ExitStatus,
    pub errors: String,
    pub peak_bytes: u64,
    pub wall: Duration,
}

/// A run with it.
pub struct Managed {
    pub output: String,
    pub status: ExitStatus,
    pub errors: String,
    pub budget_bytes: u64,
    /// The most anonymous memory that was seen from outside.
    pub peak_bytes: u64,
    pub wall: Duration,
    /// `managed` where the budget was enforced until the end.
    pub run_status: String,
    counters: serde_json::Value,
}

impl Managed {
    pub fn counter(&self, name: &str) -> u64 {
        self.counters[name].as_u64().unwrap_or_else(|| panic!("--stats has no counter {name}"))
    }
}

pub fn native(program: &Program, scratch: &Scratch) -> Native {
    let mut command = Command::new(&program.command[0]);
    command.args(&program.command[1..]);
    let run = run(program, &mut command, scratch, |child| Some(child.id()));
    Native {
        output: run.output,
        status: run.status,
        errors: run.errors,
        peak_bytes: run.peak_bytes,
        wall: run.wall,
    }
}

pub fn managed(program: &Program, scratch: &Scratch, budget_bytes: u64) -> Managed {
    let stats = scratch.path("stats.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["run", "--memory", &budget_bytes.to_string(), "--store-dir"]).arg(scratch.path("."));
    command.arg("--stats").arg(&stats).arg("--").args(&program.command);
    command.env_remove("PAGODA_PRELOAD").env_remove("LD_PRELOAD");
    let run = run(program, &mut command, scratch, only_child);
    let text = fs::read(&stats).unwrap_or_else(|error| panic!("no --stats file ({error}): {}", run.errors));
    let stats: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    Managed {
        output: run.output,
        status: run.status,
        budget_bytes,
        peak_bytes: run.peak_bytes.max(stats["counters"]["anon_peak_bytes"].as_u64().unwrap_or(0)),
        wall: run.wall,
        run_status: stats["status"].as_str().unwrap_or("nothing").to_owned(),
        counters: stats["counters"].clone(),
        errors: run.errors,
    }
}

struct Run {
    output: String,
    status: ExitStatus,
    errors: String,
    peak_bytes: u64,
    wall: Duration,
}

/// Runs it to its end while a thread samples; `measured` says which process is the program's.
fn run(
    program: &Program,
    command: &mut Command,
    scratch: &Scratch,
    measured: fn(&Child) -> Option<u32>,
) -> Run {
    let (out, err) = (scratch.path("stdout"), scratch.path("stderr"));
    let input =
        program.input.as_ref().map_or_else(Stdio::null, |path| File::open(path).expect("input").into());
    command.stdin(input).stdout(File::create(&out).expect("made")).stderr(File::create(&err).expect("made"));
    // A group of its own, so that nothing of it outlives its time limit.
    command.process_group(0).envs(program.environment.iter().copied());
    let start = Instant::now();
    let mut child =
        command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", program.name));
    let group = Pid::from_child(&child);
    let client = program.client.map(|client| {
        let socket = program.socket.clone();
        thread::spawn(move || client(&socket))
    });
    let mut peak_bytes = 0;
    let status = loop {
        if let Some(status) = child.try_wait().expect("waited for") {
            break status;
        }
        if start.elapsed() > RUN_TIME_MAX {
            let state = measured(&child).map(state).unwrap_or_default();
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            let errors = fs::read_to_string(&err).unwrap_or_default();
            panic!("{} did not end within {RUN_TIME_MAX:?}\n{state}{errors}", program.name);
        }
        if let Some(bytes) = measured(&child).and_then(anonymous_bytes) {
            peak_bytes = peak_bytes.max(bytes);
        }
        thread::sleep(SAMPLE_INTERVAL);
    };
    let wall = start.elapsed();
    let mut output = digest(&out);
    if let Some(file) = &program.output {
        output += &digest(file);
        // The next run has to write its own.
        let _ = fs::remove_file(file);
    }
    if let Some(client) = client {
        output += &client.join().unwrap_or_else(|_| "; its client failed".to_owned());
    }
    let errors = fs::read_to_string(&err).unwrap_or_default();
    if status.signal().is_some() {
        let _ = kill_process_group(group, Signal::KILL);
    }
    Run { output, status, errors, peak_bytes, wall }
}

/// Where each thread waits, for whoever looks into a hang.
fn state(pid: u32) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (comm, wait) = (read("comm"), read("wchan"));
        text +=
            &format!("    thread {:?} {} in {wait}, {}", task.file_name(), comm.trim_end(), read("syscall"));
    }
    text
}

/// The process that `pagoda run` started.
pub fn only_child(supervisor: &Child) -> Option<u32> {
    let pid = supervisor.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// `RssAnon` of a process; none once it has ended.
fn anonymous_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// How much it is, and its 64-bit FNV-1a.
pub fn digest(path: &Path) -> String {
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut digest = Digest::default();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer).expect("read");
        if n == 0 {
            return digest.to_string();
        }
        digest.update(&buffer[..n]);
    }
}

/// A running digest.
pub struct Digest {
    hash: u64,
    bytes: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, bytes: 0 }
    }
}

impl Digest {
    pub fn update(&mut self, content: &[u8]) {
        for &byte in content {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.bytes += content.len() as u64;
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes {:016x}", self.bytes, self.hash)
    }
}
