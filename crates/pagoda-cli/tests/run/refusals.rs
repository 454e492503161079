//! The refusals of `pagoda run`: with one clear line, and a status between 125 and 127, before
//! anything has run.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{executable, output, pagoda, set_mode, skip, static_program, text, unmanaged};

/// Checks that the command ends with this status and says this in its one line.
fn refused(command: &mut Command, status: i32, says: &[&str]) {
    let output = output(command.stdin(Stdio::null()));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{error}");
    assert!(error.starts_with("pagoda: ") && error.lines().count() == 1, "{error}");
    for word in says {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert_eq!(text(&output.stdout), "");
}

fn bare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(arguments);
    command
}

#[test]
fn sizes_that_do_not_parse() {
    for size in ["", "M", "12X", "1.5", "-1", "99999999T"] {
        refused(&mut bare(&["run", "--memory", size, "--", "echo", "ran"]), 125, &["--memory"]);
    }
    // A fraction of a unit is a size: this one is below the least budget.
    refused(&mut bare(&["run", "-m", "31.5M", "--", "echo", "ran"]), 125, &["--memory 31.5 MiB", "32 MiB"]);
    refused(&mut bare(&["run", "-m", "12X", "--", "echo", "ran"]), 125, &["12X", "like 512M"]);
    refused(
        &mut bare(&["run", "-m", "64M", "--base-page", "32K", "--", "echo", "ran"]),
        125,
        &["4K, 16K, 64K or 2M"],
    );
    refused(
        &mut bare(&["run", "-m", "64M", "--file-limit", "lots", "--", "echo", "ran"]),
        125,
        &["--file-limit"],
    );
}

#[test]
fn arguments_that_are_missing_or_unknown() {
    refused(&mut bare(&["run", "--", "echo", "ran"]), 125, &["--memory"]);
    refused(&mut bare(&["run", "-m", "64M"]), 125, &["PROGRAM"]);
    refused(&mut bare(&["run", "-m", "64M", "--colour", "--", "echo", "ran"]), 125, &["--colour"]);
    refused(
        &mut bare(&["run", "-m", "64M", "--explian", "--", "echo", "ran"]),
        125,
        &["did you mean `--explain`?"],
    );
    refused(&mut bare(&["run", "--explain", "--", "echo", "ran"]), 125, &["--memory"]);
}

#[test]
fn a_command_that_is_mistyped_or_left_out() {
    refused(
        &mut bare(&["rnu", "-m", "64M", "echo"]),
        125,
        &["'rnu'", "did you mean `run`?", "`pagoda --help`"],
    );
    refused(&mut bare(&["sort", "-r"]), 125, &["pagoda run --memory SIZE -- sort"]);
    refused(&mut bare(&["no-such-program"]), 125, &["'no-such-program'", "`pagoda --help`"]);
}

#[test]
fn a_budget_below_the_engines_least() {
    for options in [&["run", "-m", "31M"][..], &["run", "-m", "0", "--best-effort"]] {
        refused(bare(options).args(["--", "echo", "ran"]), 125, &["32 MiB"]);
    }
}

#[test]
fn programs_that_are_not_there() {
    refused(&mut unmanaged(&["no-such-program-anywhere"]), 127, &["no-such-program-anywhere", "PATH"]);
    refused(&mut unmanaged(&["/nonexistent/program"]), 127, &["/nonexistent/program"]);
    refused(&mut unmanaged(&["/etc/passwd/program"]), 127, &["/etc/passwd/program"]);
    refused(&mut unmanaged(&[""]), 127, &["empty"]);
    let directory = tempfile::tempdir().expect("a directory");
    executable(directory.path(), "program", b"#!/bin/sh\necho ran\n");
    refused(unmanaged(&["program"]).current_dir(directory.path()), 127, &["name it ./program"]);
}

#[test]
fn names_that_are_the_shells_say_how_to_have_a_shell_do_it() {
    refused(&mut unmanaged(&["cd", "/"]), 127, &["cd is a command of the shell's own", "sh -c 'cd …'"]);
    refused(&mut unmanaged(&["sort /etc/passwd | head"]), 127, &["sh -c 'sort /etc/passwd | head'"]);
    refused(&mut unmanaged(&["/bin/echo a"]), 127, &["command line for a shell"]);
    refused(&mut unmanaged(&["A=1", "echo", "ran"]), 127, &["-- env A=1 PROGRAM"]);
}

