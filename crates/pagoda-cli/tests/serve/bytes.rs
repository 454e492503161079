//! Every byte is the image's, or zero where the guest has discarded it.

use std::os::fd::AsFd;
use std::thread;

use pagoda_linux::testing::mapping::PAGE;
use pagoda_linux::testing::random::Random;
use rustix::process::Signal;

use crate::peer::{Peer, SIZES, check_page, entrusted, pages_of, region, send_to};
use crate::server::Server;

#[test]
fn every_byte_comes_in_each_form_of_the_protocol() {
    if crate::skips("serving pages") {
        return;
    }
    for (options, size) in [
        (["--around", "4K", "--prefetch", "none"], SIZES[0]),
        (["--around", "16K", "--prefetch", "set"], SIZES[1]),
        (["--around", "2M", "--prefetch", "all"], SIZES[2]),
    ] {
        let server = Server::start(1000, &options);
        // The second one most likely has the addresses of the first, which was being prefetched.
        Peer::restore(&server.socket(), 1000, 2, size).check(|_| false);
        Peer::restore(&server.socket(), 999, 3, size).check(|_| false);
        let stats =
            server.stats_when("both have ended", |stats| stats["total"]["memory_bytes"] == 1999 * 4096);
        assert_eq!(stats["total"]["refused_bytes"], 0);
    }
}

/// Firecracker may send another descriptor beside its userfaultfd, before or after it.
#[test]
fn the_userfaultfd_is_found_among_two_descriptors() {
    if crate::skips("serving pages") {
        return;
    }
    let server = Server::start(64, &[]);
    let other = std::fs::File::open("/dev/null").expect("there");
    for is_first in [true, false] {
        let (uffd, memory) = entrusted(8);
        let message = format!("[{}]", region(memory.range().start(), 8, 16, SIZES[1]));
        let mut descriptors = [other.as_fd(), uffd.as_fd()];
        if is_first {
            descriptors.swap(0, 1);
        }
        let _line = send_to(&server.socket(), message.as_bytes(), &descriptors);
        (0..8).for_each(|page| check_page(&memory, page, 16 + page, false));
    }
}

#[test]
fn a_packed_image_is_served_as_its_memory_also_through_a_small_cache() {
    if crate::skips("packed images") {
        return;
    }
    for options in [["--cache", "128K", "--around", "64K"], ["--cache", "64M", "--around", "4K"]] {
        let server = Server::start_packed(1001, &options);
        thread::scope(|scope| {
            for parts in [1, 2] {
                let socket = server.socket();
                scope.spawn(move || Peer::restore(&socket, 1000, parts, SIZES[1]).check(|_| false));
            }
        });
        Peer::restore(&server.socket(), 1001, 1, SIZES[0]).check(|_| false);
    }
    // And its working set.
    let server = Server::start_packed(1001, &["--record"]);
    let peer = Peer::restore(&server.socket(), 1001, 1, SIZES[1]);
    [5, 900, 500].iter().for_each(|&page| check_page(&peer.parts[0].0, page, page, false));
    drop(peer);
    server.stats_when("it has ended", |stats| stats["connections"] == 1 && stats["vms_now"] == 0);
    let old = server.handler();
    rustix::process::kill_process(old, Signal::KILL).expect("it runs");
    let peer = Peer::restore(&server.socket(), 1001, 1, SIZES[1]);
    let stats =
        server.stats_when("the set was prefetched", |stats| stats["vms"][0]["working_set_ms"].is_f64());
    // Three blocks of 16 KiB, without their pages of zeroes.
    assert!(stats["vms"][0]["prefetched_bytes"].as_u64() >= Some(3 * 3 * 4096), "{stats}");
    peer.check(|_| false);
}

#[test]
fn many_guests_are_served_at_a_time_by_one_cache() {
    if crate::skips("many guests") {
        return;
    }
    let server = Server::start(512, &[]);
    thread::scope(|scope| {
        for guest in 0..16 {
            let socket = server.socket();
            scope
                .spawn(move || Peer::restore(&socket, 512, 1 + guest % 3, SIZES[guest % 3]).check(|_| false));
        }
    });
    let stats = server.stats_when("all have come", |stats| stats["connections"] == 16);
    assert_eq!((&stats["restarts"], &stats["turned_away"]), (&0.into(), &0.into()));
}

