//! A real Redis server for tests, on a port of the loopback address.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// How long it may take to listen, on a machine that has much else to do.
const START_MAX: Duration = Duration::from_secs(30);

/// How far above its port a server of a cluster has another one, for the other nodes.
const BUS_OFFSET: u16 = 10_000;

/// A server, which ends with this value.
pub struct RedisServer {
    child: Child,
    directory: PathBuf,
    address: SocketAddr,
}

impl RedisServer {
    /// Starts it with its files in `directory` and these options; `None` and a line that says so if there is none on this
    /// machine.
    ///
    /// # Panics
    /// If it does not listen; if there is none and `PAGODA_NO_SKIPS` is set.
    #[must_use]
    pub fn start(directory: &Path, options: &[&str]) -> Option<Self> {
        // Another process may take the port before the server does; it ends then, and the next one is tried.
        for _ in 0..100 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let address = listener.local_addr().expect("bound");
            drop(listener);
            if address.port().checked_add(BUS_OFFSET).is_none() {
                continue;
            }
            let child = match launch(directory, address, options) {
                Ok(child) => child,
                Err(error) => {
                    super::skip::skip("what needs a remote store", format!("no redis-server ({error})"));
                    return None;
                }
            };
            let mut server = Self { child, directory: directory.to_owned(), address };
            if server.listens() {
                return Some(server);
            }
        }
        panic!("redis-server does not listen; see {}", directory.display());
    }

    fn listens(&mut self) -> bool {
        let start = Instant::now();
        while self.child.try_wait().expect("a child").is_none() {
            if TcpStream::connect(self.address).is_ok() {
                return true;
            }
            assert!(start.elapsed() < START_MAX, "redis-server starts, and does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills it, as if its machine had failed.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
    }

    /// Starts it anew after [`kill`](Self::kill), at the same address and with the files that are there.
    pub fn restart(&mut self, options: &[&str]) {
        self.child = launch(&self.directory, self.address, options).expect("it was there before");
        assert!(self.listens(), "redis-server did not start anew");
    }

    /// What it answers to a request of words: a text, a number or an error as it is, an array a line each.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn ask(&self, request: &str) -> String {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(START_MAX)).expect("a time");
        (&stream).write_all(format!("{request}\r\n").as_bytes()).expect("sent");
        answer(&mut BufReader::new(stream))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child");
    }

    /// Lets it do nothing more, with its connections open.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }
    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }
}

fn answer(from: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("an answer");
    let line = line.trim_end();
    let len = || line[1..].parse::<usize>();
    match (line.as_bytes().first().expect("it did not end"), len()) {
        (b'$', Ok(len)) => {
            let mut text = vec![0; len + 2];
            from.read_exact(&mut text).expect("all of it");
            String::from_utf8(text[..len].to_vec()).expect("text")
        }
        (b'*', Ok(len)) => (0..len).map(|_| answer(from)).collect::<Vec<_>>().join("\n"),
        _ => line[1..].to_owned(),
    }
}

fn launch(directory: &Path, address: SocketAddr, options: &[&str]) -> std::io::Result<Child> {
    let log = directory.join("redis.log");
    let mut command = Command::new("redis-server");
    // SAFETY: one system call, which is all that may be done there. A test that is killed leaves no server.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
        .args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""])
        .args(["--appendfsync", "always", "--logfile"])
        .arg(&log)
        .arg("--dir")
        .arg(directory)
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
