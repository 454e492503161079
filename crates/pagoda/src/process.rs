//! The engine of a whole process, which the preload library makes.
//!
//! It runs on raw threads that the program can't see, uses the kernel's count of the whole process,
//! and never ends. This module must never use anything that needs a thread of the C library.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagoda_core::budget;
use pagoda_core::size::Bytes;
use pagoda_linux::arena::Adoption;
use pagoda_linux::mem::guards;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::wiped::WipedReader;
use pagoda_linux::process::offer::{Lent, Stream};
use pagoda_linux::process::rights;
use pagoda_linux::process::tcb::ThreadLayout;
use pagoda_linux::process::thread::{now_ns, sleep_us, spawn_raw};
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::procfs::statm::StatmReader;
use pagoda_linux::uffd::Uffd;

use crate::assemble::{Owner, Policies, assemble, handler_count};
use crate::config::Config;
use crate::engine::Engine;
use crate::error::{Errno, StartError, StopReason};
pub use crate::fork::inflight::Fork;
use crate::stats::counters::{Counter, Counters};
use crate::stats::trace::Tracer;
use crate::store::Scratch;
use crate::threads::watcher::Watcher;
use crate::tree::{ShareKeeper, place};

/// How long a remote store keeps pages that are not renewed, where `pagoda run` deletes them once
/// their engine has ended: a program may be stopped for so long.
const LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a core dump waits at most: 12 GiB of a file at 200 MiB/s.
const CORE_WAIT_NS: u64 = 60_000_000_000;

/// The engine of a whole process, for the preload library.
pub struct ProcessEngine {
    engine: Arc<Engine>,
}

impl ProcessEngine {
    /// Makes the engine, on the calling thread's descriptors: call it on a raw thread with a table
    /// of its own. `layout` was measured on a thread of the program. The tables are made for the
    /// whole budget of `config`, which the process may come to have; `keeper` tells its current
    /// share. `is_child`: it was forked, and shares memory. `of_parent`: the descriptor that its
    /// parent offers to it, if it does.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is managed then.
    #[expect(clippy::too_many_arguments, reason = "all that is known of a process")]
    pub fn prepare(
        config: &Config,
        keeper: ShareKeeper,
        is_child: bool,
        counters: Arc<Counters>,
        adoption: &Adoption,
        of_parent: Option<Uffd>,
        layout: Option<ThreadLayout>,
        stop_hook: fn(StopReason) -> !,
    ) -> Result<PreparedEngine, StartError> {
        let policies = Policies::default();
        let takes_over = of_parent.is_some();
        let mut engine =
            assemble(config, counters, Owner::Process(of_parent), adoption, policies, stop_hook)?;
        // The memory that it takes over is registered.
        if takes_over && !engine.open_to_forks() {
            return Err(StartError::AddressSpace(Errno::NONE));
        }
        if let Some(path) = &config.trace {
            // A program is not ended for a trace that it has no part in; `pagoda run` says so.
            engine.trace = Tracer::open(path).inspect_err(|_| engine.counters.add(Counter::Untraced, 1)).ok();
        }
        engine.set_budget(keeper.share());
        engine.has_forked.store(is_child, Ordering::Release);
        if is_child {
            engine.hold_writes_after(0);
        }
        let proc_error = |error: io::Error| StartError::Proc(Errno::from(&error));
        let mut watcher = Watcher::new(layout, keeper, engine.fork_events).map_err(proc_error)?;
        // Before the program goes on, where there is too little room from the beginning: the
        // watcher looks later. Memory that is taken over is registered, and parts of it are
        // evicted.
        let roomy = !takes_over && !engine.zones.are_several();
        watcher.bound_huge_pages(roomy && budget::keeps_huge(engine.free(), &engine.marks()));
        let count = StatmReader::new().map_err(proc_error)?;
        guards::expect();
        engine.placement.turn_on();
        engine.wiped = Some(Mutex::new(WipedReader::new().map_err(proc_error)?));
        let custody = config.counters.as_deref().map(place::custody_of);
        let engine = Arc::new(engine);
        engine.begin_to_help();
        Ok(PreparedEngine { engine, watcher, count, custody })
    }

