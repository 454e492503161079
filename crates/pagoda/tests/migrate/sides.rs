//! Both sides of a migration as processes of their own, of which one is killed while the line
//! between them holds still.
//!
//! They are this test's program again, told by its environment what to be.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pagoda::migrate::{Codec, Error, Listener, Moved};
use pagoda::{BasePage, Bytes, Manager, Region};

use crate::migrate::line::Line;
use crate::migrate::program::Program;
use crate::migrate::support::{any_port, manager};
use crate::migrate::{kills, late_kills};

const ROLE: &str = "PAGODA_TEST_ROLE";
const TO: &str = "PAGODA_TEST_TO";
const SEED: &str = "PAGODA_TEST_SEED";

pub const REGION: Bytes = Bytes::mib(6);

/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the region moves.
#[derive(Clone, Copy)]
pub enum Kind {
    PreCopy,
    PostCopy,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::PreCopy => "pre-copy",
            Self::PostCopy => "post-copy",
        }
    }
}

/// Not a test: the work of the other processes.
#[test]
fn role() {
    let seed = std::env::var(SEED).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let Ok(role) = std::env::var(ROLE) else { return };
    let kind = [Kind::PreCopy, Kind::PostCopy].into_iter().find(|kind| kind.name() == role);
    let to = std::env::var(TO).ok().map(|to| to.parse().expect("an address"));
    match (kind.expect("a role"), to) {
        (Kind::PreCopy, None) => kills::destination(),
        (Kind::PreCopy, Some(to)) => kills::source(&to, seed),
        (Kind::PostCopy, None) => late_kills::destination(seed),
        (Kind::PostCopy, Some(to)) => late_kills::source(&to, seed),
    }
}

pub fn say(what: &str) {
    println!("says {what}");
    std::io::stdout().flush().expect("said");
}

/// The manager of a side.
pub fn own_manager() -> Manager {
    manager(Bytes::mib(24), BasePage::K64)
}

/// Listens, and says where.
pub fn listen() -> Listener {
    let listener = any_port();
    say(&listener.endpoint().expect("an address").to_string());
    listener
}

/// How a source of this seed sends: its codec, and its channels.
pub fn wire(seed: u64) -> (Codec, u16) {
    (Codec::ALL[seed as usize % 4], 1 + seed as u16 % 3)
}

/// Lets `migrate` send a region that a program of this seed has filled, and prints the outcome.
pub fn send(seed: u64, migrate: impl FnOnce(&Region, &mut Program<'_>) -> Result<Moved, Error>) {
    let manager = own_manager();
    let region = manager.region(REGION).create().expect("a region");
    let mut program = Program::new(&region, seed);
    program.fill();
    region.page_out(0, region.len() / 2).expect("stored");
    match migrate(&region, &mut program) {
        Ok(_) => say("moved"),
        Err(Error::Unconfirmed) => say("unconfirmed"),
        Err(Error::AfterSwitch(_)) => say("gone"),
        Err(error) => {
            (0..2000).for_each(|_| program.step());
            assert_eq!(program.differs(&region), None, "the source after {error}");
            say(&format!("goes on: {error}"));
        }
    }
}

/// A process of a role, and its output.
pub struct Side {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Side {
    fn start(kind: Kind, to: Option<&str>, seed: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "migrate::sides::role", "--nocapture", "--test-threads=1"])
            .env(ROLE, kind.name())
            .envs(to.map(|to| (TO, to)))
            .env(SEED, seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    /// The next thing it says; None at its end.
    pub fn next(&mut self) -> Option<String> {
        self.lines.by_ref().map_while(Result::ok).find_map(|line| {
            // The harness may have begun the line.
            line.split_once("says ").map(|(_, said)| said.to_owned())
        })
    }

    fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both, and the line between them.
pub struct Pair {
    pub sender: Side,
    pub receiver: Side,
    pub line: Arc<Line>,
    seed: u64,
}

impl Pair {
    /// Starts both; the line holds still after so many bytes.
    pub fn start(kind: Kind, seed: u64, bytes: u64) -> Self {
        let mut receiver = Side::start(kind, None, seed);
        let (line, to) = Line::behind(&receiver.next().expect("an address"), bytes);
        let sender = Side::start(kind, Some(&to), seed);
        Self { sender, receiver, line, seed }
    }

    /// Kills one of them as soon as the line holds still or both are over, and lets the line go on.
    pub fn kill(&mut self, sender: bool) {
        let until = Instant::now() + PATIENCE;
        while !(self.line.held.load(Ordering::Acquire) || self.sender.is_over() && self.receiver.is_over()) {
            assert!(Instant::now() < until, "PAGODA_SEED={}: it stands still", self.seed);
            thread::sleep(Duration::from_micros(200));
        }
        let killed = if sender { &mut self.sender } else { &mut self.receiver };
        killed.child.kill().expect("killed");
        self.line.released.store(true, Ordering::Release);
    }
}
