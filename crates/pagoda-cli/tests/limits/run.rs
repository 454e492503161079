//! A managed run of this executable that may end in any way, and its expected end.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::managed::ROLE;

/// Longer is a hang: the engine gives up after ten seconds without memory.
const HANG: Duration = Duration::from_secs(180);

/// Seconds that a program gives the watcher for its looks: enough on a machine that has little else
/// to do, and on others.
const LOOKS: [&str; 3] = ["2", "15", "60"];

/// Runs the program to its end, with ever more time for looks until `seen` is content. That returns
/// `None` where there may only have been too few, and an error where more of them would help
/// nothing.
pub fn looked_at(
    options: &[&str],
    program: &[&str],
    seen: impl Fn(&Ended) -> Result<Option<String>, String>,
) -> Result<String, String> {
    let mut ended = None;
    for looks in LOOKS {
        let ended = ended.insert(begin(&[], options, &[program, &[looks]].concat())?.end()?);
        ended.expect_success()?;
        if let Some(told) = seen(ended)? {
            return Ok(told);
        }
    }
    Err(format!("it was never seen: {}", ended.map_or_else(String::new, |ended| ended.stats)))
}

/// In the program: waits for so many seconds of looks.
pub fn look(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

/// A run that has begun. If it is dropped before its end it is killed.
pub struct Begun {
    child: Child,
    begin: Instant,
    scratch: tempfile::TempDir,
}

/// How it ended.
pub struct Ended {
    status: ExitStatus,
    /// The program's standard output.
    pub said: String,
    /// The standard error of `pagoda` and the program.
    pub errors: String,
    stats: String,
}

/// Begins `pagoda run OPTIONS -- this executable as PROGRAM`, behind the words of `before`, as
/// those of `sh -c`.
pub fn begin(before: &[&str], options: &[&str], program: &[&str]) -> Result<Begun, String> {
    begin_by(before, options, &[], program)
}

/// The same, where `pagoda run` is given the words `by` that execute the program.
pub fn begin_by(before: &[&str], options: &[&str], by: &[&str], program: &[&str]) -> Result<Begun, String> {
    let told = |error: std::io::Error| error.to_string();
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(told)?;
    let file = |name: &str| File::create(scratch.path().join(name)).map_err(told);
    let mut words: Vec<PathBuf> = before.iter().map(PathBuf::from).collect();
    words.push(env!("CARGO_BIN_EXE_pagoda").into());
    let mut command = Command::new(&words[0]);
    let child = command
        .args(&words[1..])
        .args(["run", "--quiet", "--stats"])
        .arg(scratch.path().join("stats"))
        .args(options)
        .arg("--")
        .args(by)
        .arg(std::env::current_exe().map_err(told)?)
        .arg(ROLE)
        .args(program)
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .stdout(file("out")?)
        .stderr(file("err")?)
        .spawn()
        .map_err(|error| format!("pagoda does not start: {error}"))?;
    Ok(Begun { child, begin: Instant::now(), scratch })
}

impl Begun {
    /// Waits for the end.
    pub fn end(self) -> Result<Ended, String> {
        self.end_watched(|_| ())
    }

    /// The same, and looks at the process of this `pagoda run` now and then.
    pub fn end_watched(mut self, mut look: impl FnMut(u32)) -> Result<Ended, String> {
        let status = loop {
            look(self.child.id());
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if self.begin.elapsed() > HANG => {
                    return Err(format!("it hangs: {}", self.read("err")));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(error.to_string()),
            }
        };
        Ok(Ended { status, said: self.read("out"), errors: self.read("err"), stats: self.read("stats") })
    }

    fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.scratch.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Passed on by pagoda, so that the program ends too; the signal that can't be blocked
            // would end pagoda only.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// Pagoda ended it: status 125, and one line that says all of `says`.
    pub fn expect_refusal(&self, says: &[&str]) -> Result<String, String> {
        let line = self.errors.trim_end();
        let is_line = line.starts_with("pagoda: ") && line.lines().count() == 1 && line.contains(';');
        let says_all = says.iter().all(|word| line.contains(word));
        if self.status.code() == Some(125) && is_line && says_all {
            return Ok(line.to_owned());
        }
        Err(format!(
            "expected 125 and a line with {says:?}, not {}: {}{}",
            self.status, self.said, self.errors
        ))
    }

    /// The program ended well, managed to its end.
    pub fn expect_success(&self) -> Result<(), String> {
        let stats = self.stats()?;
        if self.status.success() && stats["status"] == "managed" {
            return Ok(());
        }
        Err(format!("{}: {}{}{}", self.status, self.said, self.errors, self.stats))
    }

    /// A counter's value at the end.
    pub fn counter(&self, name: &str) -> Result<u64, String> {
        self.stats()?["counters"][name].as_u64().ok_or_else(|| format!("no counter {name}: {}", self.stats))
    }

    /// The program's final status as `pagoda run` reports it.
    pub fn status_told(&self) -> Result<String, String> {
        Ok(self.stats()?["status"].as_str().unwrap_or_default().to_owned())
    }

    fn stats(&self) -> Result<serde_json::Value, String> {
        serde_json::from_str(&self.stats)
            .map_err(|error| format!("--stats: {error}: {}; {}: {}", self.stats, self.status, self.errors))
    }
}
