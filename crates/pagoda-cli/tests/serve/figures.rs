//! The time that a guest waits for pages from a server: the first one, and those of a scattered
//! working set. `pagoda bench snapshot` measures the same from a file.
//!
//! The normal form is small and checks bytes; with `PAGODA_FIGURES=1` it touches 16 MiB of
//! 256 MiB. It prints the times.

use std::time::Instant;

use pagoda_linux::testing::http_server::{HttpServer, answer_content, refuse};
use pagoda_linux::testing::mapping::WORDS;
use pagoda_linux::testing::random::Random;

use crate::peer::{Peer, SIZES};
use crate::server::{Server, word};

/// Pages of the image and of the working set.
fn sizes() -> (usize, usize) {
    if std::env::var_os("PAGODA_FIGURES").is_some() { (65_536, 4_096) } else { (4096, 256) }
}

/// A working set in runs of 1 to 16 pages, in no order.
fn working_set(pages: usize, count: usize) -> Vec<usize> {
    let (mut random, mut seen, mut order) = (Random::new(7, 0), vec![false; pages], Vec::new());
    while order.len() < count {
        let first = random.below(pages);
        let end = (first + random.between(1, 17)).min(pages);
        for (page, seen) in seen.iter_mut().enumerate().take(end).skip(first) {
            if order.len() < count && !std::mem::replace(seen, true) {
                order.push(page);
            }
        }
    }
    order
}

/// Restores a VM and touches its working set. Returns a line about it.
fn measure(server: &Server, name: &str, pages: usize, order: &[usize]) -> String {
    let begin = Instant::now();
    let peer = Peer::restore(&server.socket(), pages, 1, SIZES[1]);
    let memory = &peer.parts[0].0;
    let mut took_us: Vec<f64> = Vec::with_capacity(order.len());
    let mut first_ms = 0.0;
    for &page in order {
        let before = Instant::now();
        let found = memory.word(page * WORDS + WORDS - 1);
        took_us.push(before.elapsed().as_secs_f64() * 1e6);
        assert_eq!(found, word(page, WORDS - 1), "page {page}");
        if first_ms == 0.0 {
            first_ms = begin.elapsed().as_secs_f64() * 1e3;
        }
    }
    let all_ms = begin.elapsed().as_secs_f64() * 1e3;
    took_us.sort_by(f64::total_cmp);
    let per_mille = |part: usize| took_us[(took_us.len() * part / 1000).min(took_us.len() - 1)];
    format!(
        "{name:32} first {first_ms:6.2} ms, all {all_ms:7.1} ms, touch p50 {:6.1} us, p99 {:7.1} us",
        per_mille(500),
        per_mille(990)
    )
}

/// The first VM of a new handler, from a file and from a server on loopback.
#[test]
fn a_scattered_working_set_from_a_server_is_the_images() {
    if crate::skips("figures of servers") {
        return;
    }
    let (pages, count) = sizes();
    let order = working_set(pages, count);
    let recording = Server::start_packed(pages, &["--record", "--around", "4K"]);
    measure(&recording, "recording", pages, &order);
    recording.stats_when("it has ended", |stats| stats["vms_now"] == 0 && stats["connections"] == 1);
    let files = ["/mem", "/mem.ws"]
        .map(|name| (name, std::fs::read(recording.directory.path().join(&name[1..])).expect("recorded")));
    let web =
        HttpServer::start(move |request, line| match files.iter().find(|(name, _)| *name == request.path) {
            Some((_, content)) => answer_content(content, "etag: \"1\"\r\n", request, line),
            None => refuse(line, "404 Not Found", ""),
        });
    for prefetch in ["none", "set"] {
        for (kind, image) in [("file", recording.image()), ("server", web.url("mem"))] {
            for turn in 0..3 {
                let options = ["--around", "16K", "--prefetch", prefetch];
                let server = Server::start_remote(&image, recording.directory.path(), &options);
                server.handler();
                let name = format!("{kind}, prefetch {prefetch}, run {turn}");
                eprintln!("{}, {} requests", measure(&server, &name, pages, &order), web.requests().len());
            }
        }
    }
}
