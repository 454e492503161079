//! Symbols of the C library that a program or another preloaded library defines anew, and loaders
//! of other C libraries.

use std::path::Path;
use std::process::Command;

use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

/// The compiler makes calls of these functions out of their own loops otherwise.
const PLAIN_LOOPS: [&str; 2] = ["-fno-builtin", "-fno-tree-loop-distribute-patterns"];

#[test]
fn a_programs_own_definitions_are_called_by_no_thread_of_the_engine() {
    let flags = [PLAIN_LOOPS.as_slice(), &["-rdynamic"]].concat();
    let Some(program) = Program::build("own_symbols", &flags) else { return };
    program.ends_alike("48M", &[]);
}

#[test]
fn definitions_of_another_preloaded_library_are_called_by_no_thread_of_the_engine() {
    let Some(program) = Program::build("own_symbols", &["-DPLAIN"]) else { return };
    let flags = [PLAIN_LOOPS.as_slice(), &["-DLIBRARY", "-shared", "-fPIC"]].concat();
    let Some(library) = Program::build("own_symbols", &flags) else { return };
    let native = output(program.native(&[]).env("LD_PRELOAD", library.path()));
    let managed = output(program.managed(&["-q", "--memory", "48M"], &[]).env("LD_PRELOAD", library.path()));
    assert_eq!(managed.status.code(), native.status.code(), "{}{}", said(&managed), said(&native));
    assert_eq!(native.status.code(), Some(5), "{}", said(&native));
}

/// Whether a program is on PATH; if not, says that the test is skipped.
fn has(test: &str, program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        skip(test, format!("{program} is not installed"));
    }
    is_there
}

/// A program of musl that ends with status 7.
fn musl_program(directory: &Path) -> std::path::PathBuf {
    let (source, program) = (directory.join("hello.c"), directory.join("hello"));
    let text = "#include <stdio.h>\n#include <pthread.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
        static void *say(void *text) { puts(text); return text; }\n\
        int main(void) { pthread_t t; int status; if (pthread_create(&t, 0, say, \"hello\") || pthread_join(t, 0)) return 1;\n\
        pthread_mutex_t m; pthread_mutex_init(&m, 0); pthread_mutex_destroy(&m); fflush(stdout);\n\
        if (fork() == 0) _exit(3); wait(&status); return WEXITSTATUS(status) == 3 ? 7 : 2; }\n";
    std::fs::write(&source, text).expect("written");
    let built = Command::new("musl-gcc").arg("-pthread").args([&source, Path::new("-o"), &program]).output();
    let built = built.expect("musl-gcc");
    assert!(built.status.success(), "{}", said(&built));
    program
}

#[test]
fn a_child_of_another_c_library_runs_as_without_pagoda() {
    const TEST: &str = "a_child_of_another_c_library";
    if !has(TEST, "musl-gcc") {
        return;
    }
    let Some(program) = Program::build("execute", &[]) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let hello = musl_program(directory.path());
    let arguments = [hello.to_str().expect("a path")];
    let managed = output(&mut program.managed(&["--quiet", "--memory", "64M"], &arguments));
    assert_eq!(managed.status.code(), Some(7), "{}", said(&managed));
    assert_eq!(String::from_utf8_lossy(&managed.stdout), "hello\n", "{}", said(&managed));
}

#[test]
fn a_program_below_valgrind_runs_as_without_pagoda() {
    const TEST: &str = "a_program_below_valgrind";
    if !has(TEST, "valgrind") {
        return;
    }
    let Some(plain) = Program::build("own_symbols", &["-DPLAIN"]) else { return };
    let Some(program) = Program::build("execute", &[]) else { return };
    let path = plain.path();
    let arguments = ["valgrind", "-q", path.to_str().expect("a path")];
    let managed = output(&mut program.managed(&["--quiet", "--memory", "400M"], &arguments));
    assert_eq!(managed.status.code(), Some(5), "{}", said(&managed));
}
