//! A tree of processes over its budget, whose members are killed, stopped and continued at random
//! moments: none that lives on may hold a wrong byte, hang, or end by Pagoda's doing.
//!
//! `PAGODA_RUNS` says how many rounds, `PAGODA_SEED` repeats one. Ten have each kind of end, of
//! zones, of rights and of groups; more are more of the same.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagoda_linux::process::thread::now_ns;
use pagoda_linux::swap::cgroup::{Controller, MemoryGroup};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use rustix::process::Signal;

use crate::members::{Member, members, send};
use crate::program::Program;

/// Rounds of the normal and of the long form, unless `PAGODA_RUNS` says otherwise.
const ROUNDS: [u64; 2] = [10, 20];

/// How long a tree lives.
fn life() -> Duration {
    Duration::from_millis(length(700, 1000))
}

/// How long after that it may take to end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// What each member may write, in pages, the budget being 12,288 for all of the tree.
const PAGES: [&str; 3] = ["3072", "6144", "8192"];

const MIB: u64 = 1 << 20;

/// A process whose end is told by the status of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    /// `pagoda run`.
    Runner,
    /// The program that it was given.
    Named,
}

/// The way a round is run, by its seed.
#[derive(Debug)]
struct Round {
    seed: u64,
    zones: usize,
    may_trace: bool,
    /// The one of the two first processes that is killed in this round.
    kills: Option<First>,
    /// In a memory group whose limit the tree reaches.
    is_greedy: bool,
}

impl Round {
    fn new(seed: u64) -> Self {
        let kills = match seed % 10 {
            3 => Some(First::Runner),
            6 => Some(First::Named),
            _ => None,
        };
        let (zones, may_trace) = (1 + seed as usize % 2, (seed / 2).is_multiple_of(2));
        Self { seed, zones, may_trace, kills, is_greedy: seed % 5 == 4 }
    }

    fn command(&self, program: &Program, group: Option<&MemoryGroup>) -> Command {
        let path = |name: &str| {
            let path = program.directory().join(name);
            fs::create_dir_all(&path).expect("a directory");
            path
        };
        let mut words: Vec<String> = Vec::new();
        if let Some(group) = group {
            words.extend(["sh", "-c", "echo $$ > \"$0\" && exec \"$@\""].map(String::from));
            words.push(group.procs().display().to_string());
        }
        if !self.may_trace {
            words.extend(
                ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"].map(String::from),
            );
        }
        words.extend([env!("CARGO_BIN_EXE_pagoda"), "run", "--quiet"].map(String::from));
        match self.zones {
            1 => words.extend(["--memory", "48M"].map(String::from)),
            _ => words.extend(["--zone", "near=24M", "--zone", "far=24M@remote"].map(String::from)),
        }
        words.extend(["--store-dir".into(), path("store").display().to_string(), "--".into()]);
        words.push(program.path().display().to_string());
        words.extend([
            self.seed.to_string(),
            (now_ns() + life().as_nanos() as u64).to_string(),
            PAGES[self.seed as usize % 3].into(),
        ]);
        words.extend(group.map(|_| "greedy".into()));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command.env_remove("LD_PRELOAD").env_remove("PAGODA_PRELOAD").env_remove("PAGODA_CONFIG");
        command.env("XDG_RUNTIME_DIR", path("trees"));
        command
    }
}

/// The faults injected into a round from outside.
#[derive(Default, Debug)]
struct Hits {
    done: Vec<String>,
    /// A process was ended, which its children may have to be told of.
    killed: bool,
    /// The runner or the named program was.
    first: bool,
}

/// Kills and stops members until the tree's life is over. All that it stopped is continued.
fn hit(round: &Round, runner: i32, program: &Path) -> Hits {
    let mut random = Random::new(round.seed, 1);
    let mut hits = Hits::default();
    let mut stopped: Vec<(Instant, i32)> = Vec::new();
    let end = Instant::now() + life();
    let mut next = Instant::now() + Duration::from_millis(random.between(20, 300) as u64);
    while Instant::now() < end || !stopped.is_empty() {
        stopped.retain(|(until, id)| {
            let goes_on = Instant::now() >= *until;
            if goes_on {
                send(*id, Signal::CONT);
            }
            !goes_on
        });
        std::thread::sleep(Duration::from_millis(1));
        if Instant::now() < next || Instant::now() >= end {
            continue;
        }
        next = Instant::now() + Duration::from_micros(random.between(500, 150_000) as u64);
        let members = members(program);
        let Some(youngest) = members.last() else { continue };
        let named = members.iter().find(|member| member.parent == runner);
        let runner = Member { id: runner, parent: 0 };
        let one = match random.below(16) {
            0 => runner,
            1..8 => *youngest,
            _ => members[random.below(members.len())],
        };
        let how = match random.below(8) {
            0 | 1 => Signal::KILL,
            2 => Signal::SEGV,
            _ => Signal::STOP,
        };
        let first = match round.kills {
            Some(First::Runner) => Some(runner),
            Some(First::Named) => named.copied(),
            None => None,
        };
        let is_time = !hits.first && end.saturating_duration_since(Instant::now()) < life() / 2;
        let first = first.filter(|_| is_time);
        let (one, how) = first.map_or((one, how), |first| (first, Signal::KILL));
        let is_first = one.id == runner.id || named.is_some_and(|named| named.id == one.id);
        // The tree ends with its first process, and so only where that is wanted.
        if how != Signal::STOP && is_first && first.is_none() {
            continue;
        }
        send(one.id, how);
        hits.done.push(format!("{how:?} {} of {}", one.id, one.parent));
        if how == Signal::STOP {
            let until = Instant::now() + Duration::from_millis(random.between(1, 400) as u64);
            stopped.push((until, one.id));
        } else {
            hits.killed = true;
            hits.first |= is_first;
        }
    }
    hits
}

