//! `pagoda send` and `pagoda recv` as a person runs them: their messages, their ends, and the files
//! afterwards.

#[allow(dead_code, reason = "each of the tests uses its own part")]
#[path = "../../../pagoda-migrate/tests/support/authority.rs"]
mod authority;
mod bench;
mod kills;
mod line;
mod pair;
mod resume;
mod stopped;

use std::fs;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use line::Line;
use pagoda_linux::testing::wait::until;
use pair::{Place, Side, ended, pagoda};
use rustix::process::{Pid, Signal, kill_process};

/// Runs it to its end: its status and its output.
fn say(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pagoda")).args(arguments).output().expect("run");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn an_impossible_request_is_one_line_with_a_remedy() {
    let place = Place::new(1);
    let (image, missing) = (place.path("image"), place.path("missing"));
    let short = place.path("short");
    fs::write(&short, "short").expect("written");
    let (fifo, nowhere) = (place.path("fifo"), place.path("no/arrived"));
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let here = "tcp://127.0.0.1:1";
    for (arguments, words) in [
        (vec!["send", &missing, here], "name a regular file"),
        (vec!["send", "4711", here], "CRIU does that"),
        (vec!["send", "/dev/null", here], "not a regular file"),
        (vec!["send", &fifo, here], "not a regular file"),
        (vec!["send", "/proc/self/maps", here], "copy it to a file first"),
        (vec!["send", "/sys/kernel/mm/transparent_hugepage/enabled", here], "copy it to a file first"),
        (vec!["send", &image, here], "start `pagoda recv` there first"),
        (vec!["send", &image, "nowhere"], "write tcp://HOST:PORT"),
        (vec!["send", &image, here, "--codec", "gzip"], "write none, lz4, zlib or zstd"),
        (vec!["send", &image, here, "--channels", "65"], "pagoda send --help"),
        (vec!["send", &image, here, "--token-file", &short], "at least 16 bytes"),
        (vec!["send", &image, here, "--token-file", &missing], "a file that this user can read"),
        (vec!["send", &image, here, "--cert", &short, "--key", &short, "--ca", &short], "TLS failed"),
        (vec!["send", &image, here, "--cert", &short], "--key"),
        (vec!["recv", "-o", &image], "is there already"),
        (vec!["recv", "-o", &nowhere], "check the directory"),
        (vec!["recv", "-o", &missing, "--listen", "0.0.0.0:0"], "give --token-file"),
        (vec!["recv", "-o", &missing, "--listen", "127.0.0.1:0", "--wait", "1"], "nobody came"),
        (vec!["recv", "-o", &missing, "--zero", "never"], "write check-then-clear, received-map or drop"),
    ] {
        let (status, said) = say(&arguments);
        let last = said.lines().last().unwrap_or_default();
        assert_eq!(status, Some(125), "{arguments:?}: {said}");
        assert!(last.starts_with("pagoda: ") && last.contains(words), "{arguments:?}: {said}");
    }
    assert_eq!(place.names(), ["fifo", "image", "short"]);
}

#[test]
fn help_says_that_a_process_is_not_moved() {
    for command in ["send", "recv"] {
        let output = pagoda(&[command, "--help"]).output().expect("run");
        assert!(String::from_utf8(output.stdout).expect("text").contains("CRIU"), "{command}");
    }
}

#[test]
fn an_image_is_moved_over_tcp_and_over_a_unix_socket_with_a_token() {
    let place = Place::new(2);
    let token = place.path("token");
    fs::write(&token, "a token of more than sixteen bytes\n").expect("written");
    let socket = format!("unix://{}", place.path("socket"));
    for listen in ["127.0.0.1:0", "0.0.0.0:0", &socket] {
        let mut receiver = place.receiver(&["--listen", listen, "--token-file", &token]);
        let to = receiver.address().replace("0.0.0.0", "127.0.0.1");
        let mut sender = Side::start(&["send", &place.path("image"), &to, "--token-file", &token]);
        let (sent, received) = (ended(&mut sender), ended(&mut receiver));
        assert_eq!((sent.0, received.0), (Some(0), Some(0)), "{sent:?} {received:?}");
        assert!(sent.1.contains("pagoda: sent ") && received.1.contains("pagoda: received "), "{sent:?}");
        assert!(place.is_equal(), "{listen}");
        fs::remove_file(place.path("arrived")).expect("removed");
    }
    assert_eq!(place.names(), ["image", "token"]);
}

#[test]
fn certificates_let_in_their_holders_alone() {
    let place = Place::new(5);
    let folder = tempfile::tempdir().expect("a directory");
    let [ours, theirs] = ["ours", "theirs"].map(|name| authority::Authority::new(folder.path(), name));
    let words = |(cert, key): (std::path::PathBuf, std::path::PathBuf), authority: &authority::Authority| {
        [("--cert", cert), ("--key", key), ("--ca", authority.ca())]
            .map(|(option, path)| [option.to_owned(), path.display().to_string()])
            .concat()
    };
    let image = place.path("image");
    for (signer, arrives) in [(&theirs, false), (&ours, true)] {
        let receiving = words(ours.sign("127.0.0.1"), &ours);
        let mut options: Vec<&str> = receiving.iter().map(String::as_str).collect();
        options.extend(["--zero", "received-map", "--wait", "5"]);
        let mut receiver = place.receiver(&options);
        let (to, sending) = (receiver.address(), words(signer.sign("sender"), &ours));
        let mut arguments = vec!["send", &image, &to, "--channels", "4", "--codec", "zstd"];
        arguments.extend(sending.iter().map(String::as_str));
        let mut sender = Side::start(&arguments);
        let (sent, received) = (ended(&mut sender), ended(&mut receiver));
        let status = if arrives { Some(0) } else { Some(125) };
        assert_eq!((sent.0, received.0), (status, status), "{sent:?} {received:?}");
        let arrived: &[&str] = if arrives { &["arrived", "image"] } else { &["image"] };
        assert_eq!(place.names(), arrived);
        assert!(place.is_intact() && (!arrives || place.is_equal()));
    }
}

