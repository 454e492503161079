//! A tree of processes seen from outside: its members, the memory of each, and its leftovers.
//!
//! The test adopts processes that lose their parent, so that none gets out of sight; a process that
//! is still there after the end of a run was left behind. Nothing here may ask the engine: these
//! are the kernel's own counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};

/// Below it a process is not worth an engine, and the few megabytes of an interpreter's start stay
/// unmanaged.
pub const WORTH_MANAGING_BYTES: u64 = 16 << 20;

/// How long a process may take to be gone once its run has ended: the kernel frees its memory
/// first.
const GONE_TIME_MAX: Duration = Duration::from_secs(30);

/// From now on orphans of our descendants become our children.
pub fn adopt_orphans() {
    set_child_subreaper(Some(rustix::process::getpid())).expect("Linux has subreapers");
}

/// The children of a process, by all its threads.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// A process and all below it.
pub fn with_descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        all.extend(children(pid));
        next += 1;
    }
    all
}

/// The memory of a tree's processes at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Anonymous memory, with shared pages counted once.
    pub anonymous_bytes: u64,
    /// The part of it that is held by processes without an engine that are large enough to have
    /// one.
    pub without_engine_bytes: u64,
    /// The same of processes that were not seen without one for long: the child of a fork is large
    /// from the start, and its engine takes over its parent's swapped-out pages before any thread
    /// of it shows.
    pub starting_bytes: u64,
    pub processes: usize,
}

/// How long a process may be seen large and without an engine until that counts.
const STARTING_TIME_MAX: Duration = Duration::from_millis(500);

/// Looks at a tree again and again.
#[derive(Default)]
pub struct Watch {
    /// When each was first seen to be large and to have none.
    without: BTreeMap<u32, Instant>,
    /// Processes that were seen with an engine: its threads end before the process has given back
    /// its memory.
    managed: BTreeSet<u32>,
}

impl Watch {
    /// The present memory of these processes.
    pub fn held(&mut self, pids: &[u32]) -> Held {
        let mut held = Held::default();
        for &pid in pids {
            let Some(bytes) = anonymous_bytes(pid, pids.len() == 1) else { continue };
            held.processes += 1;
            held.anonymous_bytes += bytes;
            if bytes >= WORTH_MANAGING_BYTES && !self.managed.contains(&pid) {
                if has_engine(pid) {
                    self.managed.insert(pid);
                } else if self.without.entry(pid).or_insert_with(Instant::now).elapsed() < STARTING_TIME_MAX {
                    held.starting_bytes += bytes;
                } else {
                    held.without_engine_bytes += bytes;
                }
            }
        }
        held
    }
}

/// The proportional share of anonymous memory of a process, which is all of it if it is alone; none
/// once it has ended.
fn anonymous_bytes(pid: u32, alone: bool) -> Option<u64> {
    // One walk of all its page tables for large processes only, where sharing makes a difference.
    let resident = field(&format!("/proc/{pid}/status"), "RssAnon:")?;
    if alone || resident < 1 << 20 {
        return Some(resident);
    }
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss_Anon:").or(Some(resident))
}

/// A field in KiB, as bytes.
fn field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Whether one of its threads serves faults: a process that is only watched has a thread of
/// Pagoda's, too.
pub fn has_engine(pid: u32) -> bool {
    has_thread(pid, "pagoda-handler")
}

/// Whether one of its threads has this name.
pub fn has_thread(pid: u32, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .any(|comm| comm.trim_end() == name)
}

/// The state before a run, to tell the run's leftovers.
pub struct Before {
    children: BTreeSet<u32>,
    directories: Vec<PathBuf>,
    files: BTreeSet<PathBuf>,
}

impl Before {
    /// Looks at our own children and the files in these directories.
    pub fn look(directories: &[&Path]) -> Self {
        let directories: Vec<PathBuf> = directories.iter().map(|&path| path.to_owned()).collect();
        Self { children: own_children(), files: files(&directories), directories }
    }

    /// Everything that is there now and was not before, and files with the name of `supervisor`
    /// where `pagoda run` puts them. Processes are given a moment to be gone, and then killed.
    pub fn left(&self, supervisor: u32) -> Vec<String> {
        let begin = Instant::now();
        let new = || own_children().difference(&self.children).copied().collect::<Vec<u32>>();
        let alive = loop {
            reap(&new());
            let alive = new();
            if alive.is_empty() || begin.elapsed() > GONE_TIME_MAX {
                break alive;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut left = Vec::new();
        for pid in alive.into_iter().flat_map(with_descendants) {
            left.push(format!("process {pid} ({})", command_line(pid)));
            kill(pid);
        }
        reap(&new());
        let mark = format!("pagoda-{supervisor}-");
        let named = files(&["/dev/shm", "/tmp", "/var/tmp"].map(PathBuf::from)).into_iter().filter(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&mark))
        });
        let new = files(&self.directories).into_iter().filter(|path| !self.files.contains(path));
        left.extend(named.chain(new).map(|path| format!("file {}", path.display())));
        left
    }
}

/// Kills a process, which may have ended.
pub fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn own_children() -> BTreeSet<u32> {
    children(std::process::id()).into_iter().collect()
}

/// Waits for those that have ended.
fn reap(pids: &[u32]) {
    for &pid in pids {
        let _ = waitpid(Pid::from_raw(pid.cast_signed()), WaitOptions::NOHANG);
    }
}

fn files(directories: &[PathBuf]) -> BTreeSet<PathBuf> {
    let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok());
    entries.flatten().flatten().map(|entry| entry.path()).collect()
}

fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ").chars().take(120).collect::<String>().trim().to_owned()
}

/// Where each thread of a process waits, to look into a hang.
pub fn threads(pid: u32) -> String {
    let mut text = format!("process {pid}: {}\n", command_line(pid));
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        text += &format!(
            "    {:?} {} in {}; syscall {}; stack {}\n",
            task.file_name(),
            read("comm").trim_end(),
            read("wchan"),
            read("syscall").trim_end(),
            read("stack").trim_end().replace('\n', " < ")
        );
    }
    text
}
