//! The tree file: made before the program, readable by it, reported at its end of any kind, and
//! gone.
//!
//! The library that is preloaded here is one the program has anyway, so that nothing claims the
//! counters; where a test needs an engine, the test itself joins the tree and writes the values
//! that an engine would have written before its end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pagoda::config::Config;
use pagoda::error::{Errno, StartError, StopReason};
use pagoda::stats::counters::{Counter, Counters, Status};
use pagoda::stats::fault_kind::FaultKind;
use pagoda::tree::Tree;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;

use crate::{output, pagoda, skip, text};

/// Managed runs are refused where the machine does not allow them, so there is nothing to see
/// there.
fn can_run() -> bool {
    pagoda_linux::probe::can_run().map_err(skip).is_ok()
}

/// The C library, as this process has it mapped.
fn harmless_library() -> String {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let library =
        maps.lines().find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("libc.so")));
    library.expect("a C library").to_owned()
}

fn managed(options: &[&str], program: &[&str], runtime: &Path) -> Command {
    let mut command = pagoda(options, program);
    command.env("PAGODA_PRELOAD", harmless_library()).env("XDG_RUNTIME_DIR", runtime);
    command
}

/// The files in a directory, without their sockets.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).expect("read").map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.is_file()).collect()
}

/// Runs a shell that tells its configuration and then does `rest` once the counters are as an
/// engine leaves them.
fn told(options: &[&str], rest: &str, engine: impl Fn(&Tree)) -> (Output, Config) {
    let runtime = tempfile::tempdir().expect("a directory");
    let script = format!("echo \"$PAGODA_CONFIG\"; read -r word; {rest}");
    let mut command = managed(options, &["sh", "-c", &script], runtime.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("pagoda starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("read");
    let config = Config::from_env(line.trim_end().as_bytes()).expect("readable");
    let path = config.counters.as_ref().expect("a counters file");
    assert_eq!(files_in(runtime.path()), std::slice::from_ref(path));
    engine(&Tree::open(path).expect("opened"));
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(fs::read_dir(runtime.path()).expect("read").count(), 0, "nothing stays behind");
    (output, config)
}

fn member(tree: &Tree) -> Counters {
    tree.join().expect("a place").counters()
}

fn managed_engine(tree: &Tree) {
    let counters = member(tree);
    counters.set(Counter::Status, Status::Managed as u64);
    counters.set(Counter::BudgetBytes, 64 << 20);
    counters.set(Counter::BasePageBytes, 64 << 10);
    counters.raise(Counter::AnonPeakBytes, 60 << 20);
    counters.raise(Counter::HeldPeakBytes, 640 << 20);
    counters.add(Counter::Faults, 1234);
    counters.took(FaultKind::Staged, 9_000);
}

#[test]
fn the_program_is_told_its_configuration() {
    if !can_run() {
        return;
    }
    let store = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let odd = store.path().join("a;b%c d=e");
    fs::create_dir(&odd).expect("made");
    let options = [
        "--base-page",
        "16K",
        "--store-dir",
        odd.to_str().expect("a name"),
        "--file-limit",
        "3G",
        "--best-effort",
        "--no-fetch-ahead",
        "--io-uring",
    ];
    let (_, config) = told(&options, "exit 0", managed_engine);
    let counters = config.counters.clone();
    let expected = Config {
        budget: Bytes::mib(64),
        base_page: BasePage::K16,
        counters,
        store_directory: odd,
        file_limit: Bytes::gib(3),
        io_uring: true,
        best_effort: true,
        fetch_ahead: false,
        remote: None,
        remote_limit: Bytes::ZERO,
        remote_password: None,
        zones: Vec::new(),
        zone_policy: pagoda::ZonePolicy::Fair,
        trace: None,
        is_address_limited: false,
        core: false,
        give_up: pagoda::config::GIVE_UP,
    };
    assert_eq!(config, expected);
    assert_eq!(Config::from_env(config.to_env().as_bytes()), Ok(expected));
}

#[test]
fn a_killed_program_still_has_its_table_and_its_status() {
    if !can_run() {
        return;
    }
    let (output, _) = told(&[], "kill -KILL $$", managed_engine);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(137), "{error}");
    for says in ["sh, ended by signal 9", "64 MiB  base page 64 KiB", "10.0 times the budget", "1234"] {
        assert!(error.contains(says), "{says}: {error}");
    }
}

#[test]
fn quiet_prints_no_table_and_stats_has_every_counter() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stats.json");
    let options = ["--quiet", "--stats", path.to_str().expect("a name")];
    let (output, _) = told(&options, "exit 3", managed_engine);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(3), ""));
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    assert_eq!((&stats["status"], &stats["exit_code"]), (&"managed".into(), &3.into()));
    assert!(stats["resident_peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    let counters = stats["counters"].as_object().expect("counters");
    assert_eq!(counters.len(), pagoda::stats::counters::COUNT);
    assert_eq!((&counters["faults"], &counters["held_peak_bytes"]), (&1234.into(), &(640 << 20).into()));
    assert_eq!(counters["processes"], 1);
    let us = &stats["latency_us"];
    assert!(us["staged"]["p50"].as_f64().is_some_and(|us| (9.0..10.2).contains(&us)), "{us}");
    assert!(us["all"] == us["staged"] && us["stored"].is_null(), "{us}");
    let processes = stats["processes"].as_array().expect("a list");
    assert_eq!((processes.len(), &processes[0]["status"]), (1, &"managed".into()));
}

#[test]
fn an_engine_that_could_not_start_is_said_in_one_line() {
    if !can_run() {
        return;
    }
    let fail = |tree: &Tree| {
        let counters = member(tree);
        counters.set(Counter::ErrorErrno, 24);
        counters.set(Counter::ErrorCode, StartError::DescriptorLimit(Errno(24)).code());
        counters.set(Counter::Status, Status::Failed as u64);
    };
    let (output, _) = told(&[], "exit 0", fail);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(text(&output.stderr), format!("pagoda: {}\n", StartError::DescriptorLimit(Errno(24))));
    let (output, _) = told(&["--best-effort"], "exit 4", fail);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).starts_with("pagoda: budget: NOT ENFORCED: "));
}

