//! A member of the tree that gets rights of its own by exec is left alone, and runs as it does
//! natively.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use crate::support::suite;
use crate::support::tree::{self, Before};

/// The number of another user.
const USER: u32 = 65534;

pub fn run() -> Result<String, String> {
    if !suite::can_run("jit_rights") {
        return Ok(suite::SKIPPED.to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        if std::env::var_os("PAGODA_NO_SKIPS").is_some() {
            return Err("skipped: only root can give a file to another user".to_owned());
        }
        eprintln!("SKIPPED jit_rights: only root can give a file to another user");
        return Ok(suite::SKIPPED.to_owned());
    }
    let error = |error: std::io::Error| error.to_string();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(error)?;
    let program = directory.path().join("own-rights");
    fs::copy("/usr/bin/id", &program).map_err(error)?;
    chown(&program, Some(USER), Some(USER)).map_err(error)?;
    // Last, for a change of owner takes it away.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).map_err(error)?;
    let script = "for i in 1 2 3; do \"$0\" -u; \"$0\" -ru; done; exec \"$0\" -u";
    let words = ["sh", "-c", script];
    tree::adopt_orphans();
    let native = Command::new(words[0]).args(&words[1..]).arg(&program).output().map_err(error)?;
    let expected = format!("{USER}\n0\n").repeat(3) + &format!("{USER}\n");
    if String::from_utf8_lossy(&native.stdout) != expected {
        return Err(format!("natively it says {native:?}: its file system gives no rights"));
    }
    let before = Before::look(&[]);
    let managed = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["run", "--quiet", "--memory", "32M", "--"])
        .args(words)
        .arg(&program)
        .output()
        .map_err(error)?;
    let left = before.left(0);
    if managed.stdout != native.stdout || managed.status != native.status || !left.is_empty() {
        return Err(format!("{managed:?}, left behind {left:?}"));
    }
    Ok("as natively".to_owned())
}
