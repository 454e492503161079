//! A managed program most of whose memory is at a Redis server: a real one, which is killed and
//! started anew in the middle; or at a cluster, whose slots move meanwhile.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagoda_linux::testing::redis::RedisServer;
use pagoda_linux::testing::redis_cluster::RedisCluster;
use pagoda_linux::testing::wait::until;
use rustix::process::{Pid, Signal, kill_process};

const BUDGET: &str = "32M";
/// More than three times the budget, of incompressible content.
const FILL: usize = 100 << 20;
const STEP: usize = 4096;
const ROLE: &str = "PAGODA_TEST_REMOTE_FILLER";

fn word(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The program that is managed, which is this test's own binary: it fills its memory, waits for a
/// line, and reads it.
#[test]
fn filler() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random ^ random >> 33
    };
    let mut filled: Vec<u64> = (0..FILL / 8).map(|_| next()).collect();
    for at in (0..filled.len()).step_by(STEP / 8) {
        filled[at] = word(at);
    }
    println!("\nfilled");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let wrong = (0..filled.len()).step_by(STEP / 8).filter(|at| filled[*at] != word(*at)).count();
    println!("\nwrong {wrong}");
}

/// A run whose program can spill only there.
fn run(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["run", "-q", "-m", BUDGET, "--file-limit", "0", "--remote-store", url]);
    command.env_remove("PAGODA_PRELOAD");
    command
}

fn begin(url: &str, stats: &Path, password: Option<&Path>) -> Child {
    let mut command = run(url);
    if let Some(file) = password {
        command.arg("--remote-password-file").arg(file);
    }
    command.arg("--stats").arg(stats).arg("--");
    if password.is_some() {
        // Its child has the same.
        command.args(["sh", "-c", "\"$@\"; exit $?", "sh"]);
    }
    command.arg(std::env::current_exe().expect("a path")).args(["--exact", "remote::filler", "--nocapture"]);
    command.env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().expect("pagoda starts")
}

/// Reads its output up to this line.
fn wait_for(child: &mut Child, line: &str) -> BufReader<std::process::ChildStdout> {
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    let mut text = String::new();
    while said.read_line(&mut text).expect("text") > 0 {
        if text.ends_with(&format!("{line}\n")) {
            return said;
        }
    }
    let output = child.stderr.take().map(|errors| std::io::read_to_string(errors).expect("text"));
    panic!("it did not say {line}: {text}{output:?}");
}

/// Waits until a request of this run to its server has failed.
fn until_missed(run: u32) {
    let of_run = format!("pagoda_remote_failures_total{{tree=\"{run}-");
    until("a request to the server failed", || {
        let output =
            Command::new(env!("CARGO_BIN_EXE_pagoda")).arg("export").output().expect("pagoda starts");
        let text = String::from_utf8(output.stdout).expect("text");
        let failures = text.lines().find(|line| line.starts_with(&of_run));
        !failures.expect("the run is there").ends_with(" 0")
    });
}

/// Looks at the run as its user would: the bytes at the server are shown, and are part of the
/// store's.
fn expect_top_to_show(run: u32) {
    let top = ["top", "--json", "--interval", "0.1", &run.to_string()].map(str::to_owned);
    until("top shows the bytes at the server", || {
        let output = Command::new(env!("CARGO_BIN_EXE_pagoda")).args(&top).output().expect("pagoda starts");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let tree = &told["trees"][0];
        let number = |key: &str| tree[key].as_f64().unwrap_or_else(|| panic!("{key}: {told}"));
        if number("remote_bytes") <= FILL as f64 / 2.0 {
            return false;
        }
        let takes = number("store_memory_bytes") + number("spilled_bytes") + number("remote_bytes");
        let ratio = number("stored_bytes") / takes;
        assert!((number("compression") - ratio).abs() < 1e-9, "{told}");
        true
    });
}

fn can_run() -> bool {
    let probed = pagoda_linux::probe::can_run();
    if let Err(why) = &probed {
        pagoda_linux::testing::skip::skip("memory at a server", why);
    }
    probed.is_ok()
}

