//! The programs and their work: trees of processes whose output tells right from wrong.
//!
//! Names are resolved here, since a name may stand for a script that starts the real program.

mod build;
mod interpreters;
mod postgres;
mod python;
mod shell;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::measure::Scratch;
use crate::redis;

/// In the order in which they run.
pub const NAMES: [&str; 12] = [
    "redis-bgsave",
    "python-fork",
    "python-spawn",
    "python-storm",
    "shell-script",
    "sqlite-pipe",
    "g++",
    "make",
    "node",
    "java",
    "java-small-heap",
    "postgres",
];

/// Programs that are too large to install for a test: without them it says SKIPPED also where nothing else may be.
pub const OPTIONAL: [&str; 4] = ["node", "java", "java-small-heap", "postgres"];

/// One program with its work.
pub struct Program {
    pub name: &'static str,
    pub command: Vec<String>,
    /// What starts it, natively and managed: the command of `pagoda run` comes after it.
    pub prefix: Vec<String>,
    /// A copy of `pagoda` that the user can reach whom the prefix runs it as.
    pub pagoda: Option<String>,
    pub environment: Vec<(&'static str, &'static str)>,
    /// What its standard input is, if not empty.
    pub input: Option<PathBuf>,
    /// Files that it writes besides its standard output.
    pub outputs: Vec<PathBuf>,
    /// Makes everything as it is to be before each run.
    pub prepare: Option<Box<dyn Fn()>>,
    /// Talks to it by way of `directory` while it runs, and says what it saw.
    pub client: Option<fn(&Path) -> String>,
    pub directory: PathBuf,
    /// What its native peak is at least, so that a quarter of it says something. 0: all its processes are too small to
    /// be worth managing, which is what is looked at.
    pub native_peak_bytes_min: u64,
}

/// The program of this name, ready to run; or why it can't.
pub fn program(name: &'static str, scratch: &Scratch) -> Result<Program, String> {
    match name {
        "redis-bgsave" => redis_bgsave(scratch),
        "python-fork" => python::fork(scratch),
        "python-spawn" => python::spawn(scratch),
        "python-storm" => python::storm(),
        "shell-script" => shell::script(),
        "sqlite-pipe" => shell::sqlite(),
        "g++" => build::templates(scratch),
        "make" => build::package(scratch),
        "node" => interpreters::node(scratch),
        "java" => interpreters::java(scratch),
        "java-small-heap" => interpreters::java_small_heap(scratch),
        "postgres" => postgres::single(scratch),
        other => Err(format!("no program is called {other}")),
    }
}

/// What a program's native peak is at least, where nothing else is said.
const NATIVE_PEAK_BYTES_MIN: u64 = 110 << 20;

fn new<S: Into<String>>(name: &'static str, command: impl IntoIterator<Item = S>) -> Program {
    Program {
        name,
        command: command.into_iter().map(Into::into).collect(),
        prefix: Vec::new(),
        pagoda: None,
        environment: vec![("LC_ALL", "C")],
        input: None,
        outputs: Vec::new(),
        prepare: None,
        client: None,
        directory: PathBuf::new(),
        native_peak_bytes_min: NATIVE_PEAK_BYTES_MIN,
    }
}

/// Whether it is there and starts; its output.
fn starts(command: &[&str]) -> Result<String, String> {
    let output = Command::new(command[0])
        .args(&command[1..])
        .output()
        .map_err(|error| format!("{} does not start ({error}); install it", command[0]))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let last = error.lines().last().unwrap_or("").to_owned();
        return Err(format!("{} ended with {}: {last}", command.join(" "), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name that is text")
}

/// A file in the scratch directory.
fn written(scratch: &Scratch, name: &str, content: &str) -> Result<PathBuf, String> {
    let path = scratch.path(name);
    std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

fn redis_bgsave(scratch: &Scratch) -> Result<Program, String> {
    starts(&["redis-server", "--version"])?;
    let directory = scratch.path("redis");
    std::fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut program = new("redis-bgsave", redis::server(&directory, "redis.sock"));
    program.client = Some(redis::exercise);
    program.directory = directory;
    Ok(program)
}
