//! Core dumps of programs whose memory is mostly swapped out: they showed zeroes there.

use std::path::{Path, PathBuf};
use std::process::Output;

use pagoda_linux::testing::skip::skip;

use crate::memory_group;
use crate::program::{Program, output, said};

/// Runs a command that may dump core, of any length.
const UNLIMITED: [&str; 4] = ["sh", "-c", "ulimit -c unlimited && exec \"$@\"", "sh"];

/// Whether the kernel makes files of core dumps in the directory of their process, which this user
/// may ask for.
fn makes_files() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core).maximum;
    let makes = !pattern.trim().is_empty() && !pattern.starts_with(['|', '/']) && limit.is_none();
    if !makes {
        skip("core dumps", format!("core_pattern is {}, the limit {limit:?}", pattern.trim()));
    }
    makes
}

/// The core dump that a program made in its directory.
fn dump_in(directory: &Path) -> PathBuf {
    let entries = std::fs::read_dir(directory).expect("the directory").flatten();
    let mut dumps = entries.map(|entry| entry.path()).filter(|path| !path.ends_with("program"));
    dumps.next().expect("a core dump")
}

/// The bytes of a process from `address` on, as its core dump shows them: an ELF file of 64 bits
/// with a segment for each mapping.
fn bytes_of(dump: &[u8], address: u64, bytes: usize) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(dump[at..at + 8].try_into().expect("eight bytes"));
    let (headers, count) = (word(32) as usize, usize::from(u16::from_le_bytes([dump[56], dump[57]])));
    let mut found = Vec::with_capacity(bytes);
    for header in (0..count).map(|at| headers + 56 * at) {
        let (offset, start, len) = (word(header + 8), word(header + 16), word(header + 32));
        let next = address + found.len() as u64;
        let end = (start + len).min(address + bytes as u64);
        // The kernel lists them by address; the first kind is what is loaded.
        if dump[header] == 1 && start <= next && next < end {
            let from = (offset + next - start) as usize;
            found.extend_from_slice(&dump[from..from + (end - next) as usize]);
        }
    }
    found
}

/// The word that the program has written there.
fn expected(at: u64) -> u64 {
    if at.is_multiple_of(8) { at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1) } else { at / 512 + 1 }
}

fn assert_is_whole(run: &Output, dump: &Path) {
    let stdout = String::from_utf8_lossy(&run.stdout).into_owned();
    let (address, bytes) = stdout.trim().split_once(' ').expect("where its memory is");
    let address = u64::from_str_radix(address, 16).expect("an address");
    let bytes: usize = bytes.parse().expect("a number");
    let content = bytes_of(&std::fs::read(dump).expect("the core dump"), address, bytes);
    assert_eq!(content.len(), bytes, "of {dump:?}");
    let words = content.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let wrong = words.zip(0..).filter(|(word, at)| *word != expected(*at)).count();
    assert_eq!(wrong, 0, "wrong words of {}", bytes / 8);
}

#[test]
fn a_core_dump_showed_swapped_out_pages_as_zeroes() {
    if !makes_files() {
        return;
    }
    let ways = [("abort", 6), ("segv", 11), ("quit", 3), ("kill", 11), ("reset", 11)];
    for (way, signal) in ways {
        let Some(program) = Program::build("core_dump", &[]) else { return };
        let mut command = program.managed_by(&UNLIMITED, &["--core", "--memory", "32M"], &[way]);
        let run = output(command.current_dir(program.directory()));
        let says = said(&run);
        assert_eq!(run.status.code(), Some(128 + signal), "{way}: {says}");
        assert!(says.contains("core dumps: 1 whole, 0 without"), "{way}: {says}");
        assert_is_whole(&run, &dump_in(program.directory()));
    }
}

#[test]
fn without_room_a_core_dump_is_made_as_before_and_told() {
    if !makes_files() {
        return;
    }
    let Some(program) = Program::build("core_dump", &[]) else { return };
    let Some(group) = memory_group::group("core", 100) else { return };
    let mut command = program.managed_by(&UNLIMITED, &["--core", "--memory", "32M"], &["abort"]);
    let run = memory_group::run_in(&group, command.current_dir(program.directory()));
    assert_eq!(run.status.code(), Some(128 + 6), "{}", said(&run));
    assert!(said(&run).contains("core dumps: 0 whole, 1 without"), "{}", said(&run));
}

#[test]
fn a_limit_that_forbids_core_dumps_is_told_before() {
    let Some(program) = Program::build("core_dump", &[]) else { return };
    if std::fs::read("/proc/sys/kernel/core_pattern").is_ok_and(|text| text.starts_with(b"|")) {
        return skip("the limit of core dumps", "they go to a program");
    }
    let by = ["sh", "-c", "ulimit -c 0 && exec \"$@\"", "sh"];
    let run = output(&mut program.managed_by(&by, &["--core", "--memory", "32M"], &["abort"]));
    assert_eq!(run.status.code(), Some(125), "{}", said(&run));
    assert!(said(&run).contains("ulimit -c unlimited"), "{}", said(&run));
}
