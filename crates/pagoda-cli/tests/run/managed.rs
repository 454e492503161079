//! The manners of a program with an engine in it, as `manners.rs` and `signals.rs` check them of
//! programs without one.
//!
//! The program is a script that grows beyond its budget first, continues when its engine serves it,
//! and checks all its writes in the end.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pagoda_linux::testing::signals::default_for;
use rustix::process::Signal;

use crate::signals::{Running, line, started};
use crate::terminal::Terminal;
use crate::{output, skip, text};

/// Content that nothing repeats in, more than the budget; then, in a managed run, a handler is
/// awaited.
const GROW: &str = r#"
$| = 1;
my $block = pack 'L*', map { int rand 2**32 } 1 .. 1 << 18;
my @held = map { $block ^ (chr($_) x length $block) } 1 .. 48;
sub served {
    opendir my $tasks, '/proc/self/task' or die;
    for (readdir $tasks) {
        open my $comm, '<', "/proc/self/task/$_/comm" or next;
        return 1 if <$comm> =~ /^pagoda-handler/;
    }
    return 0;
}
if ($ENV{MANAGED}) {
    for (1 .. 3000) { last if served(); select undef, undef, undef, 0.01 }
    die "no engine came" unless served();
}
sub whole { for (1 .. 48) { die "block $_ is wrong" if $held[$_ - 1] ne ($block ^ (chr($_) x length $block)) } }
"#;

/// `script` after it has grown, by itself.
fn native(script: &str) -> Command {
    let mut command = Command::new("perl");
    command.args(["-e", &format!("{GROW}{script}")]).env_remove("LD_PRELOAD");
    command
}

/// The same in less memory than it takes. None where nothing is managed.
fn managed(options: &[&str], script: &str) -> Option<Command> {
    let mut command = managed_program(options, &["perl", "-e", &format!("{GROW}{script}")])?;
    command.env("MANAGED", "1");
    Some(command)
}

fn managed_program(options: &[&str], program: &[&str]) -> Option<Command> {
    pagoda_linux::probe::can_run().map_err(skip).ok()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    default_for(&mut command).args(["run", "--memory", "32M"]).args(options);
    command.arg("--").args(program).env_remove("PAGODA_PRELOAD").env_remove("LD_PRELOAD");
    Some(command)
}

#[test]
fn standard_input_output_error_and_status_are_the_managed_programs() {
    let Some(mut command) =
        managed(&["--quiet"], "print uc while <STDIN>; whole(); warn \"aside\\n\"; exit 7")
    else {
        return;
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pagoda starts");
    child.stdin.take().expect("piped").write_all(b"passed through\nand on\n").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(text(&output.stdout), "PASSED THROUGH\nAND ON\n");
    assert_eq!((text(&output.stderr).as_str(), output.status.code()), ("aside\n", Some(7)));
}

#[test]
fn without_options_the_engine_keeps_the_budget_where_it_gets_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let stats = directory.path().join("stats.json");
    let options = ["--quiet", "--stats", stats.to_str().expect("a name")];
    let Some(mut command) = managed(&options, "whole(); exit 3") else { return };
    let output = output(&mut command);
    assert_eq!((text(&output.stderr).as_str(), output.status.code()), ("", Some(3)));
    let stats: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&stats).expect("written")).expect("JSON");
    assert_eq!((&stats["backend"], &stats["status"]), (&"engine".into(), &"managed".into()), "{stats}");
}

#[test]
fn a_managed_program_that_a_signal_ends_says_so_and_has_the_table_of_its_engine() {
    for (signal, number) in [("TERM", 15), ("KILL", 9), ("INT", 2), ("SEGV", 11)] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("stats.json");
        let options = ["--stats", path.to_str().expect("a name")];
        let Some(mut command) = managed(&options, &format!("whole(); kill {signal} => $$; sleep 60")) else {
            return;
        };
        let output = output(&mut command);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(128 + number), "{error}");
        assert!(error.contains(&format!("perl, ended by signal {number}")), "{error}");
        assert!(error.contains("\n  evictions ") && error.contains("\n  native peak "), "{error}");
        let stats: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        assert_eq!((&stats["status"], &stats["signal"]), (&"managed".into(), &number.into()));
        let counters = &stats["counters"];
        assert!(counters["evictions"].as_u64().is_some_and(|count| count > 0), "{counters}");
        assert!(counters["held_peak_bytes"].as_u64().is_some_and(|bytes| bytes > 48 << 20), "{counters}");
    }
}

