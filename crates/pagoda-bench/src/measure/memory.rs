//! The memory of the processes below this one by the kernel's own count, for peaks of whole trees.
//! Reads, never sets.

use std::fmt::Display;
use std::fs;

/// Anonymous memory of all descendants but `pagoda run` itself, in bytes. Shared pages count once.
pub fn descendants_bytes() -> u64 {
    bytes_below(std::process::id())
}

/// The same of another process.
fn bytes_below(pid: u32) -> u64 {
    let mut all = children(pid);
    let mut next = 0;
    let mut bytes = 0;
    while let Some(&pid) = all.get(next) {
        all.extend(children(pid));
        next += 1;
        if fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm != "pagoda\n") {
            bytes += anonymous_bytes(pid).unwrap_or(0);
        }
    }
    bytes
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = |list: String| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>();
    lists.flat_map(pids).collect()
}

/// Anonymous memory of a process. Walks page tables only where sharing can make a difference.
fn anonymous_bytes(pid: u32) -> Option<u64> {
    let resident = status_bytes(pid, "RssAnon:")?;
    let shared = (resident > 1 << 20).then(|| bytes_of(&format!("/proc/{pid}/smaps_rollup"), "Pss_Anon:"));
    Some(shared.flatten().unwrap_or(resident))
}

/// A size in the status of a process. `process` is a number or `self`.
pub fn status_bytes(process: impl Display, name: &str) -> Option<u64> {
    bytes_of(&format!("/proc/{process}/status"), name)
}

/// A size that the kernel gives in KiB, by its name with the colon.
pub fn bytes_of(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_and_its_child_are_counted() {
        // Other tests have children, too: only those below a shell of its own count.
        let script = "sh -c 'a=$(head -c 3000000 /dev/zero | tr \"\\0\" x); (read -r b; : $b); : $a'; :";
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().expect("sh");
        let mut most = 0;
        for _ in 0..3000 {
            most = most.max(bytes_below(child.id()));
            if most > 3 << 20 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(most > 2 << 20, "{most}");
    }
}
