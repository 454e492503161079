//! A Redis server at a socket and a client of it: requests, and replies that are read as they are expected.
//!
//! Any reply that is another one is an error: nobody may count a request whose answer was wrong.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::measure::process::{Cancel, Running};

/// Requests on their way at a time, where many are.
pub const PIPELINE: usize = 64;

/// The command line of a server at a socket, which never saves unasked.
pub fn server(directory: &Path, socket: &Path) -> Vec<String> {
    let [directory, at] = [directory, socket].map(|path| path.display().to_string());
    let server = ["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--dir", &directory];
    server.into_iter().chain(["--unixsocket", &at]).map(str::to_owned).collect()
}

/// A key as the server knows it, and as redis-benchmark names it.
pub fn name(key: u64) -> Vec<u8> {
    format!("key:{key:012}").into_bytes()
}

/// One connection.
pub struct Client {
    read: BufReader<UnixStream>,
    write: BufWriter<UnixStream>,
}

impl Client {
    /// Connects to a server that was started just now, as soon as it listens. An answer that takes longer than `limit` is an
    /// error.
    pub fn connect(
        socket: &Path,
        limit: Duration,
        server: &mut Running,
        cancel: &Cancel,
    ) -> anyhow::Result<Self> {
        let start = Instant::now();
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(limit))?;
                    let read = BufReader::new(stream.try_clone()?);
                    return Ok(Self { read, write: BufWriter::new(stream) });
                }
                Err(error) if start.elapsed() > Duration::from_secs(10) || server.ended() => {
                    return Err(error).context("the server does not listen");
                }
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
            cancel.check()?;
        }
    }

    /// A request, to be sent with the next flush.
    pub fn send(&mut self, words: &[&[u8]]) -> anyhow::Result<()> {
        write!(self.write, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.write, "${}\r\n", word.len())?;
            self.write.write_all(word)?;
            self.write.write_all(b"\r\n")?;
        }
        Ok(())
    }

    /// Sends what was not sent yet.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.write.flush()?)
    }

    /// A request, sent at once.
    pub fn ask(&mut self, words: &[&[u8]]) -> anyhow::Result<()> {
        self.send(words)?;
        Ok(self.write.flush()?)
    }

    /// Sets all these keys.
    pub fn set_all(
        &mut self,
        pairs: impl IntoIterator<Item = (u64, Vec<u8>)>,
        cancel: &Cancel,
    ) -> anyhow::Result<()> {
        let mut pairs = pairs.into_iter();
        loop {
            cancel.check()?;
            let mut sent = 0;
            for (key, value) in pairs.by_ref().take(PIPELINE) {
                self.send(&[b"SET", &name(key), &value])?;
                sent += 1;
            }
            if sent == 0 {
                return Ok(());
            }
            self.flush()?;
            for _ in 0..sent {
                self.expect("+OK")?;
            }
        }
    }

    /// Reads a reply's line.
    pub fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.read.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Reads a reply that is one line, and compares it.
    pub fn expect(&mut self, reply: &str) -> anyhow::Result<()> {
        let line = self.line()?;
        if line != reply {
            bail!("the server answered {line:?}, not {reply}");
        }
        Ok(())
    }

    /// Reads a reply that is a value.
    pub fn bulk(&mut self) -> anyhow::Result<Vec<u8>> {
        let line = self.line()?;
        let length: usize = line
            .strip_prefix('$')
            .and_then(|length| length.parse().ok())
            .with_context(|| format!("the server answered {line:?}"))?;
        let mut content = vec![0; length + 2];
        self.read.read_exact(&mut content)?;
        content.truncate(length);
        Ok(content)
    }

    /// Whether it still saves, and whether the last save went well.
    pub fn saving(&mut self) -> anyhow::Result<(bool, bool)> {
        self.ask(&[b"INFO", b"persistence"])?;
        let text = String::from_utf8_lossy(&self.bulk()?).into_owned();
        let has = |line: &str| text.lines().any(|other| other == line);
        Ok((!has("rdb_bgsave_in_progress:0"), has("rdb_last_bgsave_status:ok")))
    }
}
