//! Images on servers: every byte through a small cache, and a server that stops answering.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagoda_linux::testing::http_server::{HttpServer, answer_file, refuse};
use pagoda_linux::testing::mapping::PAGE;
use pagoda_linux::testing::wait::until;

use crate::peer::{Peer, SIZES, check_page};
use crate::server::{Server, packed};
use crate::trouble::guest;

#[test]
fn every_byte_comes_from_a_server_to_many_guests_and_later_from_the_disk() {
    if crate::skips("images on servers") {
        return;
    }
    let files = packed(1001);
    // The working set lies beside the image, too.
    let image = pagoda_image::Image::open(&files.path().join("mem"), None).expect("an image");
    let touches = [5, 200, 100].map(|block| pagoda_image::Touch { block, at_us: 0 });
    pagoda_image::WorkingSet::record(&image, &touches).expect("recorded");
    let web = HttpServer::directory(files.path());
    let place = files.path().join("disk");
    let disk = ["--disk-cache", place.to_str().expect("text"), "--disk-cache-limit", "64M"];
    for (options, from_disk) in
        [(["--cache", "128K", "--around", "64K"], false), (["--cache", "64M", "--around", "4K"], true)]
    {
        let server =
            Server::start_remote(&web.url("mem?secret"), files.path(), &[&options[..], &disk].concat());
        thread::scope(|scope| {
            for parts in [1, 2] {
                let socket = server.socket();
                scope.spawn(move || Peer::restore(&socket, 1000, parts, SIZES[1]).check(|_| false));
            }
        });
        assert!(!server.lines().contains("secret"), "{}", server.lines());
        let stats = server.stats_when("both have ended", |stats| {
            stats["total"]["memory_bytes"].as_u64() == Some(2 * 1000 * PAGE as u64)
        });
        assert_eq!(stats["total"]["refused_bytes"], 0);
        // The first piece comes with the opening, and the set is a part of one.
        let pieces =
            std::fs::metadata(files.path().join("mem")).expect("there").len().div_ceil(128 << 10) - 1;
        until("all was kept", || {
            let entries = std::fs::read_dir(&place).expect("a directory").flatten();
            let kept = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".piece"));
            kept.count() as u64 == pieces
        });
        server.signal(rustix::process::Signal::TERM);
        let (status, _, lines) = server.wait();
        assert!(status.success(), "{lines}");
        let asked = web.requests();
        // The handler and its supervisor open the image and its working set.
        let is_opening = asked.iter().all(|request| request.range.is_some_and(|(first, _)| first == 0));
        assert!(is_opening || !from_disk, "{asked:?}");
    }
}

#[test]
fn a_server_that_stops_answering_ends_a_guest_and_not_the_handler() {
    if crate::skips("servers that stop") {
        return;
    }
    let files = packed(1000);
    let stops = Arc::new(AtomicBool::new(false));
    let (own, is_stopped) = (files.path().to_owned(), Arc::clone(&stops));
    let web = HttpServer::start(move |request, line| {
        if is_stopped.load(Ordering::Relaxed) {
            return refuse(line, "404 Not Found", "");
        }
        answer_file(&own, request, line)
    });
    let options = ["--prefetch", "none", "--around", "4K"];
    let server = Server::start_remote(&web.url("mem"), files.path(), &options);
    let peer = Peer::restore(&server.socket(), 1000, 1, SIZES[0]);
    check_page(&peer.parts[0].0, 0, 0, false);
    stops.store(true, Ordering::Relaxed);
    let ended = guest(&server, 1000, 1000).status().expect("it starts");
    assert_eq!(ended.signal(), Some(7), "SIGBUS: {ended}");
    assert!(server.lines().contains("refused to the VM"), "{}", server.lines());
    stops.store(false, Ordering::Relaxed);
    // The failure is the answer for a moment.
    thread::sleep(std::time::Duration::from_millis(1100));
    peer.check(|_| false);
}

#[test]
fn a_recording_on_a_server_is_refused() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["serve", "--socket", "/nowhere/socket", "--record", "http://127.0.0.1:1/mem"])
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("record with a copy") && output.status.code() == Some(125), "{text}");
}
