//! A client of redis: fills the server, reads everything back twice, compares each value, and ends the server.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::data::Random;
use crate::measure::Digest;

/// Few and large: the index is touched at random for each key, and has to fit.
const KEYS: u64 = 60_000;
/// How many requests are on their way at once.
const PIPELINE: u64 = 64;
const LISTEN_TIME_MAX: Duration = Duration::from_secs(30);
/// Longer than any run may take: the run's own limit ends it first, and then the server's end ends this.
const REPLY_TIME_MAX: Duration = Duration::from_secs(600);

/// Half of it repeats, so that it compresses about two to one; the length differs from key to key.
fn value(key: u64) -> Vec<u8> {
    let mut random = Random(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let words = 500 + random.below(140);
    (0..words).flat_map(|i| if i % 2 == 0 { random.next() } else { key }.to_le_bytes()).collect()
}

struct Connection {
    read: BufReader<UnixStream>,
    write: BufWriter<UnixStream>,
}

impl Connection {
    fn open(socket: &Path) -> Self {
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => {
                    assert!(start.elapsed() < LISTEN_TIME_MAX, "the server does not listen: {error}");
                }
            }
            thread::sleep(Duration::from_millis(10));
        };
        stream.set_read_timeout(Some(REPLY_TIME_MAX)).expect("set");
        Self { read: BufReader::new(stream.try_clone().expect("cloned")), write: BufWriter::new(stream) }
    }

    fn send(&mut self, words: &[&[u8]]) {
        write!(self.write, "*{}\r\n", words.len()).expect("sent");
        for word in words {
            write!(self.write, "${}\r\n", word.len()).expect("sent");
            self.write.write_all(word).and_then(|()| self.write.write_all(b"\r\n")).expect("sent");
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.read.read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }

    fn bulk(&mut self) -> Vec<u8> {
        let line = self.line();
        let length: usize =
            line.strip_prefix('$').and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        let mut content = vec![0; length + 2];
        self.read.read_exact(&mut content).expect("a reply");
        content.truncate(length);
        content
    }

    /// Sends one request for each key, `PIPELINE` at once, and hands over each reply.
    fn each(
        &mut self,
        keys: &[u64],
        request: impl Fn(&mut Self, u64),
        mut reply: impl FnMut(&mut Self, u64),
    ) {
        for keys in keys.chunks(PIPELINE as usize) {
            keys.iter().for_each(|&key| request(self, key));
            self.write.flush().expect("sent");
            keys.iter().for_each(|&key| reply(self, key));
        }
    }
}

/// What was read back, as a digest.
pub fn exercise(socket: &Path) -> String {
    let mut connection = Connection::open(socket);
    let name = |key: u64| format!("key:{key:08}").into_bytes();
    let all: Vec<u64> = (0..KEYS).collect();
    connection.each(
        &all,
        |connection, key| connection.send(&[b"SET", &name(key), &value(key)]),
        |connection, _| assert_eq!(connection.line(), "+OK"),
    );
    let mut random = Random(7);
    let some: Vec<u64> = (0..KEYS / 16).map(|_| random.below(KEYS)).collect();
    let mut digest = Digest::default();
    for keys in [&all, &some] {
        connection.each(
            keys,
            |connection, key| connection.send(&[b"GET", &name(key)]),
            |connection, key| {
                let content = connection.bulk();
                assert!(content == value(key), "the value of key {key} is not what was stored");
                digest.update(&content);
            },
        );
    }
    connection.send(&[b"SHUTDOWN", b"NOSAVE"]);
    connection.write.flush().expect("sent");
    // It answers by closing.
    let _ = connection.read.read(&mut [0]);
    format!("; read back {digest}")
}