    /// A thread is about to fork. May wait for as long as another thread's fork(2) takes.
    #[must_use]
    pub fn begin_fork(&self) -> Fork {
        self.engine.begin_fork()
    }

    /// A fork that [`Passes`](Fork::Passes) is over, in the parent: there was one, or it failed.
    pub fn fork_passed(&self, has_forked: bool) {
        self.engine.fork_passed(has_forked);
    }

    /// A fork that was announced has failed.
    pub fn take_back_announcement(&self) {
        self.engine.take_back_announcement();
    }

    /// After an announced fork, in the parent: waits until the children of all forks that were
    /// announced so far have their swapped-out pages. That takes as long as copying them, unless a
    /// child takes them over as they are stored.
    pub fn wait_until_forks_are_served(&self) {
        self.engine.wait_until_forks_are_served();
    }

    /// Whether any of the program's memory is registered. Else it is only followed, and the kernel
    /// tells nothing of it.
    #[must_use]
    pub fn has_registered(&self) -> bool {
        self.engine.has_registered()
    }

    /// Whether a fork was announced, and its child is not known yet.
    #[must_use]
    pub fn is_fork_announced(&self) -> bool {
        self.engine.is_fork_announced()
    }

    /// Ends this process for a reason that its counters tell.
    pub fn stop(&self, reason: StopReason) -> ! {
        self.engine.stop(reason)
    }

    /// The calling thread of the program is about to look at its processors, to change them, or to
    /// make something that inherits them: it runs on its own ones until then, and for some
    /// milliseconds after. Waits for a handler that lets it go at the same moment.
    pub fn let_go_of_processor(&self) {
        self.engine.placement.let_go_caller();
    }

    /// The same, until [`leave_call`](Self::leave_call).
    pub fn enter_call(&self) {
        self.engine.placement.enter_call();
    }

    /// The call is over.
    pub fn leave_call(&self) {
        self.engine.placement.leave_call();
    }

    /// The bytes that a child has to be given, and holds until its own engine has evicted them.
    #[must_use]
    pub fn out_bytes(&self) -> Bytes {
        self.engine.out_bytes()
    }

    /// Whether a child takes that over as it is stored.
    #[must_use]
    pub fn hands_over(&self) -> bool {
        self.engine.hands_over()
    }

    /// Has the watcher bring everything back and end the management.
    pub fn request_release(&self) {
        self.engine.release_requested.store(true, Ordering::Release);
    }

    /// Brings everything back, ends the management, and returns when that is done.
    pub fn release(&self) {
        self.request_release();
        while !self.engine.release_done.load(Ordering::Acquire) {
            sleep_us(200);
        }
    }

    /// Brings everything back for a core dump, which shows pages that are out as zeroes, and ends
    /// the management. Waits for it, a minute at most, and not where the machine lacks the room.
    /// For a signal handler: it allocates nothing and takes no lock.
    pub fn bring_back_for_core(&self) {
        self.engine.core.is_requested.store(true, Ordering::Release);
        let until_ns = now_ns() + CORE_WAIT_NS;
        while !self.engine.is_core_settled() {
            if now_ns() > until_ns {
                self.engine.counters.add(Counter::CoresLeftOut, 1);
                return;
            }
            sleep_us(200);
        }
    }

    /// As [`release`](Self::release), and ends the engine's threads: they are gone a tenth of a
    /// second later.
    pub fn end(&self) {
        self.release();
        self.engine.quit.store(true, Ordering::Release);
        self.engine.bell.ring();
        self.engine.quit_handlers.store(true, Ordering::Release);
        self.engine.end_workers();
    }

    /// Brings `range` back and ends its management, then runs `register`, by which the program
    /// registers it with a userfaultfd of its own. False, and `register` did not run, if other
    /// threads were in the way for too long.
    pub fn while_given_back(&self, range: PageRange, register: impl FnOnce()) -> bool {
        self.engine.while_given_back(range, register)
    }

