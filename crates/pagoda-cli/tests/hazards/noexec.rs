//! A preload library on a file system from which nothing may be executed.

use std::path::Path;
use std::process::Command;

use pagoda_linux::testing::skip::skip;

use crate::program::{output, said};

/// In a mount namespace of its own: `$1` becomes such a file system with the library `$2` in it,
/// and `pagoda` `$3` is to use that.
const SCRIPT: &str = "mount -t tmpfs -o noexec tmpfs \"$1\" && cp \"$2\" \"$1/library.so\" || exit 99
PAGODA_PRELOAD=\"$1/library.so\" exec \"$3\" run --memory 64M -- echo it ran";

#[test]
fn a_program_ran_without_a_library_that_could_not_be_mapped() {
    const TEST: &str = "a_program_ran_without_a_library";
    if let Err(why) = pagoda_linux::probe::can_run() {
        return skip(TEST, why);
    }
    let pagoda = Path::new(env!("CARGO_BIN_EXE_pagoda"));
    let library = pagoda.with_file_name("libpagoda_preload.so");
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]).args([directory.path(), &library, pagoda]);
    command.env_remove("LD_PRELOAD").env_remove("PAGODA_CONFIG");
    let ended = output(&mut command);
    if ended.status.code() == Some(99) || said(&ended).contains("unshare:") {
        return skip(TEST, "no file system can be mounted");
    }
    let said = said(&ended);
    assert_eq!(ended.status.code(), Some(125), "{said}");
    assert!(said.contains("noexec") && said.contains("PAGODA_PRELOAD"), "{said}");
    assert!(!said.contains("it ran"), "{said}");
}
