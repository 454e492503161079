//! The tests as an ordinary user, and where userfaultfd is denied: the other tests pass there as
//! well, and report their skips.
//!
//! Only a chosen set is run: tests that behave differently without rights, and of each harness one
//! test that skips. All others would do the same twice more. Cargo names the executables: it has
//! just built them for the same command.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use pagoda_linux::testing::sandbox::{Denial, without_userfaultfd};
use pagoda_linux::testing::skip::{skip, tell};

/// The user `nobody`: it has no rights and owns nothing here.
const NOBODY: u32 = 65534;

/// A target that takes longer hangs. As timeout(1) takes it.
const TIME_MAX: &str = "600";

/// The two runs wait for each other: together they are more than a machine.
static ONE: Mutex<()> = Mutex::new(());

/// Targets that run at a time: most are short, and all of them wait.
const AT_ONCE: usize = 3;

/// A test target by its package and name, and parts of the names of its tests: none for all.
type Chosen = (&'static str, &'static [&'static str]);

const CHOSEN: [Chosen; 14] = [
    // First, since it takes longest: the library in user mode, as the last of these.
    (
        "pagoda/pagoda",
        &[
            "store::file",
            "spill",
            "publisher",
            "config",
            "mapping::apply",
            "memory_of_our_own",
            "marked_to_be",
        ],
    ),
    // The command: its refusals, and one test of each harness.
    ("pagoda-cli/run", &[]),
    ("pagoda-cli/commands", &["doctor::", "preload::", "trace::"]),
    ("pagoda-cli/limits", &["too_few_descriptors_are_named", "zones_that_can_not_be_are_refused"]),
    ("pagoda-cli/hazards", &["noexec", "rights"]),
    ("pagoda-cli/programs", &["sort"]),
    ("pagoda-cli/budget", &["zeroes_stay"]),
    ("pagoda-cli/kernel_backend", &["signals"]),
    // System calls and files of /proc that need rights.
    ("pagoda-linux/pagoda_linux", &[]),
    ("pagoda-linux/proportional", &[]),
    ("pagoda-preload/memory", &[]),
    // The library in user mode.
    ("pagoda/forked", &[]),
    ("pagoda/limit", &[]),
    (
        "pagoda/library",
        &[
            "by_address",
            "migrate::placed",
            "migrate::beside",
            "migrate::pace",
            "regions::adopt::",
            "one_fault",
            "read_only",
            "immovable::threads_that",
            "side_by_side",
            "bus_error",
            "forked_child",
            "only_read",
        ],
    ),
];

/// A chosen target and its executable.
struct Target {
    name: &'static str,
    tests: &'static [&'static str],
    executable: PathBuf,
}

/// All chosen ones.
fn targets() -> &'static [Target] {
    static TARGETS: OnceLock<Vec<Target>> = OnceLock::new();
    TARGETS.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--no-run", "--locked", "--offline", "--message-format", "json"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        // Said of this package: build scripts of others look at them, and would run again, with all
        // that depends on them.
        for (name, _) in std::env::vars_os() {
            let is_of = |part: &&str| name.as_encoded_bytes().starts_with(part.as_bytes());
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"].iter().any(is_of) {
                cargo.env_remove(name);
            }
        }
        // The same packages as for the command that runs this test: those of the whole workspace.
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let built = cargo.current_dir(workspace).stderr(Stdio::inherit()).output();
        let built = built.expect("cargo starts");
        assert!(built.status.success(), "cargo: {}", built.status);
        let messages = text(&built.stdout);
        let built: Vec<_> = messages.lines().filter_map(target).collect();
        let chosen = CHOSEN.iter().map(|&(name, tests)| {
            let found = built.iter().find(|(built, _)| built == name);
            let (_, executable) = found.unwrap_or_else(|| panic!("cargo built no {name}: {built:?}"));
            Target { name, tests, executable: executable.clone() }
        });
        chosen.collect()
    })
}

