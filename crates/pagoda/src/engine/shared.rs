//! The engine behind a library's handles, with its threads, for the process that made it.
//!
//! All handles (managers, regions, mapped files) reach their engine through [`Shared::engine`],
//! which refuses in a forked child. A child inherits the handles, but neither the threads nor the
//! regions, and its copies of descriptors and server connections act on what the parent uses. So in
//! a child nothing of an engine is called, locked, joined, or dropped. This module must never let a
//! child reach its parent's engine.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use pagoda_core::page::BasePage;
use pagoda_linux::process::joinable::JoinableThread;
use pagoda_linux::process::process_mark::ProcessMark;
use pagoda_linux::uffd::Mode;
use pagoda_linux::uffd::fault_signal::Registration;

use crate::engine::Engine;
use crate::error::other_process::OtherProcess;
use crate::error::{Errno, StartError};
use crate::state::helpers::HELPERS;
use crate::store::Scratch;

/// The name of the thread that reclaims.
pub(crate) const RECLAIMER: &str = "pagoda-reclaim";

impl From<OtherProcess> for std::io::Error {
    fn from(error: OtherProcess) -> Self {
        Self::new(std::io::ErrorKind::PermissionDenied, error)
    }
}

/// An engine with the threads that run it; the threads end with the last owner.
pub(crate) struct Shared {
    maker: ProcessMark,
    engine: Arc<Engine>,
    threads: Mutex<Vec<JoinableThread>>,
    /// Where faults are served in their own threads.
    _registration: Option<Registration>,
    /// Faults of system calls and of KVM are served, too.
    serves_the_kernel: bool,
}

impl Shared {
    pub(crate) fn new(
        maker: ProcessMark,
        engine: Arc<Engine>,
        registration: Option<Registration>,
        mode: Mode,
    ) -> Self {
        let serves_the_kernel = mode == Mode::Full;
        Self {
            maker,
            engine,
            threads: Mutex::new(Vec::new()),
            _registration: registration,
            serves_the_kernel,
        }
    }

    /// Whether faults that the kernel has in a region are served.
    pub(crate) fn serves_the_kernel(&self) -> bool {
        self.serves_the_kernel
    }

    /// The engine.
    ///
    /// # Errors
    /// In any process but the one that made it.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, OtherProcess> {
        if self.maker.is_of_this_process() { Ok(&self.engine) } else { Err(OtherProcess) }
    }

    /// The engine, for its own threads and for callers that have asked [`engine`](Self::engine):
    /// both are in the maker.
    pub(crate) fn engine_of_maker(&self) -> &Arc<Engine> {
        debug_assert!(self.maker.is_of_this_process(), "a forked child never gets here");
        &self.engine
    }

    /// Starts a thread of the engine.
    pub(crate) fn spawn(
        &self,
        name: &str,
        base: BasePage,
        body: impl FnOnce(&Arc<Engine>, &mut Scratch) + Send + 'static,
    ) -> Result<(), StartError> {
        let engine = Arc::clone(self.engine_of_maker());
        let run = move || {
            pagoda_linux::process::thread::block_signals_for_good();
            body(&engine, &mut Scratch::new(base));
        };
        let thread = JoinableThread::start(name, run);
        let thread = thread.map_err(|error| StartError::Threads(Errno::from(&error)))?;
        self.threads.lock().expect("nothing panics with this lock held").push(thread);
        Ok(())
    }

    /// Starts the helpers, unless they have been started.
    pub(crate) fn start_helpers(&self) -> Result<(), StartError> {
        let engine = self.engine_of_maker();
        if !engine.helpers.are_to_start() {
            return Ok(());
        }
        for started in 0..HELPERS {
            let spawned = self.spawn("pagoda-ahead", engine.base, |engine, scratch| {
                scratch.taker = engine.zones.new_taker();
                engine.helpers.help(scratch, |range, scratch| {
                    engine.prefetch(range, scratch);
                });
            });
            // Fewer do the same work.
            if let Err(error) = spawned
                && started == 0
            {
                engine.helpers.did_not_start();
                return Err(error);
            }
        }
        Ok(())
    }

    /// How many threads of this name were started.
    #[cfg(test)]
    pub(crate) fn count_threads(&self, name: &str) -> usize {
        let threads = self.threads.lock().expect("nothing panics with this lock held");
        threads.iter().filter(|thread| thread.name() == name).count()
    }

    /// Waits for the ends of threads with these names, which were told to end.
    #[cfg(test)]
    pub(crate) fn join_threads(&self, names: &[&str]) {
        let mut threads = self.threads.lock().expect("nothing panics with this lock held");
        let (ending, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *threads).into_iter().partition(|thread| names.contains(&thread.name()));
        *threads = rest;
        drop(threads);
        ending.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.engine().is_err() {
            // Neither joined nor detached: the C library of a child has reused their control
            // blocks. And the engine keeps an owner for good, so that it is never dropped here. A
            // registration knows its process itself.
            std::mem::forget(threads);
            std::mem::forget(Arc::clone(&self.engine));
            return;
        }
        self.engine.quit.store(true, Ordering::Release);
        self.engine.bell.ring();
        self.engine.clear_bell.ring();
        self.engine.publish_bell.ring();
        self.engine.helpers.quit();
        // The reclaimer may wait for a handler, so that those end when it has. A thread that
        // panicked has ended the process already.
        let is_reclaimer = |thread: &JoinableThread| thread.name() == RECLAIMER;
        let reclaimer = threads.iter().position(is_reclaimer).map(|at| threads.swap_remove(at).join());
        self.engine.quit_handlers.store(true, Ordering::Release);
        self.engine.store.keeper.ring();
        self.engine.end_workers();
        drop(reclaimer);
        for thread in threads {
            let _ = thread.join();
        }
        // After a panic of the program's own this would only hide it.
        if !std::thread::panicking() {
            self.engine.assert_released();
        }
    }
}
