//! The supervisor: accepts connections, keeps them, and has a handler that serves them.
//!
//! It is small, so that it has little to die of: it reads nothing that a VMM sends. Its handler may
//! die or stand still at any moment. Then another one is started and gets every connection with its
//! record. When the supervisor dies the handler serves on. This module must never wait
//! for a handler, and never read from a connection.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use pagoda_linux::io::local_socket::{Awaited, accept, pair, wait_any};
use pagoda_linux::process::thread::now_ns;

use crate::channel::{Came, Message, receive};
use crate::handler::FIRST;
use crate::record::{Count, KeptRecord, pages_of};
use crate::stats::{Stats, Sum};

/// The longest wait for something to do, in µs.
const TICK_US: u32 = 100_000;

/// Connections that are accepted at a time, so that handlers are looked at in between.
const ACCEPTED_AT_ONCE: usize = 64;

/// Pauses before a handler is started again that did not live for a second, from the first to the
/// last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// What a supervisor is given.
pub struct Options<'a> {
    /// Where VMMs connect.
    pub listener: OwnedFd,
    /// The image's length.
    pub len_bytes: u64,
    /// VMs at a time. Each takes two descriptors here and four in the handler.
    pub vms_most: usize,
    /// How long a handler may give no sign of life.
    pub patience: Duration,
    /// Starts a handler with this channel.
    pub start: &'a dyn Fn(OwnedFd) -> io::Result<Child>,
    /// Says one line to the user.
    pub say: &'a dyn Fn(&str),
}

/// What the caller wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    GoOn,
    /// To end, when each VM has all of its memory.
    Drain,
    /// To end now.
    Stop,
}

struct Kept {
    line: OwnedFd,
    record: KeptRecord,
    /// The handler of now has it.
    is_sent: bool,
}

struct Handler {
    child: Child,
    channel: OwnedFd,
    started: Instant,
    alive: Instant,
    knows_drain: bool,
}

/// Accepts and supervises; see the module.
pub struct Supervisor<'a> {
    options: Options<'a>,
    guests: BTreeMap<u64, Kept>,
    next: u64,
    handler: Option<Handler>,
    start_at: Instant,
    pause: Duration,
    drains: bool,
    ended: Sum,
    turned_away: u64,
    restarts: u64,
}

impl<'a> Supervisor<'a> {
    /// A supervisor without a guest. It starts its handler when it runs.
    #[must_use]
    pub fn new(options: Options<'a>) -> Self {
        Self {
            options,
            guests: BTreeMap::new(),
            next: FIRST,
            handler: None,
            start_at: Instant::now(),
            pause: PAUSES.0,
            drains: false,
            ended: Sum::default(),
            turned_away: 0,
            restarts: 0,
        }
    }

    /// Runs until the caller's wish is done. `look` is called at least every 100 ms.
    ///
    /// # Errors
    /// No handler could be started while there was no guest to be served.
    pub fn run(&mut self, look: &mut dyn FnMut(&Self) -> Wish) -> io::Result<()> {
        loop {
            match look(self) {
                Wish::GoOn => {}
                Wish::Drain => self.drains = true,
                Wish::Stop => {
                    self.end_handler();
                    return Ok(());
                }
            }
            if self.drains && self.guests.is_empty() {
                self.end_handler();
                return Ok(());
            }
            self.supervise()?;
            let listener = (self.options.listener.as_fd(), Awaited::Input);
            let channel = self.handler.as_ref().map(|handler| (handler.channel.as_fd(), Awaited::Input));
            let (first, second) = match (channel, self.drains) {
                (Some(channel), false) => (listener, channel),
                (Some(channel), true) => (channel, channel),
                (None, _) => (listener, listener),
            };
            let ready = wait_any([first, second], TICK_US);
            if self.handler.is_none() && ready[0].now {
                // Connections wait until there is a handler.
                std::thread::sleep(PAUSES.0);
            }
            if !self.drains {
                self.accept();
            }
            self.hear();
            self.hand_over();
        }
    }