#[test]
fn a_program_whose_memory_is_at_a_server_reads_it_right_or_is_ended() {
    if !can_run() {
        return;
    }
    for stays_dead in [false, true] {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let kept = ["--appendonly", "yes"];
        let Some(mut server) = RedisServer::start(scratch.path(), &kept) else { return };
        let stats = scratch.path().join("stats.json");
        let mut child = begin(&format!("redis://{}", server.address()), &stats, None);
        let said = wait_for(&mut child, "filled");
        if stays_dead {
            expect_top_to_show(child.id());
        }
        server.kill();
        let stdin = child.stdin.take().expect("piped");
        std::io::Write::write_all(&mut &stdin, b"\n").expect("it reads");
        if !stays_dead {
            until_missed(child.id());
            server.restart(&kept);
        }
        let text = std::io::read_to_string(said).expect("text");
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        if stays_dead {
            assert_eq!(output.status.code(), Some(125), "{errors}");
            assert!(errors.contains("could not be read back from the store"), "{errors}");
            assert!(!text.contains("wrong"), "it never read anything else: {text}");
        } else {
            assert!(output.status.success() && text.contains("wrong 0\n"), "{text}{errors}");
        }
        let told: serde_json::Value =
            serde_json::from_slice(&fs::read(&stats).expect("--stats")).expect("JSON");
        let counters = &told["counters"];
        let most = counters["remote_peak_bytes"].as_u64().expect("a counter");
        assert!(most > FILL as u64 / 2, "most of it was there: {told}");
        assert!(counters["remote_failures"].as_u64().expect("a counter") > 0, "{told}");
    }
}

/// The only check of the program is that it reads its own writes: while its hashes move, and a node
/// is killed and comes back.
#[test]
fn a_program_whose_memory_is_at_a_cluster_reads_it_right_while_the_cluster_changes() {
    if !can_run() {
        return;
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let Some(mut cluster) = RedisCluster::start(scratch.path(), 3, &["--appendonly", "yes"]) else { return };
    let stats = scratch.path().join("stats.json");
    let mut child = begin(&format!("redis://{}", cluster.nodes()[1].address()), &stats, None);
    let said = wait_for(&mut child, "filled");
    let keys: Vec<Vec<String>> = cluster
        .nodes()
        .iter()
        .map(|server| server.ask("KEYS pagoda:*").lines().map(str::to_owned).collect())
        .collect();
    assert!(keys.iter().all(|keys| !keys.is_empty()), "each node has some of it: {keys:?}");
    let move_key = |key: &str, from: usize, to: usize| {
        let slot = cluster.slot_of(key);
        cluster.begin_move(slot, from, to);
        cluster.move_keys(slot, from, to);
        cluster.end_move(slot, from, to);
    };
    move_key(&keys[0][0], 0, 2);
    let stdin = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut &stdin, b"\n").expect("it reads");
    move_key(&keys[1][0], 1, 0);
    cluster.kill(2);
    std::thread::sleep(std::time::Duration::from_millis(500));
    cluster.restart(2);
    let text = std::io::read_to_string(said).expect("text");
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("wrong 0\n"), "{text}{errors}");
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&stats).expect("--stats")).expect("JSON");
    let most = told["counters"]["remote_peak_bytes"].as_u64().expect("a counter");
    assert!(most > FILL as u64 / 2, "most of it was there: {told}");
    cluster.wait_until_whole();
    for server in cluster.nodes() {
        let keys = server.ask("KEYS pagoda:*");
        assert_eq!(keys.trim(), "", "the end of the program deletes them");
    }
}

