//! Either side is killed at any byte of a live migration: the source goes on whole, and what the destination shows is whole.
//!
//! Both are processes of their own: this test's program again, told by its environment what to be.

use std::io::{BufRead, BufReader, Lines, Write};
use std::ops::ControlFlow;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pagoda::migrate::{Codec, Error, Writer, ZeroPolicy};
use pagoda::{BasePage, Bytes, Region};
use pagoda_linux::testing::random::{Random, runs};

use crate::late_kills;
use crate::line::Line;
use crate::support::{Brake, Program, any_port, digest, live_options, manager, receive_options, skip};

const ROLE: &str = "PAGODA_TEST_ROLE";
const SEED: &str = "PAGODA_TEST_SEED";
pub const REGION: Bytes = Bytes::mib(6);

/// How long anything here may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn say(what: &str) {
    println!("says {what}");
    std::io::stdout().flush().expect("said");
}

/// Not a test: what the other processes do.
#[test]
fn role() {
    let seed = std::env::var(SEED).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    match std::env::var(ROLE) {
        Ok(role) if role == "destination" => destination(),
        Ok(role) if role == "late destination" => late_kills::destination(seed),
        Ok(role) if role.starts_with("late ") => late_kills::source(&role["late ".len()..], seed),
        Ok(role) => source(&role, seed),
        Err(_) => {}
    }
}

fn destination() {
    let manager = manager(Bytes::mib(24), BasePage::K64);
    let listener = any_port();
    say(&listener.endpoint().expect("an address").to_string());
    let receiving = receive_options(ZeroPolicy::default());
    match Region::receive(&manager, listener, &receiving, &mut |_| ControlFlow::Continue(())) {
        Ok((region, _)) => say(&format!("arrived {:x}", digest(&region))),
        Err(error) => say(&format!("failed: {error}")),
    }
}

/// Stops the program, and says what it has written.
struct Announces<'a> {
    brake: &'a Brake,
    region: &'a Region,
}

impl Writer for Announces<'_> {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        let mut brake = self.brake;
        Writer::stop(&mut brake);
        say(&format!("stopped {:x}", digest(self.region)));
    }
}

fn source(to: &str, seed: u64) {
    let manager = manager(Bytes::mib(24), BasePage::K64);
    let region = manager.region(REGION).create().expect("a region");
    let mut program = Program::new(&region, seed);
    program.fill();
    region.page_out(0, region.len() / 2).expect("stored");
    let brake = Brake::default();
    let options = live_options(Codec::ALL[seed as usize % 4], 1 + seed as u16 % 3);
    let to = to.parse().expect("an address");
    let sent = thread::scope(|scope| {
        let writer = scope.spawn(|| brake.run(&mut program));
        let mut announces = Announces { brake: &brake, region: &region };
        let sent = region.migrate_to(&to, &options, &mut announces, &mut |_, _| ControlFlow::Continue(()));
        brake.stop();
        writer.join().expect("the program");
        sent
    });
    match sent {
        Ok(_) => say("moved"),
        Err(Error::Unconfirmed) => say("unconfirmed"),
        Err(error) => {
            (0..2000).for_each(|_| program.step());
            assert_eq!(program.differs(&region), None, "the source after {error}");
            say(&format!("goes on: {error}"));
        }
    }
}

/// A process of a role, and what it says.
pub struct Side {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Side {
    pub fn start(role: &str, seed: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "kills::role", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
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

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_side_that_is_killed_leaves_the_source_whole_and_no_half_of_it_at_the_destination() {
    if skip("live migrations that are killed") {
        return;
    }
    let (mut arrived, mut total) = (0, 4_000_000);
    for seed in runs(20) {
        let mut random = Random::new(seed, 0);
        let mut receiver = Side::start("destination", seed);
        let address = receiver.next().expect("an address");
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
        // Anywhere, or after the program was stopped: where the end of it is.
        let late = seed % 4 > 1;
        let at = if late { u64::MAX } else { random.below(total) as u64 };
        let (line, port) = Line::to(port, at);
        let mut sender = Side::start(&format!("tcp://127.0.0.1:{port}"), seed);
        let mut stopped = None;
        if late {
            stopped = sender.next();
            *line.left.lock().expect("no panic") =
                random.below([600, 60_000, 2_000_000][seed as usize / 4 % 3]) as u64;
        }
        let until = Instant::now() + PATIENCE;
        while !(line.held.load(Ordering::Acquire) || sender.is_over() && receiver.is_over()) {
            assert!(Instant::now() < until, "PAGODA_SEED={seed}: it stands still");
            thread::sleep(Duration::from_micros(200));
        }
        let kill_sender = seed % 2 == 0;
        let killed = if kill_sender { &mut sender } else { &mut receiver };
        killed.child.kill().expect("killed");
        line.released.store(true, Ordering::Release);
        let mut said: Vec<String> = stopped.into_iter().collect();
        said.extend(std::iter::from_fn(|| sender.next()));
        let received = receiver.next();
        let context = format!("PAGODA_SEED={seed}, killed the sender: {kill_sender}; {said:?}, {received:?}");
        let digest = said.iter().find_map(|said| said.strip_prefix("stopped "));
        let shown = received.as_deref().and_then(|said| said.strip_prefix("arrived "));
        if let Some(shown) = shown {
            arrived += 1;
            assert_eq!(Some(shown), digest, "{context}: what is shown is whole");
        }
        let last = said.last().map_or("", String::as_str);
        if !kill_sender || !line.held.load(Ordering::Acquire) {
            let ended = ["moved", "unconfirmed"].contains(&last) || last.starts_with("goes on: ");
            assert!(ended, "{context}");
        }
        if last == "moved" && !kill_sender {
            // Killed after it had confirmed, or not at all.
            assert!(digest.is_some(), "{context}");
        }
        if last.starts_with("goes on") {
            assert!(shown.is_none(), "{context}: what goes on here must not live there, too");
        }
        total = total.min(line.passed.load(Ordering::Relaxed).max(1_000_000) as usize);
    }
    println!("{arrived} arrived all the same");
}
