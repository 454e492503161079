//! Programs of the machine: whether they start, and the files that they are given.
//!
//! Never installs anything: an error is the reason to leave a program out.

use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::measure::scratch::Scratch;

/// The words of a command line.
pub fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The standard output of a command. A failure is an error.
pub fn output(command: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(command[0])
        .args(&command[1..])
        .output()
        .with_context(|| format!("{} does not start", command[0]))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.trim().lines().last().unwrap_or_default();
    ensure!(output.status.success(), "{} ended with {}: {last}", command.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Asks a program for its version, to learn whether it starts.
pub fn starts(program: &str) -> anyhow::Result<()> {
    output(&[program, if program == "java" { "-version" } else { "--version" }]).map(drop)
}

/// The path of the interpreter itself: the name `python3` can stand for a script that starts it.
pub fn python() -> anyhow::Result<String> {
    Ok(output(&["python3", "-c", "import sys; print(sys.executable)"])?.trim().to_owned())
}

/// Writes a file. Returns its path.
pub fn write(scratch: &Scratch, name: &str, content: &str) -> anyhow::Result<String> {
    let path = scratch.file(name);
    fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    Ok(path.display().to_string())
}