/// The server's answer to a request without content, until `end`.
fn ask(server: &RedisServer, request: &str, end: impl Fn(&[u8]) -> bool) -> String {
    let mut stream = TcpStream::connect(server.address()).expect("it runs");
    stream.write_all(format!("{request}\r\n").as_bytes()).expect("sent");
    let (mut said, mut part) = (Vec::new(), [0; 4096]);
    while !end(&said) {
        let len = stream.read(&mut part).expect("an answer");
        assert!(len > 0, "it ended after {:?}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&part[..len]);
    }
    String::from_utf8(said).expect("text")
}

/// The number that the server answers.
fn number(server: &RedisServer, request: &str) -> i64 {
    let said = ask(server, request, |said| said.ends_with(b"\r\n"));
    said.trim_start_matches(':').trim_end().parse().unwrap_or_else(|_| panic!("{request}: {said}"))
}

/// In how many values at the server one of these words is found.
const SHOWN: &str = "EVAL \"local n = 0 for _, key in ipairs(redis.call('KEYS', 'pagoda:*')) do for _, value in \
                     ipairs(redis.call('HVALS', key)) do for _, word in ipairs(ARGV) do if string.find(value, \
                     word, 1, true) then n = n + 1 end end end end return n\" 0";

/// Gives each field the value of another of its hash that is as long, if there is one. Returns how
/// many were given one.
const SWAP: &str = "EVAL \"local n = 0 for _, key in ipairs(redis.call('KEYS', 'pagoda:*')) do local all = \
                    redis.call('HGETALL', key) local last = {} for i = 1, #all, 2 do local value = all[i + 1] if \
                    last[#value] then redis.call('HSET', key, all[i], last[#value]) n = n + 1 end last[#value] = \
                    value end end return n\" 0";

#[test]
fn a_server_that_swaps_what_it_stores_is_found_out_and_has_seen_none_of_it() {
    if !can_run() {
        return;
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let Some(server) = RedisServer::start(scratch.path(), &["--appendonly", "no"]) else { return };
    let stats = scratch.path().join("stats.json");
    let mut child = begin(&format!("redis://{}", server.address()), &stats, None);
    let said = wait_for(&mut child, "filled");
    // Of pages all over the memory, of which more than half is there.
    let words: String = (0..FILL / 8)
        .step_by(FILL / 8 / 32 / STEP * STEP)
        .map(|at| word(at).to_le_bytes().map(|byte| format!("\\x{byte:02x}")).concat())
        .map(|word| format!(" \"{word}\""))
        .collect();
    assert_eq!(number(&server, &format!("{SHOWN}{words}")), 0, "the server sees no content");
    assert!(number(&server, SWAP) > 100, "most pages are there, and do not shrink");
    let stdin = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut &stdin, b"\n").expect("it reads");
    let text = std::io::read_to_string(said).expect("text");
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}{errors}");
    assert!(errors.contains("came back from the store other than it was stored"), "{errors}");
    assert!(!text.contains("wrong"), "it never read anything else: {text}");
}

/// Killed, it can't delete its keys at the server: its run does. As long as it lives they are kept,
/// also if it is stopped for hours and renews nothing.
#[test]
fn a_program_that_was_stopped_lost_its_pages_and_one_that_is_killed_leaves_none() {
    if !can_run() {
        return;
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let Some(server) = RedisServer::start(scratch.path(), &["--appendonly", "no"]) else { return };
    let stats = scratch.path().join("stats.json");
    let mut child = begin(&format!("redis://{}", server.address()), &stats, None);
    let said = wait_for(&mut child, "filled");
    let clients = || {
        let said = ask(&server, "INFO clients", |said| {
            let head = said.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let len = |at: usize| std::str::from_utf8(&said[1..at - 2]).ok()?.parse::<usize>().ok();
            head.is_some_and(|at| len(at).is_some_and(|len| said.len() >= at + len + 2))
        });
        let line = said.lines().find_map(|line| line.strip_prefix("connected_clients:").map(str::to_owned));
        line.expect("it says so").trim().parse::<i64>().expect("a number")
    };
    assert!(clients() > 1, "the program and this test");
    let keys = number(&server, "DBSIZE");
    assert!(keys > 0, "its content is there");
    // By one line for all: how many keys there are that expire, and not within hours.
    let script = "EVAL \"local n = 0 for _, key in ipairs(redis.call('KEYS', 'pagoda:*')) do local left = \
                  redis.call('PTTL', key) if left > 10 * 3600 * 1000 then n = n + 1 end end return n\" 0";
    assert_eq!(number(&server, script), keys, "each outlasts a stop");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).expect("it lives");
    let program = children.split_whitespace().next().expect("a program").parse().expect("a number");
    kill_process(Pid::from_raw(program).expect("a process"), Signal::KILL).expect("sent");
    drop(said);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(128 + 9), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(number(&server, "DBSIZE"), 0, "all of it is deleted");
    until("its connections are gone", || clients() == 1);
}