    /// The pins; see [`Pins`](crate::state::pins::Pins).
    #[must_use]
    pub fn pins(&self) -> &crate::state::pins::Pins {
        &self.engine.pins
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.engine.counters
    }
}

/// The engine of a whole process whose threads do not run yet.
pub struct PreparedEngine {
    engine: Arc<Engine>,
    watcher: Watcher,
    count: StatmReader,
    custody: Option<PathBuf>,
}

impl PreparedEngine {
    /// Takes over all swapped-out pages of its parent, whose offer it has accepted. Blocks until
    /// the parent has sent them. Pages that are `lent` are read from the parent's file for as long
    /// as this process lives, and so long the stream stays open.
    ///
    /// # Errors
    /// The parent is gone, or there is no room: this process can't go on.
    pub fn take_over(&mut self, stream: Stream, lent: Option<Lent>) -> io::Result<()> {
        let mut present = PagemapScanner::new()?;
        self.engine.take_over(&Arc::new(stream), lent, &mut present, &mut Scratch::new(self.engine.base))
    }

    /// Ends this process for a reason that its counters tell.
    pub fn stop(&self, reason: StopReason) -> ! {
        self.engine.stop(reason)
    }

    /// Starts the threads. The watcher runs on the calling thread afterwards, by
    /// [`ProcessWatcher::run`].
    ///
    /// # Errors
    /// [`StartError::Threads`].
    pub fn start(self) -> Result<(ProcessEngine, ProcessWatcher), StartError> {
        let Self { engine, watcher, count, custody } = self;
        // Not before: where a child does not take over, its parent ends its registration by closing
        // its descriptor. Without a copy elsewhere the process runs as well.
        let note = engine.store.remote_name().unwrap_or_default();
        if custody.is_some_and(|at| engine.space.entrust(&at, note).is_ok()) {
            engine.store.lease_for(LEASE);
        }
        let thread_error = |error: io::Error| StartError::Threads(Errno::from(&error));
        for id in 0..handler_count() {
            let engine = Arc::clone(&engine);
            let mut scratch = Scratch::new(engine.base);
            let body = Box::new(move || {
                rights::give_up();
                engine.handle(id, &mut scratch);
            });
            spawn_raw(c"pagoda-handler", body).map_err(thread_error)?;
        }
        let reclaimer = Arc::clone(&engine);
        let mut scratch = Scratch::new(engine.base);
        let body = Box::new(move || {
            rights::give_up();
            reclaimer.reclaim(Some(&count), None, &mut scratch);
        });
        spawn_raw(c"pagoda-reclaim", body).map_err(thread_error)?;
        for shard in 0..engine.store.releases().shards() {
            let engine = Arc::clone(&engine);
            let body = Box::new(move || {
                pagoda_linux::process::thread::raise_priority();
                rights::give_up();
                engine.work_on_releases(shard);
            });
            spawn_raw(c"pagoda-release", body).map_err(thread_error)?;
        }
        let keeper = Arc::clone(&engine);
        let body = Box::new(move || {
            rights::give_up();
            keeper.store.keep(&keeper.quit_handlers);
        });
        spawn_raw(c"pagoda-keep", body).map_err(thread_error)?;
        engine
            .counters
            .set(crate::stats::counters::Counter::Status, crate::stats::counters::Status::Managed as u64);
        Ok((ProcessEngine { engine: Arc::clone(&engine) }, ProcessWatcher { engine, watcher }))
    }
}

/// The watcher of a process's engine, ready to run.
pub struct ProcessWatcher {
    engine: Arc<Engine>,
    watcher: Watcher,
}

impl ProcessWatcher {
    /// Swaps in `range`, which is pinned, and waits for it. Meanwhile it goes on asking for this
    /// process's share of the tree's budget, because no other thread does.
    pub fn touch_pinned(&mut self, range: PageRange) {
        self.engine.touch_pinned(range, &mut self.watcher);
    }

    /// Watches for good.
    pub fn run(mut self) {
        rights::give_up();
        self.engine.watch(&mut self.watcher);
    }
}
