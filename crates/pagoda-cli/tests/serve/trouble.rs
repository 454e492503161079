//! Handlers, supervisors and guests that are killed, stopped or asked to end, and an image that
//! can't be read.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::wait::until;
use rustix::process::{Signal, kill_process};

use crate::peer::{Peer, SIZES, check_page};
use crate::server::Server;

const PAGES: usize = 4096;

/// Handlers that are killed below one guest.
const KILLS: u64 = 10;

/// What a guest in a process of its own does, by this variable: `SOCKET PAGES TOUCHED`.
const GUEST: &str = "PAGODA_TEST_SERVED_GUEST";

/// Not a test of its own: the guest's process.
#[test]
fn guest_process() {
    let Ok(words) = std::env::var(GUEST) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().expect("a number");
    let peer = Peer::restore(words[0].as_ref(), number(1), 1, SIZES[1]);
    (0..number(2)).for_each(|page| check_page(&peer.parts[0].0, page, page, false));
    std::thread::sleep(Duration::from_secs(600));
}

pub fn guest(server: &Server, pages: usize, touched: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this"));
    command.args(["--exact", "trouble::guest_process", "--nocapture"]);
    command.env(GUEST, format!("{} {pages} {touched}", server.socket().display()));
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command
}

#[test]
fn a_guest_goes_on_when_its_handler_is_killed_again_and_again() {
    if crate::skips("killed handlers") {
        return;
    }
    let server = Server::start(PAGES, &["--around", "4K", "--prefetch", "none"]);
    let mut random = Random::new(1, 0);
    let mut peer = Peer::restore(&server.socket(), PAGES, 1, SIZES[1]);
    let mut removed = vec![false; PAGES];
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..KILLS {
                // Each round needs a handler: so each has served the guest when it is killed.
                let before = rounds.load(Ordering::Relaxed);
                until("the guest goes on", || rounds.load(Ordering::Relaxed) > before + 3);
                kill_process(server.handler(), Signal::KILL).expect("it runs");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let mapping = &mut peer.parts[0].0;
            let (page, count) = (random.below(PAGES - 8), 1 + random.below(8));
            mapping.discard(page..page + count).expect("discarded");
            removed[page..page + count].fill(true);
            check_page(mapping, page, page, true);
            let page = random.below(PAGES);
            check_page(mapping, page, page, removed[page]);
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    });
    peer.check(|page| removed[page]);
    let stats = server.stats_when("restarts are counted", |stats| stats["restarts"] == KILLS);
    assert!(stats["vms"][0]["handlers"].as_u64() >= Some(KILLS), "{stats}");
}

#[test]
fn a_handler_that_stands_still_is_replaced() {
    if crate::skips("stopped handlers") {
        return;
    }
    let server = Server::start(64, &["--watchdog", "2"]);
    let peer = Peer::restore(&server.socket(), 64, 1, SIZES[0]);
    check_page(&peer.parts[0].0, 0, 0, false);
    let handler = server.handler();
    kill_process(handler, Signal::STOP).expect("it runs");
    until("all of its threads stand still", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", handler.as_raw_nonzero())).expect("there");
        threads.flatten().all(|thread| {
            std::fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
        })
    });
    peer.check(|_| false);
    assert!(server.lines().contains("no sign of life"), "{}", server.lines());
}

#[test]
fn a_guest_goes_on_when_the_supervisor_is_killed() {
    if crate::skips("killed supervisors") {
        return;
    }
    let server = Server::start(64, &["--prefetch", "none"]);
    let peer = Peer::restore(&server.socket(), 64, 1, SIZES[0]);
    check_page(&peer.parts[0].0, 0, 0, false);
    let handler = server.handler();
    server.signal(Signal::KILL);
    until("its handler knows", || server.lines().contains("the supervisor has ended"));
    peer.check(|_| false);
    drop(peer);
    let is_there = || std::path::Path::new(&format!("/proc/{}", handler.as_raw_nonzero())).exists();
    until("the handler ends with its last guest", || !is_there());
}