/// The arguments, say, of a process and of all below it.
fn all_below(pid: u32, what: &str) -> String {
    let mut text = fs::read_to_string(format!("/proc/{pid}/{what}")).expect("it lives");
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    for task in tasks {
        let children = fs::read_to_string(task.expect("an entry").path().join("children")).expect("it lives");
        let children = children.split_whitespace().map(|child| child.parse().expect("a number"));
        children.for_each(|child| text += &all_below(child, what));
    }
    text
}

const PASSWORD: &str = "open sesame;%@";

#[test]
fn a_password_from_a_file_opens_the_server_to_its_user_and_is_in_no_arguments_and_no_environment() {
    if !can_run() {
        return;
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let of_user = format!(">{PASSWORD}");
    let options = ["--user", "pager", "on", &of_user, "~pagoda:*", "+@all", "--requirepass", "another"];
    let Some(server) = RedisServer::start(scratch.path(), &options) else { return };
    let (file, stats) = (scratch.path().join("password"), scratch.path().join("stats.json"));
    fs::write(&file, format!("{PASSWORD}\nof the server\n")).expect("written");
    let mut child = begin(&format!("redis://pager@{}", server.address()), &stats, Some(&file));
    // It was read before the program began.
    let said = wait_for(&mut child, "filled");
    fs::remove_file(&file).expect("it is there");
    let arguments = all_below(child.id(), "cmdline");
    let environments = all_below(child.id(), "environ");
    assert!(arguments.contains("redis://pager@127.0.0.1") && arguments.contains("filler"), "{arguments}");
    assert!(!arguments.contains("sesame"), "{arguments}");
    assert!(
        environments.matches("PAGODA_CONFIG=").count() > 1
            && environments.contains("redis://pager@127.0.0.1")
    );
    assert!(!environments.contains("sesame"), "{environments}");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"\n").expect("it reads");
    let text = std::io::read_to_string(said).expect("text");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && text.contains("wrong 0\n"), "{text}{output:?}");
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&stats).expect("--stats")).expect("JSON");
    let most = told["counters"]["remote_peak_bytes"].as_u64().expect("a counter");
    assert!(most > FILL as u64 / 2, "most of it was there: {told}");
}

#[test]
fn a_password_that_is_wrong_missing_or_given_twice_is_refused_in_one_line() {
    if !can_run() {
        return;
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let Some(server) = RedisServer::start(scratch.path(), &["--requirepass", PASSWORD]) else { return };
    let file = |name: &str, content: &str| {
        let path = scratch.path().join(name);
        fs::write(&path, content).expect("written");
        path
    };
    let (right, wrong) = (file("right", PASSWORD), file("wrong", "open barley"));
    let missing = scratch.path().join("missing");
    let url = |who: &str| format!("redis://{who}{}", server.address());
    for (who, file, says) in [
        ("", None, "check its address, user and password"),
        ("", Some(&wrong), "--remote-password-file"),
        ("nobody@", Some(&right), "user and password"),
        ("", Some(&missing), "missing: it can't be read (No such file"),
        (":open@", Some(&right), "leave it to --remote-password-file"),
    ] {
        let mut command = run(&url(who));
        if let Some(file) = file {
            command.arg("--remote-password-file").arg(file);
        }
        let output = command.args(["--", "echo", "ran"]).output().expect("pagoda starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{who}, {file:?}: {error}");
        assert!(error.starts_with("pagoda: ") && error.lines().count() == 1, "{who}, {file:?}: {error}");
        assert!(
            error.contains(says) && !error.contains("sesame") && !error.contains("barley"),
            "{who}, {file:?}: {error}"
        );
        assert!(output.stdout.is_empty(), "it did not run");
    }
}
