//! Running a program natively and managed, with all its processes: its output, its status, and its
//! memory seen from outside.
//!
//! This module must never wait for ever, nor leave anything behind: a tree that passes its time
//! limit is killed with all its processes, and processes that outlive their run are reported and
//! killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::digest;
use super::program::{Program, text};
use crate::support::tree::{self, Before, Watch};

/// The limit for a hang: every program takes seconds, and minutes on a machine that is busy
/// otherwise.
const RUN_TIME_MAX: Duration = Duration::from_secs(300);

/// Directories on a disk that go with their value.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        let scratch = Self(tempfile::tempdir_in("/var/tmp").expect("a directory in /var/tmp"));
        for path in [scratch.runtime(), scratch.store()] {
            fs::create_dir(path).expect("made");
        }
        scratch
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    /// Where `pagoda run` puts files that live as long as a run, and nothing else is.
    fn runtime(&self) -> PathBuf {
        self.path("runtime")
    }
    fn store(&self) -> PathBuf {
        self.path("store")
    }
}

/// The observations of a run.
pub struct Run {
    pub output: String,
    pub status: ExitStatus,
    pub errors: String,
    /// The most anonymous memory of all its processes.
    pub peak_bytes: u64,
    /// The most that processes held which could have an engine and had none.
    pub without_engine_bytes: u64,
    /// The most that processes held whose engine was starting.
    pub starting_bytes: u64,
    pub processes_peak: usize,
    pub wall: Duration,
    /// The leftovers when it had ended.
    pub left: Vec<String>,
}

/// A run under `pagoda run`.
pub struct Managed {
    pub run: Run,
    pub budget_bytes: u64,
    /// `managed` where the budget was enforced until the end.
    pub run_status: String,
    counters: serde_json::Value,
}

impl Managed {
    /// A counter's value at the end; 0 where nothing was managed, and so nothing counted.
    pub fn counter(&self, name: &str) -> u64 {
        if self.counters.is_null() {
            return 0;
        }
        self.counters[name].as_u64().unwrap_or_else(|| panic!("--stats has no counter {name}"))
    }
    /// The memory that one fork copied to its child, on average. A child is given at once the
    /// swapped-out pages of its parent, and holds them beyond the budget until its own engine has
    /// moved them out again. Not the sum: forks of one parent come one after another.
    pub fn copied_by_a_fork_bytes(&self) -> u64 {
        self.counter("fork_copied_bytes") / self.counter("forks").max(1)
    }
    /// The most that was left to the kernel: by Pagoda's own account, or by the observed memory of
    /// processes without an engine, which that account has to know of.
    pub fn unmanaged_bytes(&self) -> u64 {
        self.counter("unmanaged_at_peak_bytes").max(self.run.without_engine_bytes)
    }
}

/// Without Pagoda; its processes are looked at every `sample_interval`.
pub fn native(program: &Program, scratch: &Scratch, sample_interval: Duration) -> Run {
    run(program, None, scratch, sample_interval)
}

/// Under `pagoda run`, within a budget.
pub fn managed(
    program: &Program,
    scratch: &Scratch,
    sample_interval: Duration,
    budget_bytes: u64,
) -> Managed {
    let stats = scratch.path("stats.json");
    // Any user that the program runs as has to be able to write it.
    fs::write(&stats, "").and_then(|()| open_to_all(&stats, 0o666)).expect("made");
    let mut words = vec![program.pagoda.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_pagoda").to_owned())];
    words.extend(["run", "--memory"].map(str::to_owned));
    words.push(budget_bytes.to_string());
    let store = scratch.store();
    words.extend(["--store-dir", text(&store), "--stats", text(&stats), "--"].map(str::to_owned));
    let run = run(program, Some(&words), scratch, sample_interval);
    let text = fs::read(&stats).unwrap_or_default();
    let stats: serde_json::Value = serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("--stats was not written ({error}): {}", run.errors));
    Managed {
        run,
        budget_bytes,
        run_status: stats["status"].as_str().unwrap_or("nothing").to_owned(),
        counters: stats["counters"].clone(),
    }
}

/// Lets every user reach a file or directory.
pub fn open_to_all(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Runs it to its end and samples; `pagoda` is the part between the program's own prefix and its
/// command, if it is supervised.
fn run(program: &Program, pagoda: Option<&[String]>, scratch: &Scratch, sample_interval: Duration) -> Run {
    if let Some(prepare) = &program.prepare {
        prepare();
    }
    let (out, err) = (scratch.path("stdout"), scratch.path("stderr"));
    let words: Vec<&String> =
        program.prefix.iter().chain(pagoda.unwrap_or_default()).chain(&program.command).collect();
    let input =
        program.input.as_ref().map_or_else(Stdio::null, |path| File::open(path).expect("input").into());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).envs(program.environment.iter().copied());
    command.env_remove("PAGODA_PRELOAD").env_remove("LD_PRELOAD").env_remove("PAGODA_CONFIG");
    command.env("XDG_RUNTIME_DIR", scratch.runtime()).current_dir(scratch.path("."));
    command.stdin(input).stdout(File::create(&out).expect("made")).stderr(File::create(&err).expect("made"));
    let (runtime, store) = (scratch.runtime(), scratch.store());
    let before = Before::look(&[&runtime, &store]);
    let start = Instant::now();
    let mut child =
        command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", program.name));
    let root = child.id();
    let client = program.client.clone().map(|(client, directory)| thread::spawn(move || client(&directory)));
    let mut watch = Watch::default();
    let (mut peak_bytes, mut processes_peak) = (0, 0);
    let (mut without_engine_bytes, mut starting_bytes) = (0, 0);
    let status = loop {
        if let Some(status) = child.try_wait().expect("waited for") {
            break status;
        }
        let pids = tree::with_descendants(root);
        if start.elapsed() > RUN_TIME_MAX {
            let threads: String = pids.iter().map(|&pid| tree::threads(pid)).collect();
            pids.iter().for_each(|&pid| tree::kill(pid));
            let _ = child.wait();
            let errors = fs::read_to_string(&err).unwrap_or_default();
            before.left(root);
            panic!("{} did not end within {RUN_TIME_MAX:?}\n{threads}{errors}", program.name);
        }
        // The supervisor is no part of the program.
        let held = watch.held(&pids[usize::from(pagoda.is_some())..]);
        peak_bytes = peak_bytes.max(held.anonymous_bytes);
        without_engine_bytes = without_engine_bytes.max(held.without_engine_bytes);
        starting_bytes = starting_bytes.max(held.starting_bytes);
        processes_peak = processes_peak.max(held.processes);
        thread::sleep(sample_interval);
    };
    let wall = start.elapsed();
    let said = |path: &Path| {
        digest::of_file(path)
            .map_or_else(|error| format!("no {}: {error}", path.display()), |digest| digest.to_string())
    };
    let mut output = said(&out);
    for file in &program.outputs {
        output += &format!(", {}", said(file));
        // The next run has to write its own.
        let _ = fs::remove_file(file);
    }
    if let Some(client) = client {
        output += &client.join().unwrap_or_else(|_| "; its client failed".to_owned());
    }
    let errors = fs::read_to_string(&err).unwrap_or_default();
    let left = before.left(root);
    Run {
        output,
        status,
        errors,
        peak_bytes,
        without_engine_bytes,
        starting_bytes,
        processes_peak,
        wall,
        left,
    }
}