/// What the threads of the members do that have not ended.
fn standing(members: &[Member]) -> String {
    let mut told = String::new();
    for member in members {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", member.id)) else { continue };
        for thread in threads.flatten() {
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let stat = read("stat");
            told += &format!(
                "{} of {}: {} in {} {}",
                member.id,
                member.parent,
                stat.chars().take(40).collect::<String>(),
                read("wchan"),
                read("syscall")
            );
        }
    }
    told
}

/// Waits until the runner and all members have ended.
fn all_ended(runner: &mut Child, program: &Path) -> Result<std::process::ExitStatus, String> {
    let begin = Instant::now();
    loop {
        let left = members(program);
        if let (Ok(Some(status)), true) = (runner.try_wait(), left.is_empty()) {
            return Ok(status);
        }
        if begin.elapsed() > PATIENCE {
            let told = standing(&left);
            left.iter().for_each(|member| send(member.id, Signal::KILL));
            let _ = runner.kill().and_then(|()| runner.wait().map(drop));
            return Err(format!("they did not end:\n{told}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a round. The error has the reason for a failure.
fn run(round: &Round, program: &Program) -> Result<(), String> {
    let group = round.is_greedy.then(|| {
        let name = format!("pagoda-test-chaos-{}-{}", std::process::id(), round.seed);
        Controller::find().and_then(|controller| controller.create(&name, 160 * MIB)).ok()
    });
    let group = group.flatten();
    let said = program.directory().join("said");
    let file = File::create(&said).expect("a file");
    let mut command = round.command(program, group.as_ref());
    command.stdout(file.try_clone().expect("a descriptor")).stderr(file);
    let mut runner = command.spawn().expect("it starts");
    let hits = hit(round, runner.id() as i32, &program.path());
    let ended = all_ended(&mut runner, &program.path());
    let said = fs::read_to_string(said).expect("what they said");
    let told = format!("{hits:?}\n{said}");
    let status = ended.map_err(|why| format!("{why}\n{told}"))?;
    let is_killed = hits.first || group.is_some();
    if !status.success() && !is_killed {
        return Err(format!("it ended with {status}\n{told}"));
    }
    let may_tell = hits.killed || group.is_some();
    if let Some(line) = said.lines().find(|line| !(may_tell && is_of_a_kill(line))) {
        return Err(format!("{line}\n{told}"));
    }
    for name in ["store", "trees"] {
        let left: Vec<_> = fs::read_dir(program.directory().join(name)).expect("entries").flatten().collect();
        // The runner is the one that removes the tree's file.
        let may_be_left = name == "trees" && is_killed;
        if !left.is_empty() && !may_be_left {
            return Err(format!("left behind: {left:?}\n{told}"));
        }
        left.iter().for_each(|entry| fs::remove_file(entry.path()).expect("it goes"));
    }
    Ok(())
}

/// Whether the runner tells of the end of a process that the kernel or this test killed.
fn is_of_a_kill(line: &str) -> bool {
    let reasons = [
        "for want of memory",
        "the process that forked it was killed",
        "it ended before its first library was loaded",
    ];
    line.starts_with("pagoda:") && reasons.iter().any(|reason| line.contains(reason))
}

#[test]
fn a_tree_whose_members_are_killed_and_stopped_at_any_moment_held_wrong_bytes_or_hung() {
    let Some(program) = Program::build("chaos", &[]) else { return };
    let root = rustix::process::geteuid().is_root();
    let mut failed = Vec::new();
    for seed in runs(length(ROUNDS[0], ROUNDS[1])) {
        let mut round = Round::new(seed);
        // Others have no right to trace that could be taken from them.
        round.may_trace |= !root;
        if let Err(why) = run(&round, &program) {
            eprintln!("PAGODA_SEED={seed} {round:?}: {why}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} rounds failed, of PAGODA_SEED={failed:?}", failed.len());
}
