//! The machine as a run by the kernel's swap needs it, and the things that a run holds or has left.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pagoda_linux::swap::cgroup::{Controller, Version};
use pagoda_linux::swap::freezer;
use pagoda_linux::swap::swapfile::{Label, owner};
use pagoda_linux::testing::skip::skip;
use tempfile::TempDir;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The programs of the tests that run or wait for their turn, which share them. They are removed
/// with the last such test: a static would never be dropped.
static PROGRAMS: Mutex<Weak<Programs>> = Mutex::new(Weak::new());

/// The programs that the tests execute.
pub struct Programs {
    /// A static program, see `fill.c`.
    pub fill: PathBuf,
    /// A copy of the command that everybody may execute.
    pub command: PathBuf,
    _directory: TempDir,
}

/// The machine, for one test.
pub struct Machine {
    pub programs: Arc<Programs>,
    pub directory: TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// The machine, or None where it has not all that is needed; that is said.
pub fn with(what: &str) -> Option<Machine> {
    let lacks = if !rustix::process::geteuid().is_root() {
        Some("it takes root")
    } else if Controller::below_own().is_none_or(|controller| controller.version() != Version::V1) {
        Some("there is no memory cgroup of version 1")
    } else if freezer::below_own().is_none() {
        Some("there is no freezer cgroup of version 1")
    } else if !Path::new("/sys/class/zram-control").exists() {
        Some("the kernel has no zram")
    } else {
        None
    };
    if let Some(lacks) = lacks {
        skip(what, lacks);
        return None;
    }
    let Some(programs) = programs() else {
        skip(what, "cc makes no static program here");
        return None;
    };
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("mode set");
    Some(Machine { programs, directory, _turn: turn })
}

/// The programs, made by the first test that asks for them. None if `cc` can't make them.
fn programs() -> Option<Arc<Programs>> {
    let mut made = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(programs) = made.upgrade() {
        return Some(programs);
    }
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("mode set");
    let source = directory.path().join("fill.c");
    fs::write(&source, include_str!("fill.c")).expect("written");
    let fill = directory.path().join("fill");
    let compiled = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&fill).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        return None;
    }
    let command = directory.path().join("pagoda");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_pagoda")).arg(&command).status();
    assert!(copied.expect("cp starts").success());
    let programs = Arc::new(Programs { fill, command, _directory: directory });
    *made = Arc::downgrade(&programs);
    Some(programs)
}

/// Those names in a directory that are of the run of this process.
fn names(directory: &Path, pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = format!("pagoda-run-{pid}-");
    let is_its =
        |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
    entries.filter(is_its).collect()
}

/// The memory group of the run of this process.
fn group(pid: u32) -> PathBuf {
    let memory = Controller::below_own().expect("a controller");
    names(memory.root(), pid).pop().unwrap_or_else(|| "/nonexistent".into())
}

/// The freezer group of the run of this process.
pub fn freezer_of(pid: u32) -> Option<PathBuf> {
    names(&freezer::below_own().expect("a freezer"), pid).pop()
}

/// How many zram devices there are that are no swap area yet.
pub fn bare_devices() -> usize {
    let blocks = fs::read_dir("/sys/block").expect("block devices").flatten();
    let names =
        blocks.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().starts_with("zram"));
    let mut header = [0; 4096];
    let mut is_swap = |name: &OsString| {
        let read = File::open(Path::new("/dev").join(name)).and_then(|mut file| file.read_exact(&mut header));
        read.is_ok() && header.ends_with(b"SWAPSPACE2")
    };
    names.filter(|name| !is_swap(name)).count()
}

/// The zram devices of the run of this process.
fn devices(pid: u32) -> Vec<String> {
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = blocks.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_its = |name: &String| {
        name.starts_with("zram")
            && owner(&Path::new("/dev").join(name), Label::new("pagoda-run")) == Some(pid)
    };
    names.filter(is_its).collect()
}

/// All that the run of this process has set up and that is still there.
pub fn left(pid: u32) -> Vec<String> {
    let mut left = devices(pid);
    let note = Some(PathBuf::from("/run/pagoda-kernel")).filter(|note| note.exists());
    let files = names(Path::new("/var/tmp"), pid);
    let groups =
        [Controller::below_own().expect("a controller").root(), &freezer::below_own().expect("a freezer")]
            .map(|root| names(root, pid));
    let paths = note.into_iter().chain(files).chain(groups.into_iter().flatten());
    left.extend(paths.map(|path| path.display().to_string()));
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let name = format!("pagoda-run-{pid}-");
    left.extend(swaps.lines().filter(|line| line.contains(&name)).map(str::to_owned));
    left
}

/// The guard of the run of this process.
pub fn guard_of(pid: u32) -> u32 {
    let processes = fs::read_dir("/proc").expect("proc").flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |number: &u32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' ').collect::<Vec<_>>());
        // Its parent and its session.
        fields.is_some_and(|fields| fields[1] == pid.to_string() && fields[3] == number.to_string())
    };
    numbers.find(is_it).expect("a guard, in a session of its own")
}

impl Machine {
    /// The processes in the group of the run of this process.
    pub fn processes(pid: u32) -> Vec<String> {
        let text = fs::read_to_string(group(pid).join("cgroup.procs")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The most memory that the group of a run and its zram devices hold together, looked at each
    /// millisecond until the run has ended.
    pub fn peak_while_there(pid: u32) -> u64 {
        let number = |path: PathBuf, field: usize| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace().nth(field).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
        };
        let (mut peak, mut devices_known, mut looks) = (0, Vec::new(), 0u32);
        let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        while !matches!(state().rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]), None | Some(b'Z')) {
            if looks.is_multiple_of(20) {
                devices_known = devices(pid);
            }
            looks += 1;
            let usage = number(group(pid).join("memory.usage_in_bytes"), 0);
            let zram: u64 = devices_known
                .iter()
                .map(|name| number(Path::new("/sys/block").join(name).join("mm_stat"), 2))
                .sum();
            peak = peak.max(usage + zram);
            std::thread::sleep(Duration::from_millis(1));
        }
        peak
    }
}
