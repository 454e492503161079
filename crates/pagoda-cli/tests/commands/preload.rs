//! The effect of the preload library on its program: nothing more to load than the C library, and
//! no frame on the stacks that its threads unwind.

use std::path::{Path, PathBuf};
use std::process::Command;

use pagoda_linux::testing::unwound;

fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_pagoda")).with_file_name("libpagoda_preload.so")
}

#[test]
fn it_needs_nothing_but_the_c_library() {
    // As ldd(1) does it: the dynamic linker lists the libraries that it would load.
    let told = Command::new("/bin/true")
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env("LD_PRELOAD", library())
        .output()
        .expect("true runs");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let names: Vec<&str> = told.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.iter().any(|name| name.ends_with("libpagoda_preload.so")), "{told}");
    let is_known = |name: &&str| {
        ["libpagoda_preload.so", "libc.so.6"].iter().any(|known| name.ends_with(known))
            || name.contains("ld-linux")
            || name.contains("vdso")
    };
    assert!(names.iter().all(is_known), "{told}");
}

const ROLE: &str = "PAGODA_TEST_PRELOAD";

#[test]
fn threads_that_are_unwound_end_as_they_should() {
    if std::env::var_os(ROLE).is_some() {
        assert!((0..50).all(|_| unwound::threads_end_as_they_should()));
        return;
    }
    let ended = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["run", "--quiet", "--best-effort", "--memory", "64M", "--"])
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "preload::threads_that_are_unwound_end_as_they_should"])
        .env(ROLE, "1")
        .output()
        .expect("pagoda runs");
    assert!(ended.status.success(), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
}
