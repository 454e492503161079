//! `pagoda export --serve` tells of a server that runs, and that another one does not.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, SystemTime};

use pagoda_linux::testing::wait::until;

use crate::openmetrics;
use crate::peer::{Peer, SIZES};
use crate::server::Server;

const PAGES: usize = 64;

#[test]
fn the_counts_of_a_server_are_told_while_it_runs() {
    if crate::skips("metrics of a server") {
        return;
    }
    let server = Server::start(PAGES, &["--prefetch", "none"]);
    Peer::restore(&server.socket(), PAGES, 1, SIZES[1]).check(|_| false);
    let stats = server.stats_when("the VM is counted", |stats| stats["total"]["filled_bytes"] != 0);
    let (file, none) = (server.directory.path().join("stats"), server.directory.path().join("none"));
    // Of the server, and of one that never was.
    let told = || {
        let mut export = Command::new(env!("CARGO_BIN_EXE_pagoda"));
        export.arg("export").env("XDG_RUNTIME_DIR", server.directory.path());
        let output =
            export.args(["--serve".as_ref(), file.as_os_str(), "--serve".as_ref(), none.as_os_str()]);
        let output = output.output().expect("pagoda starts");
        let text = String::from_utf8(output.stdout).expect("text");
        let families = openmetrics::read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
        move |family: &str, file: &std::path::Path| {
            let samples = families[&format!("pagoda_serve_{family}")].samples.clone();
            let of_file = |labels: &openmetrics::Labels| labels["stats"] == file.display().to_string();
            samples.into_iter().find(|(_, labels, _)| of_file(labels)).map(|(_, _, value)| value)
        }
    };
    let now = told();
    assert_eq!((now("up", &file), now("up", &none)), (Some(1.0), Some(0.0)));
    assert!(now("filled_bytes", &file) >= stats["total"]["filled_bytes"].as_f64(), "{stats}");
    assert!(now("faults", &file) > Some(0.0) && now("fault_duration_seconds", &file) > Some(0.0));
    assert_eq!(now("faults", &none), None);
    // Stopped, and so long ago that it counts as ended.
    server.signal(rustix::process::Signal::STOP);
    let mut now = told();
    until("it counts as ended", || {
        let long_ago = SystemTime::now() - Duration::from_secs(60);
        File::options().write(true).open(&file).and_then(|file| file.set_modified(long_ago)).expect("set");
        now = told();
        now("up", &file) == Some(0.0)
    });
    server.signal(rustix::process::Signal::CONT);
    assert_eq!(now("faults", &file), None);
}
