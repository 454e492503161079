//! A redis server, and the common part of its clients: one connection, whose replies are read in
//! order.
//!
//! A client must never wait for ever: a server that does not listen, or does not answer, fails it.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How many requests are on their way at once.
pub const PIPELINE: usize = 64;

/// How long a server may take to get ready.
pub const LISTEN_TIME_MAX: Duration = Duration::from_secs(30);

/// Longer than any run may take: the run's own limit ends it first, and then the server's end ends
/// this.
const REPLY_TIME_MAX: Duration = Duration::from_secs(600);

/// Where a server listens, in its directory.
const SOCKET: &str = "redis.sock";

/// The command line of a server in this directory. It saves only on request.
pub fn server(directory: &Path) -> Vec<String> {
    let text = directory.to_str().expect("a name that is text");
    let words = ["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"];
    let mut words = words.map(str::to_owned).to_vec();
    words.extend(["--rdbcompression", "no", "--dir", text, "--logfile", "redis.log"].map(str::to_owned));
    words.extend(["--unixsocket".to_owned(), format!("{text}/{SOCKET}")]);
    words
}

/// The name of a key.
pub fn name(key: u64) -> Vec<u8> {
    format!("key:{key:08}").into_bytes()
}

/// A connection to a server.
pub struct Connection {
    read: BufReader<UnixStream>,
    write: BufWriter<UnixStream>,
}

impl Connection {
    /// To the server in this directory, as soon as it listens.
    pub fn open(directory: &Path) -> Self {
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(directory.join(SOCKET)) {
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

    /// Adds a request to those that the next [`flush`](Self::flush) sends.
    pub fn send(&mut self, words: &[&[u8]]) {
        write!(self.write, "*{}\r\n", words.len()).expect("sent");
        for word in words {
            write!(self.write, "${}\r\n", word.len()).expect("sent");
            self.write.write_all(word).and_then(|()| self.write.write_all(b"\r\n")).expect("sent");
        }
    }

    pub fn flush(&mut self) {
        self.write.flush().expect("sent");
    }

    /// A reply of one line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.read.read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }

    /// A reply that is a value.
    pub fn bulk(&mut self) -> Vec<u8> {
        let line = self.line();
        let length: usize =
            line.strip_prefix('$').and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        let mut content = vec![0; length + 2];
        self.read.read_exact(&mut content).expect("a reply");
        content.truncate(length);
        content
    }

    /// One request and its reply of one line.
    pub fn ask(&mut self, words: &[&[u8]]) -> String {
        self.send(words);
        self.flush();
        self.line()
    }

    /// Sends one request for each key, [`PIPELINE`] at once, and hands over each reply.
    pub fn each(
        &mut self,
        keys: &[u64],
        mut request: impl FnMut(&mut Self, u64),
        mut reply: impl FnMut(&mut Self, u64),
    ) {
        for keys in keys.chunks(PIPELINE) {
            keys.iter().for_each(|&key| request(self, key));
            self.flush();
            keys.iter().for_each(|&key| reply(self, key));
        }
    }

    /// Ends the server.
    pub fn shut_down(mut self) {
        self.send(&[b"SHUTDOWN", b"NOSAVE"]);
        self.flush();
        // It answers by closing.
        let _ = self.read.read(&mut [0]);
    }
}
