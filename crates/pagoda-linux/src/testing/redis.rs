//! A real Redis server for tests, on a port of the loopback address.

use std::fs;
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
    /// Starts it with its files in `directory` and these options; `None` and a line that says so if
    /// there is none on this machine.
    ///
    /// # Panics
    /// If it does not listen; if there is none and `PAGODA_NO_SKIPS` is set.
    #[must_use]
    pub fn start(directory: &Path, options: &[&str]) -> Option<Self> {
        // Another process may take the port before the server does; it ends then, and the next one
        // is tried.
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
            if self.is_ready() {
                return true;
            }
            assert!(start.elapsed() < START_MAX, "redis-server starts, and does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Whether this process has logged that it has all its ports. A connection says less: another
    /// server may have taken the port, and a node of a cluster that can't have its second one ends
    /// after it could be connected to.
    fn is_ready(&self) -> bool {
        let log = fs::read_to_string(log_in(&self.directory)).unwrap_or_default();
        let own = format!("{}:", self.child.id());
        log.lines().any(|line| line.starts_with(&own) && line.contains("Ready to accept connections"))
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

    /// Starts it anew after [`kill`](Self::kill), at the same address and with the files that are
    /// there.
    pub fn restart(&mut self, options: &[&str]) {
        self.child = launch(&self.directory, self.address, options).expect("it was there before");
        assert!(self.listens(), "redis-server did not start anew");
    }

    /// Its answer to a request of words: a text, a number or an error as it is, an array a line
    /// each.
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

fn log_in(directory: &Path) -> PathBuf {
    directory.join("redis.log")
}

fn launch(directory: &Path, address: SocketAddr, options: &[&str]) -> std::io::Result<Child> {
    let mut command = Command::new("redis-server");
    // SAFETY: one system call, which is all that may be done there. A test that is killed leaves no
    // server.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
        .args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""])
        .args(["--appendfsync", "always", "--logfile"])
        .arg(log_in(directory))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_can_not_have_its_ports_is_not_taken_for_another_one() {
        let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
        let Some(first) = RedisServer::start(directories[0].path(), &[]) else { return };
        let launched = |directory: &Path, address, options: &[&str]| {
            let child = launch(directory, address, options).expect("there is one");
            RedisServer { child, directory: directory.to_owned(), address }
        };
        assert!(
            !launched(directories[1].path(), first.address(), &[]).listens(),
            "it has the first one's port"
        );
        let taken = |_| {
            let bus = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let port = bus.local_addr().expect("bound").port().checked_sub(BUS_OFFSET)?;
            Some((SocketAddr::from((Ipv4Addr::LOCALHOST, port)), bus))
        };
        let (address, _bus) = (0..100)
            .filter_map(taken)
            .find(|(address, _)| TcpListener::bind(address).is_ok())
            .expect("one of a hundred is free");
        let node = launched(directories[2].path(), address, &["--cluster-enabled", "yes"]).listens();
        assert!(!node, "nodes can't reach it");
    }
}