/// The name and the executable of the test target that a message of cargo's is about.
fn target(message: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(message).expect("JSON");
    if message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let package = manifest.parent()?.file_name()?.to_str()?;
    Some((format!("{package}/{}", message["target"]["name"].as_str()?), executable))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs all chosen tests as `restrict` makes it. How many tests were skipped.
fn run_all(restrict: impl Fn(&mut Command) + Sync) -> usize {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (targets, next) = (targets(), AtomicUsize::new(0));
    let (skipped, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match run(target, &restrict) {
                        Ok(of_target) => {
                            skipped.fetch_add(of_target, Ordering::Relaxed);
                        }
                        Err(failure) => {
                            failures.lock().expect("no panic").push(format!("{}: {failure}", target.name));
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{} targets failed:\n{}", failures.len(), failures.join("\n"));
    skipped.into_inner()
}

fn run(target: &Target, restrict: impl Fn(&mut Command)) -> Result<usize, String> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a directory");
    let package = package.join(target.name.split('/').next().expect("a package"));
    let output = tempfile::tempdir().expect("a directory");
    let file = |name| fs::File::create(output.path().join(name)).expect("a file");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", TIME_MAX]).arg(&target.executable).arg("--nocapture");
    command.args(target.tests);
    // Its skips are the point, and have to be reported. Its seeds' findings are not.
    command.env_remove("PAGODA_NO_SKIPS").env("PAGODA_RUNS", "1").current_dir(package);
    // To files: a leftover process would hold a pipe open.
    command.stdin(Stdio::null()).stdout(file("out")).stderr(file("error"));
    restrict(&mut command);
    let begin = Instant::now();
    let status = command.status().map_err(|error| format!("does not start: {error}"))?;
    let said = |name| text(&fs::read(output.path().join(name)).expect("written"));
    let (out, error) = (said("out"), said("error"));
    let ran_none = out.contains("test result: ok. 0 passed; 0 failed; 0 ignored");
    if !status.success() || !out.contains("test result: ok") || ran_none {
        return Err(format!("{status}\n{out}\n{error}"));
    }
    let mut skipped: Vec<_> = error.lines().filter(|line| line.starts_with("SKIPPED ")).collect();
    let seconds = begin.elapsed().as_secs_f64();
    let mut told = format!("{}: {} skipped in {seconds:.1} s", target.name, skipped.len());
    let count = skipped.len();
    skipped.sort_unstable();
    for same in skipped.chunk_by(|one, next| one == next) {
        told += &format!("\n    {} times {}", same.len(), same[0]);
    }
    println!("{told}");
    Ok(count)
}

fn as_ordinary_user(command: &mut Command) {
    command.uid(NOBODY).gid(NOBODY).env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent");
}

/// An ordinary user must be able to reach the build.
fn reachable(path: &Path) -> bool {
    let mut command = Command::new("test");
    command.arg("-x").arg(path);
    as_ordinary_user(&mut command);
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn the_tests_pass_where_userfaultfd_is_denied_and_report_their_skips() {
    let skipped = run_all(|command| without_userfaultfd(command, Denial::NotPermitted));
    assert!(skipped > 0, "they did not report their skips");
}

#[test]
fn the_tests_pass_as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return tell("the tests as an ordinary user", "they run as one anyway");
    }
    let own = std::env::current_exe().expect("a path");
    if !reachable(&own) {
        return skip("the tests as an ordinary user", format!("{} can't be reached by one", own.display()));
    }
    run_all(as_ordinary_user);
}

#[test]
fn a_run_without_userfaultfd_is_refused_in_one_line_unless_that_is_allowed() {
    let pagoda = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
        // Where root may set up the kernel's swap, that would serve it.
        command.args(["run", "--memory", "64M", "--backend", "engine"]).args(options);
        command.args(["--", "echo", "ran"]);
        without_userfaultfd(&mut command, Denial::NotPermitted);
        command.output().expect("pagoda starts")
    };
    let refused = pagoda(&[]);
    let error = text(&refused.stderr);
    assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(125), ""), "{error}");
    assert!(error.starts_with("pagoda: ") && error.lines().count() == 1, "{error}");
    assert!(error.contains("userfaultfd") && error.contains("pagoda doctor"), "{error}");
    let allowed = pagoda(&["--best-effort"]);
    let error = text(&allowed.stderr);
    assert_eq!((allowed.status.code(), text(&allowed.stdout).as_str()), (Some(0), "ran\n"), "{error}");
    assert!(error.starts_with("pagoda: budget: NOT ENFORCED") && error.lines().count() == 1, "{error}");
}
