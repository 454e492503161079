//! The budget as it is seen from outside: a program fills memory at up to 1 GiB/s, and `RssAnon` is
//! sampled.
//!
//! The program is this executable itself, started again. Its content is zero, compressible or not;
//! incompressible pages must leave by the file, and no page cache may hide them there.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use pagoda_linux::process::thread::exit_process;
use pagoda_linux::testing::skip::skip;
use pagoda_linux::testing::wait::until;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, waitpid,
};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 128 * MIB;
/// The size of each burst: four times the budget.
const BURST: u64 = 512 * MIB;
/// After each piece the filler waits until it is no faster than 1 GiB/s.
const PIECE: usize = 4 << 20;
const SAMPLE: Duration = Duration::from_millis(20);
const OVER_ALWAYS: u64 = 64 * MIB;
const OVER_AFTER_BURST: u64 = 16 * MIB;
/// After a burst, on a quiet machine: only there, and where `TIMES` is set, more is a failure.
const DOWN_WITHIN: Duration = Duration::from_secs(1);
const TIMES: &str = "PAGODA_TIMES";
const TIME_MAX: Duration = Duration::from_secs(180);
const ROLE: &str = "PAGODA_TEST_FILL";

/// The program: fills, rests, checks all it wrote. Tells of each burst's end by making a file.
#[test]
fn filler() {
    let Ok(kind) = std::env::var(ROLE) else { return };
    let marks = std::env::var("PAGODA_TEST_MARKS").expect("a directory");
    let mut pieces: Vec<Vec<u64>> = Vec::new();
    let start = Instant::now();
    for number in 0..BURST / PIECE as u64 {
        let mut piece = vec![0u64; PIECE / 8];
        for (i, word) in piece.iter_mut().enumerate() {
            *word = content(&kind, number, i as u64);
        }
        pieces.push(piece);
        let due = Duration::from_secs_f64((number + 1) as f64 * PIECE as f64 / (1u64 << 30) as f64);
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
    fs::write(Path::new(&marks).join("filled"), "").expect("written");
    // It does nothing until it has come down, and fails if that never comes.
    let down = Path::new(&marks).join("down");
    until("memory is within the budget again", || {
        thread::sleep(SAMPLE);
        down.exists()
    });
    fs::write(Path::new(&marks).join("rested"), "").expect("written");
    for (number, piece) in pieces.iter().enumerate() {
        for (i, &word) in piece.iter().enumerate() {
            assert_eq!(word, content(&kind, number as u64, i as u64), "word {i} of piece {number}");
        }
    }
    // Not by exit(3): its removal of a file after a killed `pagoda run` is not this test's subject.
    exit_process(0);
}

fn content(kind: &str, piece: u64, word: u64) -> u64 {
    let mixed = (piece << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match kind {
        // Written, so that it is there, and still zero.
        "zero" => 0,
        // Three words of four repeat.
        "compressible" if !word.is_multiple_of(4) => piece,
        _ => (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 32,
    }
}

#[test]
fn zeroes_stay_within_the_budget() {
    within_budget("zero");
}

/// The reclaimer comes late then: it finds memory over the budget before it found it short.
#[test]
fn zeroes_stay_within_the_budget_while_another_program_keeps_a_processor_busy() {
    beside("zero", &["sh", "-c", "while :; do :; done"]);
}

#[test]
fn compressible_data_stays_within_the_budget() {
    within_budget("compressible");
}

#[test]
fn incompressible_data_stays_within_the_budget_and_spills_past_the_page_cache() {
    within_budget("incompressible");
}

/// One at a time: two fillers would sample each other's disk and processors.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

struct KilledAtEnd(Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Sample {
    anonymous: u64,
    file_backed: u64,
    /// Descriptors of the spill file that were found, all of them for direct I/O.
    spill_files: u64,
    filled: bool,
    rested: bool,
}

fn within_budget(kind: &str) {
    beside(kind, &[]);
}

/// A managed filler, whose marks and store are in `directory`.
fn managed(kind: &str, directory: &Path, stats: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["run", "-q", "-m", &BUDGET.to_string(), "--store-dir"]).arg(directory);
    command.arg("--stats").arg(stats).arg("--").arg(std::env::current_exe().expect("a path"));
    command.args(["--exact", "filler", "--nocapture"]).env(ROLE, kind).env("PAGODA_TEST_MARKS", directory);
    command.env_remove("PAGODA_PRELOAD").stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    command
}

#[test]
fn a_program_whose_pagoda_is_killed_stays_within_the_budget_and_the_next_run_removes_its_tree_file() {
    if let Err(why) = pagoda_linux::probe::can_run() {
        return skip("a killed pagoda", why);
    }
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // The program becomes ours when its parent is gone.
    set_child_subreaper(Some(getpid())).expect("Linux has subreapers");
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let runtime = scratch.path().join("runtime");
    fs::create_dir(&runtime).expect("made");
    let mut command = managed("compressible", scratch.path(), &scratch.path().join("stats.json"));
    let mut pagoda = KilledAtEnd(command.env("XDG_RUNTIME_DIR", &runtime).spawn().expect("pagoda starts"));
    let mut program = None;
    until("the program has filled as much as it may hold", || {
        program = program_of(pagoda.0.id());
        program.and_then(resident).is_some_and(|(anonymous, _)| anonymous > BUDGET / 2)
    });
    pagoda.0.kill().expect("killed");
    pagoda.0.wait().expect("it ends");
    let program = program.expect("seen");
    let (peak, status) = sample_orphan(program, scratch.path());
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
    assert!(peak > BUDGET / 2 && peak <= BUDGET + OVER_ALWAYS, "{} MiB at a sample", peak / MIB);
    let left = || fs::read_dir(&runtime).expect("read").map(|entry| entry.expect("an entry").path());
    let is_file = |path: &PathBuf| path.is_file();
    let [file] = left()
        .filter(is_file)
        .collect::<Vec<_>>()
        .try_into()
        .expect("one file, for the program that goes on");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    fs::File::open(file).and_then(|file| file.set_modified(long_ago)).expect("set back");
    let next = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["run", "-q", "-m", "64M", "--", "true"])
        .env("XDG_RUNTIME_DIR", &runtime)
        .env_remove("PAGODA_PRELOAD")
        .status();
    assert!(next.expect("pagoda starts").success());
    assert_eq!(left().count(), 0, "a tree file without a member");
}

/// Samples a program until its end, and lets it go on from its rest. The most that it held, and how
/// it ended.
fn sample_orphan(program: u32, marks: &Path) -> (u64, WaitStatus) {
    let pid = Pid::from_raw(program.cast_signed()).expect("a number");
    let start = Instant::now();
    let mut peak = 0;
    loop {
        if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG).expect("a child of ours") {
            return (peak, status);
        }
        if start.elapsed() > TIME_MAX {
            let _ = kill_process(pid, Signal::KILL);
            panic!("the filler did not end within {TIME_MAX:?}");
        }
        if let Some((anonymous, _)) = resident(program) {
            peak = peak.max(anonymous);
            if marks.join("filled").exists() && anonymous <= BUDGET + OVER_AFTER_BURST {
                fs::write(marks.join("down"), "").expect("written");
            }
        }
        thread::sleep(SAMPLE);
    }
}

/// `other` is a program that runs meanwhile, if any.
fn beside(kind: &str, other: &[&str]) {
    if let Err(why) = pagoda_linux::probe::can_run() {
        return skip(&format!("the budget of {kind} data"), why);
    }
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let stats = scratch.path().join("stats.json");
    let mut command = managed(kind, scratch.path(), &stats);
    let _other = other.split_first().map(|(program, arguments)| {
        KilledAtEnd(Command::new(program).args(arguments).spawn().expect("a program to run beside"))
    });
    let mut child = command.spawn().expect("pagoda starts");
    let (samples, down_after, status) = sample_until_end(&mut child, scratch.path());
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&stats).expect("--stats")).expect("JSON");
    assert!(status.success(), "{status}: {told}");
    assert_eq!(told["status"], "managed", "{told}");
    let counters = &told["counters"];
    let at_most =
        |samples: &[&Sample], of: fn(&Sample) -> u64| samples.iter().map(|s| of(s)).max().unwrap_or(0);
    let all: Vec<&Sample> = samples.iter().collect();
    assert!(at_most(&all, |s| s.spill_files) > 0, "the spill file was looked at: {told}");
    let after: Vec<u64> = samples.iter().filter(|s| s.filled && !s.rested).map(|s| s.anonymous).collect();
    let (peak, rest) =
        (at_most(&all, |s| s.anonymous), after.iter().min().expect("the filler was seen at rest"));
    let down_after = down_after.expect("it came down");
    println!(
        "{kind}: budget {} MiB, {} samples, most {} MiB, {} ms after the burst within {} MiB, least {} MiB in {} samples, file-backed {} MiB, spilled {} MiB",
        BUDGET / MIB,
        samples.len(),
        peak / MIB,
        down_after.as_millis(),
        (BUDGET + OVER_AFTER_BURST) / MIB,
        rest / MIB,
        after.len(),
        at_most(&all, |s| s.file_backed) / MIB,
        counters["spilled_peak_bytes"].as_u64().unwrap_or(0) / MIB
    );
    assert!(peak <= BUDGET + OVER_ALWAYS, "{} MiB at a sample", peak / MIB);
    assert!(*rest <= BUDGET + OVER_AFTER_BURST, "{} MiB after the burst", rest / MIB);
    if std::env::var_os(TIMES).is_some() {
        assert!(
            down_after <= DOWN_WITHIN,
            "{kind}: only {down_after:?} after the burst it was within the budget"
        );
    }
    let spilled = counters["spilled_peak_bytes"].as_u64().expect("a counter");
    if kind == "incompressible" {
        assert!(spilled > BURST / 2, "only {} MiB went to the file", spilled / MIB);
    }
}

