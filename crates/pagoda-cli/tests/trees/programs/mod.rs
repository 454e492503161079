//! The programs and their work: trees of processes whose output tells right from wrong.
//!
//! Names are resolved here, since a name may stand for a script that starts the real program.

mod build;
mod interpreters;
mod postgres;
mod python;
mod shell;

use crate::redis;
use crate::support::comparison::measure::{Scratch, open_to_all};
use crate::support::comparison::program::{Program, directory, python, starts, text, written};
use crate::support::redis::server;

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

/// Programs that are too large to install for a test.
pub const OPTIONAL: [&str; 4] = ["node", "java", "java-small-heap", "postgres"];

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

/// The least native peak of a program, unless its row gives another.
const NATIVE_PEAK_BYTES_MIN: u64 = 110 << 20;

fn new<S: Into<String>>(name: &'static str, command: impl IntoIterator<Item = S>) -> Program {
    Program::new(name, command, NATIVE_PEAK_BYTES_MIN)
}

fn redis_bgsave(scratch: &Scratch) -> Result<Program, String> {
    starts(&["redis-server", "--version"])?;
    let directory = directory(scratch, "redis")?;
    let mut program = new("redis-bgsave", server(&directory));
    program.client = Some((redis::exercise, directory));
    Ok(program)
}
