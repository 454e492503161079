//! Programs that a compiler's sanitizer is built into (-fsanitize=…): each works as without
//! Pagoda, or is refused before its `main` runs, with a line that says what to do.

use std::process::Command;

use pagoda_linux::testing::length::length;
use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

/// The program does its work here; a refused one never says so.
const WORK: &str = "the program has run";

/// Flags of the C compiler for a sanitizer, with its runtime as a library and built in.
const REFUSED: [&[&str]; 4] = [
    &["-fsanitize=address"],
    &["-fsanitize=address", "-static-libasan"],
    &["-fsanitize=thread"],
    &["-fsanitize=thread", "-static-libtsan"],
];

/// Builds it, unless its compiler has no such sanitizer, and returns it if it runs by itself.
fn build(flags: &[&str]) -> Option<Program> {
    let mut probe = Command::new("cc");
    if !compiles(probe.args(flags).args(["-x", "c", "-o", "/dev/null", "-"])) {
        skip("a sanitizer", format!("the compiler has none for {flags:?}"));
        return None;
    }
    let program = Program::build("sanitizers", flags)?;
    let native = output(&mut program.native(&[]));
    if native.status.code() != Some(7) {
        skip("a sanitizer", format!("{flags:?} does not work here: {}", said(&native)));
        return None;
    }
    Some(program)
}

fn compiles(command: &mut Command) -> bool {
    use std::io::Write;
    use std::process::Stdio;
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("a C compiler");
    child.stdin.take().expect("its input").write_all(b"int main(void) { return 0; }").expect("written");
    child.wait().expect("it ends").success()
}

#[test]
fn a_program_with_shadow_memory_was_ended_for_a_wrong_reason_or_hung() {
    for flags in REFUSED {
        let Some(program) = build(flags) else { continue };
        let refused = output(&mut program.managed(&["--quiet", "--memory", "64M"], &[]));
        let words = said(&refused);
        assert_eq!(refused.status.code(), Some(125), "{flags:?}: {words}");
        assert!(!words.contains(WORK), "{flags:?}: {words}");
        assert!(words.contains("without -fsanitize=address") && words.contains("--best-effort"), "{words}");

        let unmanaged = ["--quiet", "--best-effort", "--memory", "64M"];
        let unmanaged = output(&mut program.managed(&unmanaged, &[]));
        let words = said(&unmanaged);
        assert_eq!(unmanaged.status.code(), Some(7), "{flags:?}: {words}");
        assert!(words.contains(WORK) && words.contains("NOT ENFORCED"), "{flags:?}: {words}");
    }
}

#[test]
fn a_child_with_shadow_memory_did_not_run_as_without_pagoda() {
    let Some(parent) = Program::build("execute", &[]) else { return };
    // Each sanitizer, and each way to have its runtime.
    for flags in length(&[REFUSED[0], REFUSED[3]][..], &REFUSED) {
        let Some(program) = build(flags) else { continue };
        let path = program.path();
        let child = [path.to_str().expect("a path")];
        let managed = output(&mut parent.managed(&["--memory", "64M"], &child));
        let words = said(&managed);
        assert_eq!(managed.status.code(), Some(7), "{flags:?}: {words}");
        assert!(words.contains(WORK), "{flags:?}: {words}");
        assert!(words.lines().any(|line| line.trim_start().starts_with("children")), "{words}");
    }
}

#[test]
fn other_sanitizers_work_over_budget() {
    for flags in
        [&["-fsanitize=undefined"][..], &["-fsanitize=undefined", "-static-libubsan"], &["-fsanitize=leak"]]
    {
        let Some(program) = build(flags) else { continue };
        program.ends_alike("64M", &[]);
        // A fault of the program's own is reported in both.
        let native = output(&mut program.native(&["overflow"]));
        let managed = output(&mut program.managed(&["--quiet", "--memory", "64M"], &["overflow"]));
        assert_eq!(managed.status.code(), native.status.code(), "{flags:?}: {}", said(&managed));
        let reports = |words: String| words.contains("runtime error: signed integer overflow");
        assert_eq!(reports(said(&managed)), reports(said(&native)), "{flags:?}: {}", said(&managed));
    }
}
