//! `pagoda bench base-page --set-mthp` from the outside: asked to end, it must never leave the
//! machine's setting changed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The limit of a wait, reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

fn setting(file: &str) -> String {
    std::fs::read_to_string(Path::new(HUGE_PAGES).join(file)).unwrap_or_default()
}

fn size() -> String {
    setting("hugepages-64kB/enabled")
}

/// The reason why the bench would change nothing.
fn unfit() -> Option<&'static str> {
    let file = Path::new(HUGE_PAGES).join("hugepages-64kB/enabled");
    let changes = ["[madvise]", "[never]"];
    if !pagoda::userfaultfd_allows_managers() {
        Some("this machine offers no userfaultfd with UFFDIO_MOVE")
    } else if std::fs::OpenOptions::new().write(true).open(file).is_err() {
        Some("the setting of 64 KiB pages is not there or not ours to change")
    } else if ![size(), setting("enabled")].iter().all(|mode| changes.iter().any(|fit| mode.contains(fit))) {
        Some("the kernel gives large pages to who does not ask")
    } else {
        None
    }
}

#[test]
fn asked_to_end_it_puts_the_setting_back() {
    if let Some(why) = unfit() {
        return pagoda_linux::testing::skip::skip("the setting of 64 KiB pages", why);
    }
    let before = size();
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_pagoda-bench"))
            .args(["base-page", "--quick", "--json", "--set-mthp"])
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let begun = Instant::now();
        while size() == before {
            assert!(bench.try_wait().expect("our own child").is_none(), "it ended and changed nothing");
            assert!(begun.elapsed() < PATIENCE, "nothing was changed");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill_process(Pid::from_child(&bench), signal).expect("sent");
        let ended = loop {
            if let Some(ended) = bench.try_wait().expect("our own child") {
                break ended;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!((ended.code(), size()), (Some(status), before.clone()), "{signal:?}");
    }
}