/// Discards come before, while and after pages are filled, by faults and by a prefetch of all.
#[test]
fn no_discarded_page_comes_back_while_everything_is_prefetched() {
    if crate::skips("discards") {
        return;
    }
    const PAGES: usize = 8192;
    let server = Server::start(PAGES, &["--prefetch", "all", "--around", "64K"]);
    // All stay until the end: in a process of its own no guest gets another one's addresses.
    let mut peers = Vec::new();
    for seed in 0..6 {
        let mut random = Random::new(seed, 0);
        let mut peer = Peer::restore(&server.socket(), PAGES, 2, SIZES[1]);
        let mut removed = vec![false; PAGES];
        for _ in 0..300 {
            let (mapping, first) = &mut peer.parts[random.below(2)];
            let pages = random.range(pages_of(mapping));
            let pages = pages.start..pages.end.min(pages.start + 40);
            let (at, from) = (random.below(pages_of(mapping)), *first);
            if !pages.is_empty() {
                mapping.discard(pages.clone()).expect("discarded");
                removed[from + pages.start..from + pages.end].fill(true);
                check_page(mapping, pages.start, from + pages.start, true);
            }
            check_page(mapping, at, from + at, removed[from + at]);
        }
        peer.check(|page| removed[page]);
        peers.push(peer);
        eprintln!("seed {seed}: {} pages discarded", removed.iter().filter(|&&removed| removed).count());
    }
    assert!(
        server.stats_when("discards are counted", |stats| stats["total"]["removed_bytes"].as_u64() > Some(0))
            ["total"]["faults"]
            .is_u64()
    );
}

#[test]
fn a_guest_faults_while_another_thread_of_it_discards() {
    if crate::skips("faults beside discards") {
        return;
    }
    let server = Server::start(4096, &["--prefetch", "none", "--around", "4K"]);
    let mut peer = Peer::restore(&server.socket(), 4096, 2, SIZES[2]);
    let [(reading, from), (discarding, _)] = &mut peer.parts[..] else { panic!("two parts") };
    thread::scope(|scope| {
        scope
            .spawn(|| (0..pages_of(reading)).for_each(|page| check_page(reading, page, *from + page, false)));
        for page in (0..pages_of(discarding)).step_by(2) {
            discarding.discard(page..page + 1).expect("discarded");
            check_page(discarding, page, 0, true);
        }
    });
    let parts = pages_of(discarding);
    peer.check(|page| page < parts && page % 2 == 0);
}

#[test]
fn a_working_set_is_recorded_and_comes_first_for_the_next_guest() {
    if crate::skips("working sets") {
        return;
    }
    let touched = [5, 900, 6, 7, 500, 901];
    let server = Server::start(1000, &["--record", "--around", "4K"]);
    let peer = Peer::restore(&server.socket(), 1000, 1, SIZES[1]);
    touched.iter().for_each(|&page| check_page(&peer.parts[0].0, page, page, false));
    drop(peer);
    server.stats_when("it has ended", |stats| stats["connections"] == 1 && stats["vms_now"] == 0);
    let text = std::fs::read_to_string(server.directory.path().join("mem.ws")).expect("recorded");
    let lines: Vec<(usize, u32)> = text
        .lines()
        .map(|line| {
            let (offset, at_us) = line.split_once(' ').expect("an offset and a time");
            (offset.parse::<usize>().expect("an offset") / PAGE, at_us.parse().expect("a time"))
        })
        .collect();
    assert!(lines.iter().map(|line| line.0).eq(touched) && lines.is_sorted_by_key(|line| line.1), "{text}");
    let peer = Peer::restore(&server.socket(), 1000, 1, SIZES[1]);
    // The handler read the set when it started, so that a new one knows it.
    rustix::process::kill_process(server.handler(), Signal::KILL).expect("it runs");
    let bytes = (touched.len() * PAGE) as u64;
    let stats = server.stats_when("the set was prefetched", |stats| {
        stats["vms"][0]["prefetched_bytes"] == bytes && stats["vms"][0]["working_set_ms"].is_f64()
    });
    assert_eq!(stats["vms"][0]["faults"], 0);
    peer.check(|_| false);
}
