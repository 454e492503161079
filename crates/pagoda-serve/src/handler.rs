//! The handler's process: threads for each guest that the supervisor sends, and a sign of life.
//!
//! If a guest's thread fails by an error of ours it is started anew with what the record has, as a
//! new handler would be, and after `TRIES` of these the guest is given up. So one guest never
//! ends another. If the supervisor is gone the handler serves on until its last guest has ended.
//! This module must never wait for a guest on its main thread.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use pagoda_linux::io::local_socket::{Awaited, peer_of, wait_any};
use pagoda_linux::process::thread::now_ns;

use crate::channel::{Came, Message, receive};
use crate::firecracker::look;
use crate::guest::serve::{self, End, Service};
use crate::guest::{Guest, prefetch};
use crate::record::{Count, Record, pages_of};
use crate::source::Source;
use crate::working_set::Recorder;

/// Between two signs of life. The supervisor's patience is many of these.
const ALIVE: Duration = Duration::from_millis(500);

/// How long the main thread waits for the supervisor at a time, in µs.
const TICK_US: u32 = 100_000;

/// How often a guest's thread may fail by an error of ours.
const TRIES: u32 = 3;

/// The number of the first guest that the supervisor accepts.
pub(crate) const FIRST: u64 = 1;

/// The stacks of a guest's two threads, which hold no large value.
const STACK_BYTES: usize = 256 << 10;

/// The part of an image that comes before it is touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// Nothing.
    None,
    /// The recorded working set, if the image has one.
    #[default]
    Set,
    /// The working set, and everything after it.
    All,
}

/// How guests are served.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes that a fault brings, a power of two from 4 KiB to 2 MiB.
    pub around_bytes: usize,
    /// The part of an image that comes before it is touched.
    pub prefetch: Prefetch,
    /// Whether the working set of the first guest is recorded.
    pub records: bool,
}

/// Says one line to the user.
pub type Say = fn(&str);

struct Shared {
    source: Arc<dyn Source>,
    options: Options,
    plan: Vec<Range<u64>>,
    say: Say,
    /// Set once, when guests are to be given all of their memory.
    drains: AtomicBool,
    /// Prefetches that may run now. They take a processor each, which faults want, too.
    permits: Mutex<usize>,
    freed: Condvar,
    /// Ends of guests, for the supervisor.
    ended: Sender<u64>,
}

/// Serves the guests that come over the channel, until there is none and no more can come.
pub fn run(channel: &OwnedFd, source: Arc<dyn Source>, options: Options, say: Say) {
    let plan = if options.prefetch == Prefetch::None { Vec::new() } else { source.working_set() };
    let (ended, ends) = self::channel();
    let permits = Mutex::new(thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2)));
    let (drains, freed) = (AtomicBool::new(false), Condvar::new());
    let shared = Arc::new(Shared { source, options, plan, say, drains, permits, freed, ended });
    if !shared.plan.is_empty() {
        let source = Arc::clone(&shared.source);
        let ahead = Builder::new().name("pagoda-read-ahead".to_owned());
        // Without a thread each guest reads block by block.
        let _ = ahead.spawn(move || source.read_ahead(&mut |_, _| true));
    }
    Handler { channel, shared, ends, threads: HashMap::new(), unsent: Vec::new(), is_orphan: false }.serve();
}

struct Handler<'a> {
    channel: &'a OwnedFd,
    shared: Arc<Shared>,
    ends: Receiver<u64>,
    threads: HashMap<u64, JoinHandle<()>>,
    /// Ends that the supervisor does not know yet: at most one for each guest.
    unsent: Vec<u64>,
    is_orphan: bool,
}

impl Handler<'_> {
    fn serve(&mut self) {
        let mut alive_at: Option<Instant> = None;
        loop {
            if !self.is_orphan {
                wait_any([(self.channel.as_fd(), Awaited::Input)], TICK_US);
                self.take();
                if alive_at.is_none_or(|at| at.elapsed() >= ALIVE) {
                    // Without room the supervisor has not read the last ones either.
                    let _ = Message::Alive.send(self.channel, &[]);
                    alive_at = Some(Instant::now());
                }
            } else {
                thread::sleep(Duration::from_micros(TICK_US.into()));
            }
            for guest in self.ends.try_iter() {
                // It has sent its end as the last thing.
                let _ = self.threads.remove(&guest).map(JoinHandle::join);
                self.unsent.push(guest);
            }
            let channel = self.channel;
            self.unsent.retain(|&guest| matches!(Message::Ended(guest).send(channel, &[]), Ok(false)));
            let is_last = self.is_orphan || self.shared.drains.load(Ordering::Relaxed);
            if is_last && self.threads.is_empty() && (self.unsent.is_empty() || self.is_orphan) {
                return;
            }
        }
    }

    fn take(&mut self) {
        loop {
            match receive(self.channel) {
                Came::Nothing => return,
                Came::Message(Message::Serve(number), descriptors) => self.start(number, descriptors),
                Came::Message(Message::Drain, _) => {
                    self.shared.drains.store(true, Ordering::Relaxed);
                    self.shared.freed.notify_all();
                }
                Came::Message(Message::Alive | Message::Ended(_), _) => {}
                Came::End => {
                    self.is_orphan = true;
                    if !self.threads.is_empty() {
                        (self.shared.say)(&format!(
                            "the supervisor has ended; {} VMs are served on, and no new ones",
                            self.threads.len()
                        ));
                    }
                    return;
                }
            }
        }
    }

    fn start(&mut self, number: u64, descriptors: Vec<OwnedFd>) {
        let (shared, threads) = (Arc::clone(&self.shared), &mut self.threads);
        let body = move || {
            guest_thread(&shared, number, descriptors);
            // The main thread outlives all of these.
            let _ = shared.ended.send(number);
        };
        match Builder::new().name(format!("pagoda-vm-{number}")).stack_size(STACK_BYTES).spawn(body) {
            Ok(thread) => _ = threads.insert(number, thread),
            Err(error) => {
                (self.shared.say)(&format!(
                    "VM {number} is not served: no thread could be started ({error})"
                ));
                self.unsent.push(number);
            }
        }
    }
}