/// Samples the program until its end, which has to come. Also how long after the burst it was first
/// seen within the budget.
fn sample_until_end(
    child: &mut Child,
    marks: &Path,
) -> (Vec<Sample>, Option<Duration>, std::process::ExitStatus) {
    let start = Instant::now();
    let (mut samples, mut down_after) = (Vec::new(), None);
    let supervisor = child.id();
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return (samples, down_after, status);
        }
        if start.elapsed() > TIME_MAX {
            let group = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            panic!("the filler did not end within {TIME_MAX:?}");
        }
        let filled = marks.join("filled").exists();
        let rested = marks.join("rested").exists();
        if let Some((anonymous, file_backed)) = program_of(supervisor).and_then(resident) {
            let spill_files = check_page_cache(supervisor);
            samples.push(Sample { anonymous, file_backed, spill_files, filled, rested });
            if filled && anonymous <= BUDGET + OVER_AFTER_BURST && down_after.is_none() {
                // When the filler made it, and not when it was seen here.
                let filled_at = fs::metadata(marks.join("filled")).and_then(|mark| mark.modified());
                down_after = Some(filled_at.expect("a mark").elapsed().unwrap_or_default());
                fs::write(marks.join("down"), "").expect("written");
            }
        }
        thread::sleep(SAMPLE);
    }
}

fn program_of(supervisor: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Anonymous and file-backed resident bytes.
fn resident(pid: u32) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    };
    Some((field("RssAnon:")?, field("RssFile:")?))
}

/// The store's file is open for direct I/O in every process that has it open: nothing of it is
/// cached. Returns how often it was seen.
fn check_page_cache(supervisor: u32) -> u64 {
    const O_DIRECT: u32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
    let mut seen = 0;
    let Some(program) = program_of(supervisor) else { return seen };
    for task in fs::read_dir(format!("/proc/{program}/task")).into_iter().flatten().flatten() {
        for fd in fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(fd.path()) else { continue };
            let name = target.to_string_lossy();
            if !(name.starts_with("/var/tmp/") && name.ends_with("(deleted)")) {
                continue;
            }
            let Ok(info) = fs::read_to_string(task.path().join("fdinfo").join(fd.file_name())) else {
                continue;
            };
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
            let flags = u32::from_str_radix(flags.trim(), 8).expect("octal");
            assert!(flags & O_DIRECT != 0, "{name} is open through the page cache: flags {flags:o}");
            seen += 1;
        }
    }
    seen
}
