//! A well-known program with its work, and the steps to get one ready.
//!
//! Nothing is installed here: a missing program is an error that says so.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::measure::Scratch;

/// A client that talks to a program by way of this directory, and returns its findings.
pub type Client = fn(&Path) -> String;

/// One program with its work.
pub struct Program {
    pub name: &'static str,
    pub command: Vec<String>,
    /// The words that start it, natively and managed: the command of `pagoda run` comes after them.
    pub prefix: Vec<String>,
    /// A copy of `pagoda` that the user of the prefix can reach.
    pub pagoda: Option<String>,
    pub environment: Vec<(&'static str, &'static str)>,
    /// Its standard input, if not empty.
    pub input: Option<PathBuf>,
    /// Files that it writes besides its standard output.
    pub outputs: Vec<PathBuf>,
    /// Makes everything as it is to be before each run.
    pub prepare: Option<Box<dyn Fn()>>,
    /// Talks to it while it runs.
    pub client: Option<(Client, PathBuf)>,
    /// The least native peak, so that a quarter of it is a real limit. 0: all its processes are too
    /// small to be worth managing, and that is the test.
    pub native_peak_bytes_min: u64,
}

impl Program {
    /// A program that only writes its standard output.
    pub fn new<S: Into<String>>(
        name: &'static str,
        command: impl IntoIterator<Item = S>,
        native_peak_bytes_min: u64,
    ) -> Self {
        Self {
            name,
            command: command.into_iter().map(Into::into).collect(),
            prefix: Vec::new(),
            pagoda: None,
            environment: vec![("LC_ALL", "C")],
            input: None,
            outputs: Vec::new(),
            prepare: None,
            client: None,
            native_peak_bytes_min,
        }
    }
}

/// Whether it is there and starts; its output.
pub fn starts(command: &[&str]) -> Result<String, String> {
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

/// Python's interpreter itself, by the system's own name first, if it has this module.
pub fn python(module: &str) -> Result<String, String> {
    let script = format!("import sys, {module}; print(sys.executable)");
    let tried = ["python3", "/usr/bin/python3"].map(|python| starts(&[python, "-c", &script]));
    let mut refused = Vec::new();
    for result in tried {
        match result {
            Ok(path) => return Ok(path),
            Err(reason) => refused.push(reason),
        }
    }
    Err(refused.join("; "))
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a name that is text")
}

/// A file in the scratch directory.
pub fn written(scratch: &Scratch, name: &str, content: &str) -> Result<PathBuf, String> {
    let path = scratch.path(name);
    std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// A new directory in the scratch directory.
pub fn directory(scratch: &Scratch, name: &str) -> Result<PathBuf, String> {
    let path = scratch.path(name);
    std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
