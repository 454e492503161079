//! Running this executable as a program under `pagoda run`, with an end to its time: a hang is
//! shown, thread by thread, and ended with all its processes. A run that leaves anything behind has
//! failed, and so has one in which any process complained: an orphan's findings are in no other
//! process's status.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::tree::{self, Before};

/// The first argument of a run as a program.
pub const ROLE: &str = "--as-program";

/// The allowed beginnings of a line on standard error: the skips of this test, and the line of a
/// program that was executed by vfork, whose standard output this is.
const EXPECTED: [&str; 2] = ["SKIPPED ", "executed "];

/// The message of `pagoda run` for a child that was ended because its parent was killed while it
/// forked.
const PARENT_LOST: &str =
    "pagoda: a process below the program: the process that forked it was killed before its child had all";

/// Runs until one has reached its subject. On a busy machine a short one may end before that.
const TRIES: u32 = 5;

/// The variable that tells a program how many runs before it have not reached their subject.
const TRIED: &str = "PAGODA_TEST_TRIED";

/// How many times as long as the first run this one takes: each try doubles it.
pub fn longer() -> u32 {
    1 << std::env::var(TRIED).map_or(0, |tried| tried.parse::<u32>().expect("a number"))
}

/// One managed run.
pub struct Run<'a> {
    pub base_page: &'a str,
    pub memory: &'a str,
    /// The program's arguments after [`ROLE`].
    pub arguments: Vec<String>,
    /// How long it may take.
    pub limit: Duration,
    /// Whether some of its processes are killed while they fork: then `pagoda run` may say that a
    /// child lost its parent by that.
    pub kills_who_forks: bool,
}

/// How a run ended that ended well.
pub struct Outcome {
    /// The program's standard output.
    pub said: String,
    counters: serde_json::Value,
}

impl Outcome {
    /// A counter's value at the end.
    pub fn counter(&self, name: &str) -> Result<u64, String> {
        self.counters[name].as_u64().ok_or_else(|| format!("there is no counter named {name}"))
    }
    /// The counters that must have counted something, for otherwise nothing was tested; and their
    /// values in words.
    fn expect_some(&self, names: &[&str]) -> Result<String, String> {
        let mut said = Vec::new();
        for name in names {
            let value = self.counter(name)?;
            if value == 0 {
                return Err(format!("{name} is 0: the race was not run; {}", self.said.trim()));
            }
            said.push(format!("{name} {value}"));
        }
        Ok(said.join(", "))
    }
}

impl Run<'_> {
    /// Runs it to its end, again until each of these counters counted something. Returns their
    /// values in words, too.
    pub fn run_until_some(&self, names: &[&str]) -> Result<(Outcome, String), String> {
        let mut missing = String::new();
        for tried in 0..TRIES {
            let outcome = self.run(tried)?;
            match outcome.expect_some(names) {
                Ok(counted) => return Ok((outcome, counted)),
                Err(error) => missing = error,
            }
        }
        Err(format!("{missing}, in {TRIES} runs"))
    }

    /// Runs it to its end, after so many runs before it.
    fn run(&self, tried: u32) -> Result<Outcome, String> {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
        let (stats, output, errors) =
            (scratch.path().join("stats"), scratch.path().join("out"), scratch.path().join("err"));
        let create = |path: &Path| File::create(path).map_err(|error| error.to_string());
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        tree::adopt_orphans();
        let before = Before::look(&[]);
        let mut child = Command::new(env!("CARGO_BIN_EXE_pagoda"))
            .args(["run", "--quiet", "--memory", self.memory, "--base-page", self.base_page, "--stats"])
            .arg(&stats)
            .arg("--")
            .arg(own)
            .arg(ROLE)
            .args(&self.arguments)
            .env(TRIED, tried.to_string())
            .current_dir(scratch.path())
            .stdin(Stdio::null())
            .stdout(create(&output)?)
            .stderr(create(&errors)?)
            .spawn()
            .map_err(|error| format!("pagoda does not start: {error}"))?;
        let ended = wait(&mut child, self.limit);
        let left = before.left(child.id());
        let status = match ended {
            Ok(status) => status,
            Err(threads) => return Err(format!("{}\nhangs:\n{threads}", read(&errors))),
        };
        let (stats, errors) = (read(&stats), read(&errors));
        if !status.success() {
            return Err(format!("{status}\n{}\n{errors}\n{stats}", read(&output)));
        }
        let is_expected = |line: &str| {
            EXPECTED.iter().any(|expected| line.starts_with(expected))
                || self.kills_who_forks && line.starts_with(PARENT_LOST)
        };
        if !errors.lines().all(is_expected) {
            return Err(format!("it ended well, and one of its processes complained:\n{errors}"));
        }
        if !left.is_empty() {
            return Err(format!("it left behind: {}", left.join(", ")));
        }
        let stats: serde_json::Value =
            serde_json::from_str(&stats).map_err(|error| format!("--stats: {error}: {stats}"))?;
        if stats["status"] != "managed" {
            return Err(format!("it was not managed: {stats}"));
        }
        Ok(Outcome { said: read(&output), counters: stats["counters"].clone() })
    }
}

fn read(path: &Path) -> String {
    fs::read(path)
        .map_or_else(|error| error.to_string(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits for the end of a run. If it takes too long it is ended, and its threads are told.
fn wait(child: &mut Child, limit: Duration) -> Result<std::process::ExitStatus, String> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our own child can be waited for") {
            return Ok(status);
        }
        if begin.elapsed() > limit {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let programs = tree::with_descendants(child.id());
    let told: Vec<String> = programs.iter().map(|&program| tree::threads(program)).collect();
    programs.into_iter().for_each(tree::kill);
    child.wait().expect("it was killed");
    Err(told.join("\n"))
}
