//! What the preload library is to a program that it is loaded into: nothing more to load than the C library, and no frame on the stacks that
//! its threads unwind.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_pagoda")).with_file_name("libpagoda_preload.so")
}

#[test]
fn it_needs_nothing_but_the_c_library() {
    // As ldd(1) does it: the dynamic linker tells what it would load.
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

extern "C-unwind" fn leaves(_: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the calling thread is one that pthread_create made, and has nothing to drop.
    unsafe { libc::pthread_exit(std::ptr::without_provenance_mut(7)) }
}

extern "C-unwind" fn waits(_: *mut libc::c_void) -> *mut libc::c_void {
    loop {
        // SAFETY: it only waits, and is where the thread is cancelled.
        unsafe { libc::pause() };
    }
}

type Body = extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void;

/// What a thread that runs `body` ends with.
fn end_of(body: Body, cancel: bool) -> *mut libc::c_void {
    let (mut thread, mut end) = (0, std::ptr::null_mut());
    // SAFETY: the C library calls `body` as the C function it is, and unwinds it where that is its end, which it may be. All else is a
    // thread of our own that is joined once.
    unsafe {
        let body = std::mem::transmute::<Body, extern "C" fn(*mut libc::c_void) -> *mut libc::c_void>(body);
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), body, std::ptr::null_mut()), 0);
        assert!(!cancel || libc::pthread_cancel(thread) == 0);
        assert_eq!(libc::pthread_join(thread, &raw mut end), 0);
    }
    end
}

const ROLE: &str = "PAGODA_TEST_PRELOAD";

#[test]
fn threads_that_are_unwound_end_as_they_should() {
    if std::env::var_os(ROLE).is_some() {
        for _ in 0..50 {
            assert_eq!(end_of(leaves, false).addr(), 7);
            assert_eq!(end_of(waits, true).addr(), usize::MAX, "PTHREAD_CANCELED");
        }
        return;
    }
    let ended = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["run", "--quiet", "--best-effort", "--memory", "64M", "--"])
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "threads_that_are_unwound_end_as_they_should"])
        .env(ROLE, "1")
        .output()
        .expect("pagoda runs");
    assert!(ended.status.success(), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
}