#[test]
fn programs_that_can_not_be_executed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("program");
    fs::write(&path, "#!/bin/sh\necho ran\n").expect("written");
    refused(&mut unmanaged(&[path.to_str().expect("a name")]), 126, &["can't be executed"]);
    refused(unmanaged(&["program"]).env("PATH", directory.path()), 126, &["can't be executed"]);
    refused(&mut unmanaged(&["/etc"]), 126, &["/etc is a directory, not a program"]);
    fs::create_dir(directory.path().join("folder")).expect("made");
    refused(unmanaged(&["folder"]).env("PATH", directory.path()), 126, &["folder is a directory"]);
}

#[test]
fn a_script_whose_interpreter_is_not_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = executable(directory.path(), "script", b"#!/nonexistent/interpreter\n");
    refused(&mut unmanaged(&[&script]), 127, &["interpreter"]);
}

/// Returns 42.
#[cfg(target_arch = "x86_64")]
const STATIC: &[u8] = &[0xbf, 42, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
#[cfg(target_arch = "aarch64")]
const STATIC: &[u8] = &[0x40, 5, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4];

#[test]
fn static_programs_also_behind_a_script() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = executable(directory.path(), "static", &static_program::of(STATIC));
    refused(&mut pagoda(&[], &[&program]), 125, &[&program, "static"]);
    let script = executable(directory.path(), "script", format!("#!{program} -x\n").as_bytes());
    refused(&mut pagoda(&[], &[&script]), 125, &[&program, "static"]);
    let output = output(&mut unmanaged(&[&script]));
    assert_eq!(output.status.code(), Some(42));
    assert!(text(&output.stderr).contains("NOT ENFORCED") && text(&output.stderr).contains("static"));
}

#[test]
fn programs_with_rights_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let shell = fs::read("/bin/sh").expect("read");
    let program = executable(directory.path(), "program", &shell);
    for (mode, says) in [(0o4755, "setuid"), (0o2755, "setgid")] {
        set_mode(Path::new(&program), mode);
        refused(&mut pagoda(&[], &[&program, "-c", "echo ran"]), 125, &[&program, says]);
    }
    set_mode(Path::new(&program), 0o755);
    let given = Command::new("setcap").args(["cap_net_raw+ep", &program]).stderr(Stdio::null()).status();
    if !given.is_ok_and(|status| status.success()) {
        return pagoda_linux::testing::skip::skip("a program with capabilities", "setcap gives none here");
    }
    refused(&mut pagoda(&[], &[&program, "-c", "echo ran"]), 125, &[&program, "capabilities"]);
}

#[test]
fn programs_for_another_machine() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut content = fs::read("/bin/sh").expect("read");
    content[18] ^= 0xff;
    let program = executable(directory.path(), "program", &content);
    refused(&mut pagoda(&[], &[&program]), 125, &[&program, "another machine"]);
}

#[test]
fn a_preload_library_that_is_not_there_says_where_it_was_looked_for() {
    if let Err(missing) = pagoda_linux::probe::can_run() {
        return skip(missing);
    }
    refused(&mut pagoda(&[], &["echo", "ran"]), 125, &["/nonexistent/preload.so", "PAGODA_PRELOAD"]);
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("bin")).expect("made");
    let own = fs::read(env!("CARGO_BIN_EXE_pagoda")).expect("read");
    let mut command = Command::new(executable(directory.path(), "bin/pagoda", &own));
    let says = ["bin/libpagoda_preload.so", "/lib/libpagoda_preload.so", "/lib/pagoda/libpagoda_preload.so"];
    refused(command.args(["run", "-m", "64M", "echo", "ran"]).env_remove("PAGODA_PRELOAD"), 125, &says);
}

#[test]
fn a_stats_file_that_can_not_be_written() {
    let options = ["--best-effort", "--stats", "/nonexistent/stats.json"];
    refused(&mut pagoda(&options, &["echo", "ran"]), 125, &["/nonexistent/stats.json"]);
}
