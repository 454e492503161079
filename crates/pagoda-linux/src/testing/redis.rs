//! A real Redis server for tests, on a port of the loopback address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// How long it may take to listen, on a machine that has much else to do.
const START_MAX: Duration = Duration::from_secs(30);

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
        for _ in 0..20 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let address = listener.local_addr().expect("bound");
            drop(listener);
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
