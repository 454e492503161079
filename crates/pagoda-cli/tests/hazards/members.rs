//! The processes of a managed tree, found from outside by their executables.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// A process that runs the program.
#[derive(Clone, Copy)]
pub struct Member {
    pub id: i32,
    pub parent: i32,
}

/// All of them, the youngest last.
pub fn members(program: &Path) -> Vec<Member> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let mut members: Vec<Member> = processes
        .filter_map(|process| {
            let id = process.file_name().to_str()?.parse().ok()?;
            (fs::read_link(process.path().join("exe")).ok()? == program).then_some(())?;
            let stat = fs::read_to_string(process.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            Some(Member { id, parent })
        })
        .collect();
    members.sort_by_key(|member| member.id);
    members
}

/// Sends a signal to one.
pub fn send(id: i32, signal: Signal) {
    // One that has ended by itself needs none.
    let _ = Pid::from_raw(id).map(|id| kill_process(id, signal));
}
