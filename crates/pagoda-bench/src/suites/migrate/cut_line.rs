//! A line of TCP that is cut at chosen bytes after a switch to post-copy, and restored.
//!
//! It must never use Pagoda's code: it passes bytes on, and knows only the message of 24 bytes by
//! which a receiver reports that it runs. It cuts all connections at once, as a network does, and
//! ends no side. For a while after a cut it accepts no connection. Then it measures the time
//! without bytes from the sender.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The first bytes of the message by which a receiver says that it runs, and its length.
const RUNS: [u8; 8] = [5, 0, 0, 0, 0, 0, 0, 0];
const REPLY_BYTES: usize = 24;

/// Of a sender's bytes after a cut: the handshakes of a few channels are less.
const PROGRESS_BYTES: u64 = 8 << 10;

/// The kind of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both sides see the end of their connections.
    Ends,
    /// No byte passes any more, and no side is told.
    #[allow(dead_code, reason = "a bench does not wait for a stall, the tests of the library do")]
    Silence,
}

/// The place of a cut: so many bytes, of both directions, after the last cut or the switch.
#[derive(Clone, Debug)]
pub struct Plan {
    pub cuts: Vec<(u64, Cut)>,
    /// The time after a cut in which no connection passes.
    pub outage: Duration,
}

/// The observations of a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The number of cuts.
    pub cuts: usize,
    /// The longest time without bytes from the sender after a cut, counted from the first
    /// connection on.
    pub no_progress: Duration,
}

/// The line, and its own port.
pub struct CutLine {
    state: Arc<Mutex<State>>,
    pub port: u16,
}

struct State {
    plan: Plan,
    /// Bytes left to the next cut, from the switch on.
    left: Option<u64>,
    connections: Vec<TcpStream>,
    /// The number of cuts: connections made before the last one pass nothing.
    turn: usize,
    down_until: Instant,
    seen: Seen,
    /// Since the first connection after a cut: bytes of the sender, and the time of the last.
    since: Option<(u64, Instant)>,
}

/// The fate of bytes that arrived.
enum Pass {
    All,
    /// So many, and then nothing more of this connection.
    Some(usize),
}

impl CutLine {
    /// A line to `to`. Its threads end with its connections.
    pub fn new(to: u16, plan: Plan) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(Mutex::new(State {
            plan,
            left: None,
            connections: Vec::new(),
            turn: 0,
            down_until: Instant::now(),
            seen: Seen::default(),
            since: None,
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for sender in listener.incoming() {
                let Ok(sender) = sender else { return };
                let now = Instant::now();
                let turn = {
                    let mut state = lock(&shared);
                    if now < state.down_until {
                        continue;
                    }
                    if state.turn > 0 && state.since.is_none() {
                        state.since = Some((0, now));
                    }
                    state.turn
                };
                // The receiver may be gone for good.
                let Ok(receiver) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let _ = (sender.set_nodelay(true), receiver.set_nodelay(true));
                let handles = [&sender, &receiver, &sender, &receiver].map(TcpStream::try_clone);
                let [Ok(back_to), Ok(back_from), Ok(one), Ok(other)] = handles else { continue };
                lock(&shared).connections.extend([one, other]);
                for (from, to, is_sender) in [(sender, receiver, true), (back_from, back_to, false)] {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || forward(&shared, from, to, is_sender, turn));
                }
            }
        });
        Ok(Self { state, port })
    }

    /// The observations so far.
    pub fn seen(&self) -> Seen {
        lock(&self.state).seen
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forward(state: &Mutex<State>, mut from: TcpStream, mut to: TcpStream, is_sender: bool, turn: usize) {
    let mut buffer = vec![0; 32 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let pass = lock(state).pass(&buffer[..len], is_sender, turn);
        let passes = match pass {
            Pass::All => len,
            Pass::Some(part) => part,
        };
        let passed = to.write_all(&buffer[..passes]);
        if matches!(pass, Pass::Some(_)) {
            lock(state).cut(turn);
            return;
        }
        if passed.is_err() {
            break;
        }
    }
    // After a silent cut its other handles keep it open.
    let state = lock(state);
    if state.turn == turn {
        let _ = to.shutdown(Shutdown::Write);
    }
}

impl State {
    /// Bytes that came on a connection of `turn`.
    fn pass(&mut self, bytes: &[u8], is_sender: bool, turn: usize) -> Pass {
        if turn != self.turn {
            return Pass::Some(0);
        }
        let runs = |bytes: &[u8]| bytes.chunks(REPLY_BYTES).any(|reply| reply.starts_with(&RUNS));
        if self.left.is_none() && self.turn == 0 && !is_sender && runs(bytes) {
            self.left = self.plan.cuts.first().map(|(bytes, _)| *bytes);
        }
        if is_sender && let Some((passed, last)) = &mut self.since {
            *passed += bytes.len() as u64;
            if *passed >= PROGRESS_BYTES {
                self.seen.no_progress = self.seen.no_progress.max(last.elapsed());
                *last = Instant::now();
            }
        }
        let Some(left) = &mut self.left else { return Pass::All };
        if *left > bytes.len() as u64 {
            *left -= bytes.len() as u64;
            return Pass::All;
        }
        Pass::Some(std::mem::take(left) as usize)
    }

    /// Cuts it, if no other connection of this turn has.
    fn cut(&mut self, turn: usize) {
        if turn != self.turn {
            return;
        }
        let (_, how) = self.plan.cuts[self.turn];
        self.turn += 1;
        self.seen.cuts += 1;
        self.since = None;
        self.left = self.plan.cuts.get(self.turn).map(|(bytes, _)| *bytes);
        self.down_until = Instant::now() + self.plan.outage;
        match how {
            Cut::Ends => self.connections.drain(..).for_each(|connection| {
                let _ = connection.shutdown(Shutdown::Both);
            }),
            // They stay open, and say nothing.
            Cut::Silence => {}
        }
    }
}
