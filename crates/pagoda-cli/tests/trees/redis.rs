//! A client of redis that has the server save in the background while it writes on: one connection,
//! so that the content of the saved file is known to the byte.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::comparison::digest::Digest;
use crate::support::random::{Random, mix};
use crate::support::redis::{Connection, LISTEN_TIME_MAX, name, server};

/// Together with the server's own memory for each, more than 200 MiB.
const KEYS: u64 = 80_000;
/// Background saves, each of another state.
const SAVES: u64 = 2;
const SAVE_TIME_MAX: Duration = Duration::from_secs(120);

/// Half of it repeats, so that it compresses about two to one; the length differs from key to key
/// and version to version.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(key, version);
    let words = 240 + random.below(70) as u64;
    (0..words).flat_map(|i| if i % 2 == 0 { random.next() } else { mix(key) }.to_le_bytes()).collect()
}

impl Connection {
    /// One line of the server's own report.
    fn told(&mut self, name: &str) -> String {
        self.send(&[b"INFO", b"persistence"]);
        self.flush();
        let text = String::from_utf8(self.bulk()).expect("text");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO has no {name}")).to_owned()
    }

    /// Gives keys their next version.
    fn write(&mut self, versions: &mut [u64], keys: &[u64]) {
        self.each(
            keys,
            |connection, key| {
                versions[key as usize] += 1;
                connection.send(&[b"SET", &name(key), &value(key, versions[key as usize])]);
            },
            |connection, _| assert_eq!(connection.line(), "+OK"),
        );
    }

    /// Reads every key and compares it.
    fn compare(&mut self, versions: &[u64], digest: &mut Digest, where_: &str) {
        assert_eq!(self.ask(&[b"DBSIZE"]), format!(":{}", versions.len()), "keys {where_}");
        let keys: Vec<u64> = (0..versions.len() as u64).collect();
        self.each(
            &keys,
            |connection, key| connection.send(&[b"GET", &name(key)]),
            |connection, key| {
                let (content, version) = (connection.bulk(), versions[key as usize]);
                assert!(content == value(key, version), "key {key} {where_} is not its version {version}");
                digest.update(&content);
            },
        );
    }
}

/// Fills the server in this directory, has it save while writing, and compares its content and the
/// saved file.
pub fn exercise(directory: &Path) -> String {
    let mut connection = Connection::open(directory);
    let mut versions = vec![0; KEYS as usize];
    let all: Vec<u64> = (0..KEYS).collect();
    connection.write(&mut versions, &all);
    let mut random = Random::new(7, 0);
    let mut digest = Digest::default();
    for save in 0..SAVES {
        let reply = connection.ask(&[b"BGSAVE"]);
        assert!(reply.starts_with("+Background saving started"), "{reply}");
        let saved = versions.clone();
        let start = Instant::now();
        let mut written = 0;
        // The work is the same on every machine, however long the save takes.
        while written < KEYS / 4 || connection.told("rdb_bgsave_in_progress") != "0" {
            assert!(start.elapsed() < SAVE_TIME_MAX, "the save did not end");
            if written >= KEYS / 4 {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            let keys: Vec<u64> = (0..1024).map(|_| random.below(KEYS as usize) as u64).collect();
            connection.write(&mut versions, &keys);
            written += keys.len() as u64;
        }
        assert_eq!(connection.told("rdb_last_bgsave_status"), "ok", "save {save}");
        load(directory, &saved, &mut digest);
    }
    connection.compare(&versions, &mut digest, "in the server that saved");
    connection.shut_down();
    format!("; saved and read back {digest}")
}

/// Has a second server, which is not measured, load the file, and compares every key.
fn load(directory: &Path, versions: &[u64], digest: &mut Digest) {
    let second = directory.join("second");
    let _ = std::fs::remove_dir_all(&second);
    std::fs::create_dir(&second).expect("made");
    std::fs::rename(directory.join("dump.rdb"), second.join("dump.rdb")).expect("the saved file");
    let words = server(&second);
    let mut server = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the second server starts");
    let mut connection = Connection::open(&second);
    // It listens while it loads, and answers with an error.
    let start = Instant::now();
    while connection.ask(&[b"PING"]) != "+PONG" {
        assert!(start.elapsed() < LISTEN_TIME_MAX, "the second server does not get ready");
        thread::sleep(Duration::from_millis(10));
    }
    connection.compare(versions, digest, "in the file that was saved");
    connection.shut_down();
    assert!(server.wait().expect("waited for").success(), "the second server fails");
}