#[test]
fn a_killed_guest_is_forgotten() {
    if crate::skips("killed guests") {
        return;
    }
    let server = Server::start(PAGES, &["--prefetch", "all"]);
    let mut children: Vec<_> =
        (0..4).map(|at| guest(&server, PAGES, 100 * at).spawn().expect("it starts")).collect();
    server.stats_when("all are there", |stats| stats["vms_now"] == 4);
    let before = server.handler();
    children.iter_mut().for_each(|child| child.kill().expect("it runs"));
    for child in &mut children {
        child.wait().expect("it ends");
    }
    server.stats_when("none is left", |stats| stats["vms_now"] == 0);
    assert_eq!(server.handler(), before, "no handler had to be replaced");
}

#[test]
fn asked_to_end_it_gives_each_guest_all_of_its_memory() {
    if crate::skips("draining") {
        return;
    }
    let server = Server::start(PAGES, &["--prefetch", "none", "--json"]);
    let mut peers = [1, 2].map(|parts| Peer::restore(&server.socket(), PAGES, parts, SIZES[1]));
    for peer in &mut peers {
        check_page(&peer.parts[0].0, 1, peer.parts[0].1 + 1, false);
        peer.parts[0].0.discard(2..4).expect("discarded");
    }
    server.stats_when("both are there", |stats| stats["vms_now"] == 2);
    server.signal(Signal::TERM);
    let socket = server.socket();
    let (status, output, lines) = server.wait();
    assert!(status.success() && !socket.exists(), "{status}: {lines}");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&told["connections"], &told["vms_now"]), (&2.into(), &0.into()));
    // There is no handler any more: each fault would wait for good.
    for peer in &mut peers {
        let first = peer.parts[0].1;
        peer.check(|page| (first + 2..first + 4).contains(&page));
        peer.parts[0].0.discard(0..1).expect("nothing waits for its event");
        check_page(&peer.parts[0].0, 0, 0, true);
    }
}

#[test]
fn a_page_that_can_not_be_read_ends_its_guest_and_no_other() {
    if crate::skips("damaged images") {
        return;
    }
    let server = Server::start(64, &["--around", "16K", "--prefetch", "none"]);
    let peer = Peer::restore(&server.socket(), 64, 1, SIZES[0]);
    check_page(&peer.parts[0].0, 50, 50, false);
    File::options().write(true).open(server.image()).expect("there").set_len(33 * 4096).expect("cut");
    let ended = guest(&server, 64, 64).status().expect("it starts");
    assert_eq!(ended.signal(), Some(7), "SIGBUS: {ended}");
    assert!(server.lines().contains("refused to the VM"), "{}", server.lines());
    // Whole pages are served on, also beside damaged ones.
    (0..33).chain([50]).for_each(|page| check_page(&peer.parts[0].0, page, page, false));
    server.signal(Signal::USR1);
    until("the table is printed", || server.lines().contains("could not be read and were refused"));
    assert!(server.lines().contains("discarded"), "its head: {}", server.lines());
}

#[test]
fn an_image_that_was_replaced_is_not_served_to_guests_of_the_former_one() {
    if crate::skips("replaced images") {
        return;
    }
    let server = Server::start(64, &["--around", "4K", "--prefetch", "none"]);
    let peer = Peer::restore(&server.socket(), 64, 1, SIZES[0]);
    check_page(&peer.parts[0].0, 0, 0, false);
    let [former, other] = ["former", "other"].map(|name| server.directory.path().join(name));
    std::fs::write(&other, vec![7; 64 * 4096]).expect("written");
    std::fs::rename(server.image(), &former).expect("moved");
    std::fs::rename(&other, server.image()).expect("moved");
    kill_process(server.handler(), Signal::KILL).expect("it runs");
    until("it is told", || server.lines().contains("is not what it was"));
    std::fs::rename(&former, server.image()).expect("moved back");
    peer.check(|_| false);
}