#[test]
fn a_managed_program_has_the_signals_and_descriptors_that_it_would_have() {
    let show =
        "open my $status, '<', '/proc/self/status'; print grep /^Sig(Blk|Ign|Cgt)/, <$status>; close $status;
        opendir my $fds, '/proc/self/fd'; my @fds = readdir $fds; print scalar(@fds), \"\\n\"; whole();";
    for trap in ["", "trap '' PIPE;", "trap '' CHLD USR1 TERM;"] {
        let Some(managed) = managed(&["--quiet"], show) else { return };
        let shell = |through: &Command| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{trap} exec \"$@\""), "sh"]).arg(through.get_program());
            command.args(through.get_args());
            for (name, value) in through.get_envs() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            text(&output(&mut command).stdout)
        };
        let native = shell(&native(show));
        assert!(native.contains("SigIgn") && native.lines().count() == 4, "{native}");
        assert_eq!(without_mark(&shell(&managed)), without_mark(&native), "{trap}");
    }
}

/// The lines of `/proc/PID/status` without signal 32: the C library's own, whose handler marks a
/// managed program.
fn without_mark(lines: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (name, mask) = line.split_once('\t').unwrap_or(("", line));
        let mask = u64::from_str_radix(mask, 16).expect("a number in base 16");
        (name.to_owned(), if name.is_empty() { mask } else { mask & !(1 << 31) })
    };
    lines.lines().map(line).collect()
}

#[test]
fn a_signal_to_pagoda_reaches_a_managed_program_and_one_to_its_group_comes_once() {
    let names = ["TERM", "HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "ALRM"];
    let signals = [
        Signal::TERM,
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
        Signal::WINCH,
        Signal::ALARM,
    ];
    let script = format!(
        "for my $name (qw({})) {{ $SIG{{$name}} = sub {{ whole(); print \"got $name\\n\" }} }}
         print \"$$\\n\"; my $end = 0; $SIG{{CONT}} = sub {{ $end = 1 }};
         select undef, undef, undef, 0.01 until $end;
         kill USR1 => 0; select undef, undef, undef, 0.3; whole(); exit 3",
        names.join(" ")
    );
    let Some(command) = managed(&["--quiet"], &script) else { return };
    let mut running = started(command);
    for (signal, name) in signals.into_iter().zip(names) {
        running.to_pagoda(signal);
        assert_eq!(line(&mut running.says), format!("got {name}"));
    }
    running.to_program(Signal::CONT);
    assert_eq!(running.end(), ("got USR1\n".to_owned(), Some(3)));
}

#[test]
fn a_managed_program_is_stopped_and_continued_with_pagoda() {
    let script = "print \"$$\\n\"; print while <STDIN>; whole(); exit 5";
    let Some(command) = managed(&["--quiet"], script) else { return };
    let running = started(command);
    running.stops_and_continues_by_group();
    assert_eq!(running.end().1, Some(5));
}

/// Two threads that fault inside system calls nearly all the time. Such a fault is served before
/// its thread stops, by an engine that may have stopped by then.
const WRITERS: &str = "
import os, sys, threading
held = [os.urandom(1 << 20) for _ in range(64)]
def write():
    file = os.memfd_create('content')
    while True:
        for block in held: os.pwrite(file, block, 0)
for _ in range(2): threading.Thread(target=write, daemon=True).start()
print(os.getpid(), flush=True)
sys.stdin.read()
os._exit(5)
";

#[test]
fn a_stop_that_is_never_complete_stops_pagoda_too() {
    if let Err(error) = Command::new("python3").arg("--version").output() {
        return skip(format!("python3: {error}"));
    }
    let Some(command) = managed_program(&["--quiet"], &["python3", "-c", WRITERS]) else { return };
    let running = started(command);
    running.stops_and_continues_by_group();
    assert_eq!(running.end().1, Some(5));
}

#[test]
fn keys_of_a_terminal_reach_a_managed_program_once() {
    let terminal = match Terminal::open() {
        Ok(terminal) => terminal,
        Err(error) => return pagoda_linux::testing::skip::skip("the keys of a terminal", error),
    };
    let script =
        "$SIG{INT} = sub { print \"got INT\\n\"; whole(); exit 7 }; print \"ready\\n\"; sleep 1 while 1";
    let Some(mut command) = managed(&["--quiet"], script) else { return };
    let mut user = terminal.give_to(&mut command).expect("a terminal");
    let mut pagoda = command.spawn().expect("pagoda starts");
    drop(command);
    let mut says = BufReader::new(user.try_clone().expect("another descriptor"));
    assert_eq!(line(&mut says), "ready");
    user.write_all(b"\x03").expect("written");
    let mut rest = Vec::new();
    let _ = says.read_to_end(&mut rest);
    let rest = text(&rest);
    assert_eq!(
        (rest.matches("got INT").count(), pagoda.wait().expect("it ends").code()),
        (1, Some(7)),
        "{rest}"
    );
}

#[test]
fn a_managed_program_stays_in_the_process_group() {
    let Some(mut command) = managed(&["--quiet"], "whole(); print getpgrp(), \"\\n\"") else { return };
    let child = command.process_group(0).stdout(Stdio::piped()).spawn().expect("pagoda starts");
    let group = child.id();
    let said = text(&child.wait_with_output().expect("it ends").stdout);
    assert_eq!(said, format!("{group}\n"));
}

/// Starts a managed program in `runtime` that has an engine, says its number, and when it is told
/// runs another and says so.
fn in_runtime(runtime: &Path) -> Option<Running> {
    let rest =
        "print \"$$\\n\"; <STDIN>; system 'cat', '/dev/null'; print \"ran\\n\"; <STDIN>; whole(); exit 0";
    let mut command = managed(&["--quiet"], rest)?;
    command.env("XDG_RUNTIME_DIR", runtime);
    Some(started(command))
}

/// The tree file and the socket of its custodian.
const BOTH: usize = 2;

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).expect("read").count()
}

