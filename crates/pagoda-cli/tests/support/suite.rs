//! A small harness, because a test executable that runs itself as a plain program can't have the
//! usual one. It takes names to filter by, `--list` and `--skip`, and runs as many tests at a time
//! as its caller says. Tests that overlap each have a process of their own: a run takes every new
//! child of its process for a leftover.
//!
//! With `PAGODA_STIR` in the environment the kernel compacts memory all the while, as root: pages
//! get other frames under everything that happens.

use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use pagoda_linux::testing::random::mix;
use pagoda_linux::testing::skip::skip;
use pagoda_linux::testing::stir::Stir;

/// The result of a test that did not run: it counts as skipped, and never as passed.
pub const SKIPPED: &str = "skipped";

/// The first argument of a process that runs one test, by its name.
const ONE: &str = "--one";

/// A test's name and its function. `Err` describes the fault.
pub struct Test {
    pub name: String,
    pub run: Box<dyn Fn() -> Result<String, String> + Sync>,
}

/// Runs the tests that the command line selects, `at_once` of them at a time.
pub fn run(arguments: &[String], tests: Vec<Test>, at_once: usize) -> ExitCode {
    if let [first, name] = arguments
        && first == ONE
    {
        let test = tests.iter().find(|test| test.name == *name).expect("a test of this name");
        let ran = (test.run)();
        print!("{}", ran.as_ref().unwrap_or_else(|said| said));
        return if ran.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let mut filters = Vec::new();
    let mut skipped = Vec::new();
    let mut rest = arguments.iter();
    let (mut list, mut ignored) = (false, false);
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--list" => list = true,
            "--ignored" => ignored = true,
            "--skip" => skipped.extend(rest.next()),
            "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => drop(rest.next()),
            option if option.starts_with('-') => {}
            _ => filters.push(argument),
        }
    }
    let chosen = |name: &str| {
        (filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())))
            && !skipped.iter().any(|skip| name.contains(skip.as_str()))
            && !ignored
    };
    let chosen: Vec<Test> = tests.into_iter().filter(|test| chosen(&test.name)).collect();
    if list {
        for test in &chosen {
            println!("{}: test", test.name);
        }
        return ExitCode::SUCCESS;
    }
    let stir = std::env::var_os("PAGODA_STIR").map(|_| Stir::by_compaction().expect("memory is compacted"));
    let [next, failed, ignored] = [const { AtomicUsize::new(0) }; 3];
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(test) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let ran = if at_once > 1 { run_apart(&test.name) } else { (test.run)() };
                    let (name, time) = (&test.name, begin.elapsed().as_secs_f64());
                    match ran {
                        Ok(said) if said == SKIPPED => {
                            ignored.fetch_add(1, Ordering::Relaxed);
                            println!("test {name} ... ignored");
                        }
                        Ok(said) => println!("test {name} ... ok in {time:.1} s: {said}"),
                        Err(said) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            println!("test {name} ... FAILED in {time:.1} s: {said}");
                        }
                    }
                }
            });
        }
    });
    let [failed, ignored] = [failed.into_inner(), ignored.into_inner()];
    if let Some(stir) = stir {
        println!("memory was compacted {} times", stir.goes());
    }
    let passed = chosen.len() - failed - ignored;
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed; {ignored} ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a test in a process of its own.
fn run_apart(name: &str) -> Result<String, String> {
    let own = std::env::current_exe().expect("a path");
    let ran = Command::new(own).args([ONE, name]).stderr(Stdio::inherit()).output().expect("it starts");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    if ran.status.success() { Ok(said) } else { Err(format!("{}: {said}", ran.status)) }
}

/// A number that the user of the tests has set.
///
/// # Panics
/// If it is none.
pub fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// The seed of a run: another one each time, unless that of an earlier run is set in `name`.
pub fn seed(name: &str) -> u64 {
    from_environment(name).unwrap_or_else(|| mix(u64::from(std::process::id())) >> 40)
}

/// Whether managed runs are possible here. Where they have to be, an impossible one is a failure.
pub fn can_run(what: &str) -> bool {
    match pagoda_linux::probe::can_run() {
        Ok(_) => true,
        Err(why) => {
            skip(what, why);
            false
        }
    }
}

/// Reports that a test is skipped, as its result. Where that is not allowed it is a failure.
pub fn skipped(what: &str, why: impl std::fmt::Display) -> Result<String, String> {
    skip(what, why);
    Ok(SKIPPED.to_owned())
}
