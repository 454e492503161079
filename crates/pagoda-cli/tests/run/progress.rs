//! The line of `--progress`: on a terminal, gone at the end, and nowhere else.

use std::io::Read;
use std::process::{Command, Stdio};

use pagoda_linux::testing::skip::skip;

use crate::terminal::Terminal;

/// What a run of a sleeping program writes to its terminal, which is its standard output as well
/// if `is_shared`. None where no program can be managed.
fn written(options: &[&str], is_shared: bool) -> Option<String> {
    if let Err(missing) = pagoda_linux::probe::can_run() {
        skip("a line of progress", missing);
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["run", "--memory", "64M"]).args(options).args(["--", "sleep", "1.5"]);
    let terminal = match Terminal::open() {
        Ok(terminal) => terminal,
        Err(error) => {
            skip("a line of progress", error);
            return None;
        }
    };
    let mut user = terminal.give_to(&mut command).expect("given");
    if !is_shared {
        command.stdout(Stdio::null());
    }
    let mut run = command.spawn().expect("pagoda starts");
    // The command has the program's end of the terminal open as well.
    drop(command);
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    // The terminal's end is an error to its reader.
    while let Ok(count @ 1..) = user.read(&mut piece) {
        bytes.extend_from_slice(&piece[..count]);
    }
    assert!(run.wait().expect("it ends").success());
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[test]
fn a_line_is_drawn_by_default_where_the_output_goes_elsewhere_and_is_gone_at_the_end() {
    let Some(written) = written(&[], false) else { return };
    assert!(written.contains("of 64 MiB resident, 0 B stored, 0 faults/s, 0:0"), "{written:?}");
    let mut screen = vt100::Parser::new(24, 120, 0);
    screen.process(written.as_bytes());
    let seen = screen.screen().contents();
    assert!(seen.starts_with("pagoda: sleep, exit status 0") && !seen.contains("faults/s"), "{seen}");
}

#[test]
fn the_programs_own_terminal_has_the_line_only_if_that_is_asked_for() {
    for (options, is_shared, is_drawn) in [
        (&[][..], true, false),
        (&["--progress"][..], true, true),
        (&["--progress=never"][..], false, false),
        (&["--quiet"][..], false, false),
    ] {
        let Some(written) = written(options, is_shared) else { return };
        assert_eq!(written.contains("faults/s"), is_drawn, "{options:?}: {written:?}");
    }
}