fn guest_thread(shared: &Shared, number: u64, descriptors: Vec<OwnedFd>) {
    let say = |line: &str| (shared.say)(&format!("VM {number}: {line}"));
    let Ok([line, record]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return say("its descriptors did not come: the limit of open files is too low; raise it (ulimit -n)");
    };
    for _ in 0..TRIES {
        let Ok(record) = record.try_clone() else {
            return say("no descriptor is left for it; raise the limit of open files (ulimit -n)");
        };
        if catch_unwind(AssertUnwindSafe(|| serve_guest(shared, number, &line, record, &say))).is_ok() {
            return;
        }
        say("its thread failed, and is started again; please report this");
    }
    say("it is given up: its thread failed too often");
}

fn serve_guest(shared: &Shared, number: u64, line: &OwnedFd, record: OwnedFd, say: &dyn Fn(&str)) {
    let record = match Record::open(record, pages_of(shared.source.len_bytes())) {
        Ok(record) => record,
        Err(error) => return say(&format!("its record could not be mapped ({error})")),
    };
    let started_ns = now_ns();
    let (pid, process) = peer_of(line);
    let (uffd, regions) = match look(line, shared.source.len_bytes()) {
        Ok(seen) => seen,
        Err(refusal) => {
            let pid = pid.map_or(String::new(), |pid| format!(" of process {pid}"));
            return say(&format!("its connection{pid} is closed: {refusal}"));
        }
    };
    record.set(Count::Process, pid.unwrap_or(0).into());
    record.set(Count::MemoryBytes, regions.len_bytes());
    record.add(Count::Handlers, 1);
    let guest = Guest::new(uffd, line, regions, record);
    let recorder = (shared.options.records && number == FIRST).then(Recorder::default);
    let service = Service {
        guest: &guest,
        source: &*shared.source,
        around_bytes: shared.options.around_bytes,
        recorder: recorder.as_ref(),
        say,
    };
    let end = thread::scope(|scope| {
        let body = || prefetch_thread(shared, &guest, started_ns);
        let prefetch = Builder::new().name(format!("pagoda-ahead-{number}")).stack_size(STACK_BYTES);
        let prefetch = prefetch.spawn_scoped(scope, body);
        if let Err(error) = &prefetch {
            say(&format!("nothing is prefetched: no thread could be started ({error})"));
        }
        // Also when it fails: the scope waits for the prefetch.
        let end = catch_unwind(AssertUnwindSafe(|| serve::run(&service, line, process.as_ref())));
        serve::stop(&guest);
        shared.freed.notify_all();
        end
    });
    if let Some(recorder) = recorder {
        let touches = recorder.touches();
        match shared.source.keep_working_set(&touches) {
            Ok(()) => say(&format!("its working set of {} touches was recorded", touches.len())),
            Err(error) => say(&error.to_string()),
        }
    }
    match end {
        Ok(End::Gone | End::Asked) => {}
        Ok(End::Unserved(why)) => say(&format!("its connection is closed: {why}")),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn prefetch_thread(shared: &Shared, guest: &Guest, started_ns: u64) {
    let source = &*shared.source;
    if !guest.is_independent() {
        let _permit = Permit::wait(shared, guest);
        if !shared.plan.is_empty() && prefetch::run(guest, source, shared.plan.iter().cloned()) {
            prefetch::note(guest, started_ns);
        }
        if shared.options.prefetch == Prefetch::All {
            prefetch::run_all(guest, source);
        }
    }
    let mut permits = shared.permits.lock().unwrap_or_else(PoisonError::into_inner);
    while !guest.is_ending() && !shared.drains.load(Ordering::Relaxed) {
        let waited = shared.freed.wait_timeout(permits, Duration::from_secs(1));
        permits = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(permits);
    if guest.is_ending() {
        return;
    }
    let _permit = Permit::wait(shared, guest);
    if guest.is_independent() || prefetch::run_all(guest, source) && guest.release() {
        serve::stop(guest);
    } else if !guest.is_ending() {
        (shared.say)("a VM can't be given all of its memory, and is served until it ends");
    }
}

/// The right to run a prefetch now.
struct Permit<'a>(&'a Shared);

impl<'a> Permit<'a> {
    fn wait(shared: &'a Shared, guest: &Guest) -> Option<Self> {
        let mut permits = shared.permits.lock().unwrap_or_else(PoisonError::into_inner);
        while *permits == 0 {
            if guest.is_ending() {
                return None;
            }
            let waited = shared.freed.wait_timeout(permits, Duration::from_secs(1));
            permits = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *permits -= 1;
        Some(Self(shared))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.permits.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_all();
    }
}