#[test]
fn a_clean_stop_has_its_table_and_its_reason() {
    if !can_run() {
        return;
    }
    let (output, _) = told(&[], "kill -ABRT $$", |tree| {
        managed_engine(tree);
        // The same process has the same place.
        let counters = member(tree);
        counters.set(Counter::Status, Status::Managed as u64);
        counters.set(Counter::ErrorCode, StopReason::StoreFull.code());
    });
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        error.contains("native peak")
            && error.ends_with(&format!("pagoda: {} (--memory, --file-limit)\n", StopReason::StoreFull)),
        "{error}"
    );
}

#[test]
fn an_engine_that_never_started_is_said_and_is_no_success() {
    if !can_run() {
        return;
    }
    for (rest, options, status) in [
        ("exit 0", &[][..], 125),
        ("exit 0", &["--best-effort"][..], 0),
        ("exit 9", &[][..], 9),
        ("kill -TERM $$", &["--quiet"][..], 143),
    ] {
        let (output, _) = told(options, rest, |_| {});
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{rest}");
        assert!(
            error.contains("NOT ENFORCED: Pagoda never started") && error.lines().count() == 1,
            "{error}"
        );
    }
}

#[test]
fn other_preloaded_libraries_stay_behind_ours() {
    if !can_run() {
        return;
    }
    let runtime = tempfile::tempdir().expect("a directory");
    let library = harmless_library();
    let other = fs::canonicalize(&library).expect("resolved").with_file_name("libm.so.6");
    let mut command = managed(&[], &["sh", "-c", "echo $LD_PRELOAD"], runtime.path());
    let output = output(command.env("LD_PRELOAD", &other));
    let first = fs::canonicalize(&library).expect("resolved");
    assert_eq!(text(&output.stdout), format!("{}:{}\n", first.display(), other.display()));
}

#[test]
fn a_store_directory_that_takes_no_file_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    let runtime = tempfile::tempdir().expect("a directory");
    for directory in ["/nonexistent", "/proc", "/dev/shm"] {
        let output = output(&mut managed(&["--store-dir", directory], &["echo", "ran"], runtime.path()));
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""), "{error}");
        assert!(error.contains(directory) && error.lines().count() == 1, "{error}");
    }
    assert_eq!(files_in(runtime.path()), [] as [PathBuf; 0]);
}

#[test]
fn options_that_are_too_long_to_hand_over_are_refused_with_the_reason() {
    if !can_run() {
        return;
    }
    let runtime = tempfile::tempdir().expect("a directory");
    // Nothing is ever made there. It fits until it is escaped.
    let options = ["--file-limit", "0", "--store-dir", &"/%".repeat(5000)];
    let output = output(&mut managed(&options, &["echo", "ran"], runtime.path()));
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""), "{error}");
    assert!(error.contains("shorter --store-dir") && error.lines().count() == 1, "{error}");
    assert_eq!(files_in(runtime.path()), [] as [PathBuf; 0]);
}

#[test]
fn a_limit_on_file_sizes_is_named_and_not_the_directory() {
    if !can_run() {
        return;
    }
    let runtime = tempfile::tempdir().expect("a directory");
    let inner = managed(&[], &["echo", "ran"], runtime.path());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0 && exec \"$@\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = output(&mut command);
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""), "{error}");
    assert!(error.contains("raise `ulimit -f`") && error.lines().count() == 1, "{error}");
}