    /// Everything that was counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let guests: Vec<Sum> =
            self.guests.iter().map(|(number, kept)| Sum::of(*number, &kept.record)).collect();
        let mut total = self.ended.clone();
        guests.iter().for_each(|guest| total.add(guest));
        Stats {
            image_bytes: self.options.len_bytes,
            connections: self.next - FIRST,
            turned_away: self.turned_away,
            restarts: self.restarts,
            vms_now: guests.len() as u64,
            total: total.stats,
            vms: guests.into_iter().map(|guest| guest.stats).collect(),
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let line = match accept(&self.options.listener) {
                Ok(Some(line)) => line,
                Ok(None) => return,
                Err(error) => {
                    (self.options.say)(&format!(
                        "no connection can be accepted ({error}); raise the limit of open files (ulimit -n)"
                    ));
                    std::thread::sleep(Duration::from_millis(100));
                    return;
                }
            };
            if self.guests.len() >= self.options.vms_most {
                self.turned_away += 1;
                if self.turned_away.is_power_of_two() {
                    (self.options.say)(&format!(
                        "turned a connection away, {} so far: there are {} VMs; allow more with --vms",
                        self.turned_away, self.options.vms_most
                    ));
                }
                continue;
            }
            match KeptRecord::create(pages_of(self.options.len_bytes)) {
                Ok(record) => {
                    record.set(Count::AcceptedNs, now_ns());
                    self.guests.insert(self.next, Kept { line, record, is_sent: false });
                    self.next += 1;
                }
                Err(error) => (self.options.say)(&format!(
                    "turned a connection away: there is no memory or descriptor for its record ({error})"
                )),
            }
        }
    }

    fn hear(&mut self) {
        let Some(handler) = &mut self.handler else { return };
        loop {
            match receive(&handler.channel) {
                Came::Nothing => return,
                Came::Message(Message::Ended(number), _) => {
                    if let Some(kept) = self.guests.remove(&number) {
                        self.ended.add(&Sum::of(number, &kept.record));
                    }
                }
                Came::Message(..) => {}
                Came::End => return self.bury(),
            }
            handler.alive = Instant::now();
        }
    }

    fn hand_over(&mut self) {
        let Some(handler) = &mut self.handler else { return };
        for (&number, kept) in self.guests.iter_mut().filter(|(_, kept)| !kept.is_sent) {
            let descriptors = [kept.line.as_fd(), kept.record.descriptor()];
            match Message::Serve(number).send(&handler.channel, &descriptors) {
                Ok(true) => kept.is_sent = true,
                // With the next tick; or its end is heard then.
                Ok(false) | Err(_) => return,
            }
        }
        if self.drains && !handler.knows_drain {
            handler.knows_drain = matches!(Message::Drain.send(&handler.channel, &[]), Ok(true));
        }
    }

    /// Ends a handler that stands still, and starts one if there is none.
    fn supervise(&mut self) -> io::Result<()> {
        if let Some(handler) = &mut self.handler
            && handler.alive.elapsed() > self.options.patience
        {
            (self.options.say)(&format!(
                "the handler gave no sign of life for {} s, and is ended",
                self.options.patience.as_secs()
            ));
            // Its channel's end is heard next.
            let _ = handler.child.kill();
            self.bury();
        }
        if self.handler.is_some() || Instant::now() < self.start_at {
            return Ok(());
        }
        let started = pair().and_then(|(channel, other)| Ok((channel, (self.options.start)(other)?)));
        match started {
            Ok((channel, child)) => {
                let now = Instant::now();
                self.handler = Some(Handler { child, channel, started: now, alive: now, knows_drain: false });
                self.hand_over();
                Ok(())
            }
            Err(error) if self.guests.is_empty() => Err(error),
            Err(error) => {
                (self.options.say)(&format!("no handler could be started ({error}); it is tried again"));
                self.rest();
                Ok(())
            }
        }
    }

    fn rest(&mut self) {
        self.start_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    /// Takes leave of a handler that has ended, or is about to.
    fn bury(&mut self) {
        let Some(mut handler) = self.handler.take() else { return };
        // One that has closed its channel and goes on would serve beside the next one.
        let _ = handler.child.kill();
        let how = handler.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        self.guests.values_mut().for_each(|kept| kept.is_sent = false);
        if self.drains && self.guests.is_empty() {
            return;
        }
        self.restarts += 1;
        (self.options.say)(&format!(
            "the handler has ended ({how}); another one takes over its {} VMs",
            self.guests.len()
        ));
        if handler.started.elapsed() > Duration::from_secs(1) {
            self.pause = PAUSES.0;
            self.start_at = Instant::now();
        } else {
            self.rest();
        }
    }

    fn end_handler(&mut self) {
        if let Some(mut handler) = self.handler.take() {
            let _ = handler.child.kill();
            let _ = handler.child.wait();
        }
    }
}