/// The sender is asked to end while it is held up by its own limit, so that there is enough time to
/// ask.
#[test]
fn either_side_can_be_asked_to_end_and_the_other_says_why() {
    for (signal, at_sender) in [(Signal::INT, true), (Signal::TERM, false)] {
        let place = Place::new(3);
        let mut receiver = place.receiver(&[]);
        let (line, to) = Line::behind(&receiver.address(), u64::MAX);
        let image = place.path("image");
        let slowly = ["send", &image, &to, "--codec", "none", "--bandwidth", "512K"];
        let mut sender = Side::start(&slowly);
        // Both have begun by then, and have 3 MiB before them.
        until("content passes", || line.passed.load(Ordering::Relaxed) > 64 << 10);
        let asked = if at_sender { &mut sender } else { &mut receiver };
        let pid = Pid::from_child(&asked.child);
        kill_process(pid, signal).expect("a signal");
        let (sent, received) = (ended(&mut sender), ended(&mut receiver));
        let (asked, other) = if at_sender { (sent, received) } else { (received, sent) };
        assert_eq!(asked.0, Some(128 + signal.as_raw()), "{asked:?}");
        assert!(asked.1.contains("ended before it was done"), "{asked:?}");
        assert_eq!(other.0, Some(125), "{other:?}");
        let why = if at_sender { "has closed it" } else { "it was asked to end" };
        assert!(other.1.contains(why), "{other:?}");
        assert_eq!(place.names(), ["image"]);
    }
}

#[test]
fn a_receiver_that_can_not_write_tells_the_sender() {
    let place = Place::new(4);
    fs::create_dir(place.path("no")).expect("made");
    let mut receiver = Side::start(&["recv", "--listen", "127.0.0.1:0", "-o", &place.path("no/arrived")]);
    let to = receiver.address();
    fs::remove_dir(place.path("no")).expect("removed");
    let mut sender = Side::start(&["send", &place.path("image"), &to]);
    let (sent, received) = (ended(&mut sender), ended(&mut receiver));
    assert_eq!((sent.0, received.0), (Some(125), Some(125)));
    assert!(sent.1.contains("the receiver gave up: it could not write the image"), "{sent:?}");
    assert!(received.1.contains("check the directory and the space there"), "{received:?}");
}

/// Strangers take all descriptors that the receiver may have, and say nothing.
#[test]
fn strangers_do_not_end_a_receiver_that_has_few_descriptors() {
    let place = Place::new(6);
    let output = place.path("arrived");
    let script =
        format!("ulimit -n 16; exec {} recv --listen 127.0.0.1:0 -o {output}", env!("CARGO_BIN_EXE_pagoda"));
    let mut receiver = Side::spawn(Command::new("sh").args(["-c", &script]));
    let to = receiver.address();
    let port = to.rsplit(':').next().expect("a port").parse::<u16>().expect("a number");
    let silent: Vec<_> =
        (0..40).map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected")).collect();
    let mut sender = Side::start(&["send", &place.path("image"), &to]);
    let (sent, received) = (ended(&mut sender), ended(&mut receiver));
    drop(silent);
    assert_eq!((sent.0, received.0), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert!(place.is_equal());
    let lines = received.1.lines().filter(|line| line.contains("turned") || line.contains("still waiting"));
    assert!(lines.count() <= 2, "{}", received.1);
}

/// Strangers that keep coming, say much and stay: their memory is bounded, and one line tells of
/// them in the end.
#[test]
fn strangers_hold_little_memory_and_are_told_of_in_one_line() {
    let place = Place::new(6);
    let mut receiver = place.receiver(&[]);
    let to = receiver.address();
    let port = to.rsplit(':').next().expect("a port").parse::<u16>().expect("a number");
    let resident_kib = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a line").to_owned();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
    };
    let pid = receiver.child.id();
    let before = resident_kib(pid);
    let noise = vec![b'P'; 64 << 10];
    let mut strangers = Vec::new();
    for _ in 0..200 {
        let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
        stranger.set_nonblocking(true).expect("set");
        // As much as the kernel takes; it may be refused already.
        let _ = std::io::Write::write(&mut stranger, &noise);
        strangers.push(stranger);
    }
    let most = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        resident_kib(pid)
    });
    let most = most.max().expect("some looks");
    assert!(most - before.min(most) <= 16 * 256, "{before} KiB became {most} KiB");
    let mut sender = Side::start(&["send", &place.path("image"), &to]);
    let (sent, received) = (ended(&mut sender), ended(&mut receiver));
    drop(strangers);
    assert_eq!((sent.0, received.0), (Some(0), Some(0)), "{sent:?} {received:?}");
    let lines = received.1.lines().filter(|line| line.contains("turned ")).count();
    assert_eq!(lines, 1, "{}", received.1);
}