#[test]
fn the_tree_file_of_a_killed_pagoda_goes_with_the_program() {
    let runtime = tempfile::tempdir().expect("a directory");
    let Some(mut running) = in_runtime(runtime.path()) else { return };
    let mut input = running.pagoda.stdin.take().expect("piped");
    running.to_pagoda(Signal::KILL);
    running.pagoda.wait().expect("it ends");
    writeln!(input, "go on").expect("written");
    assert_eq!(line(&mut running.says), "ran");
    assert_eq!(files(runtime.path()), BOTH, "later children of the program have to find it");
    drop(input);
    running.wait_for("the program ends", running.program, |state| matches!(state, '-' | 'Z'));
    assert_eq!(files(runtime.path()), 0);
}

#[test]
fn the_tree_file_of_a_pagoda_that_lives_is_left_to_it() {
    let runtime = tempfile::tempdir().expect("a directory");
    let Some(mut running) = in_runtime(runtime.path()) else { return };
    running.to_pagoda(Signal::STOP);
    drop(running.pagoda.stdin.take());
    running.wait_for("the program ends", running.program, |state| state == 'Z');
    assert_eq!(files(runtime.path()), BOTH, "it is still to be read");
    running.to_pagoda(Signal::CONT);
    assert_eq!(running.end().1, Some(0));
    assert_eq!(files(runtime.path()), 0);
}

/// The thread that watches a child begins on its processor, and may run where the child may.
#[test]
fn a_child_and_its_watcher_may_run_where_their_maker_may() {
    let script = r#"
        my $look = 'grep -h Cpus_allowed: /proc/self/status; '
            . 'for i in 1 2 3 4 5 6 7 8 9; do for j in 1 2 3 4 5 6 7 8 9 0; do sleep 0.1; '
            . 'all=$(grep -h Cpus_allowed: /proc/$$/task/*/status); '
            . 'test $(echo "$all" | wc -l) -ge 2 && test $(echo "$all" | sort -u | wc -l) = 1 '
            . '&& echo "$all" | head -1 && exit; done; done';
        open my $child, '-|', 'sh', '-c', $look or die;
        print <$child>;
        whole();
    "#;
    let Some(mut command) = managed(&["--quiet"], script) else { return };
    let own = fs::read_to_string("/proc/thread-self/status").expect("/proc");
    let own = own.lines().find(|line| line.starts_with("Cpus_allowed:")).expect("a line");
    let shown = output(&mut command);
    assert_eq!(text(&shown.stdout), format!("{own}\n{own}\n"), "{}", text(&shown.stderr));
}
