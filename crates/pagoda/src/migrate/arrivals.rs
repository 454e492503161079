//! Pages of a region that arrive after the switch, while it is used.
//!
//! A thread of its own receives them, for as long as the region lives. Pages that can't be received
//! any more are lost. This module must never outlive the region: the next one may have the same
//! addresses.

use std::io;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::joinable::JoinableThread;
use pagoda_linux::process::process_mark::ProcessMark;
use pagoda_migrate::{Arrivals, Counts, Error, Progress, Remaining, Wants};

use crate::engine::Engine;
use crate::error::other_process::OtherProcess;
use crate::state::owed::OwedPages;
use crate::stats::migration::Moving;
use crate::store::Scratch;

/// The known state of an arrival.
struct Told {
    /// The process that it arrives in. A forked child has no thread that would tell it anything.
    maker: ProcessMark,
    /// Set once all has arrived, or has failed.
    outcome: Mutex<Option<Result<Counts, Arc<Error>>>>,
    rings: Condvar,
}

/// The arrival of the pages that were owed of a region when it was shown.
#[derive(Clone)]
pub struct Arrival(Arc<Told>);

impl Arrival {
    /// One for which nothing is owed.
    pub(super) fn whole(counts: Counts) -> Result<Self, Error> {
        let arrival = Self(Arc::new(Told::new().map_err(Error::System)?));
        arrival.0.tell(Ok(counts));
        Ok(arrival)
    }

    /// Waits until all of the region is here.
    ///
    /// # Errors
    /// Why a part of it never will be: see [`pagoda_migrate::Error`]. A thread that touches that
    /// part gets a SIGBUS. In a forked child [`OtherProcess`](crate::OtherProcess), within
    /// [`Error::System`].
    pub fn wait(&self) -> Result<Counts, Arc<Error>> {
        self.0.check_process()?;
        let mut outcome = self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            outcome = self.0.rings.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Its outcome. None if something may still arrive.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<Counts, Arc<Error>>> {
        if let Err(error) = self.0.check_process() {
            return Some(Err(error));
        }
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Told {
    fn new() -> io::Result<Self> {
        Ok(Self { maker: ProcessMark::of_this_process()?, outcome: Mutex::default(), rings: Condvar::new() })
    }

    fn check_process(&self) -> Result<(), Arc<Error>> {
        if self.maker.is_of_this_process() {
            Ok(())
        } else {
            Err(Arc::new(Error::System(OtherProcess.into())))
        }
    }

    fn tell(&self, outcome: Result<Counts, Arc<Error>>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.rings.notify_all();
    }
}

/// The thread that receives owed pages. Dropping it ends that: pages that have not arrived are
/// lost.
pub(crate) struct Receiving {
    stop: Arc<AtomicBool>,
    begin: Option<Sender<(Box<Remaining>, Arc<OwedPages>)>>,
    thread: Option<JoinableThread>,
    told: Arc<Told>,
    owed: Option<Arc<OwedPages>>,
}

impl Receiving {
    /// Starts the thread, which waits for its work: so that it can't be missing after the switch.
    pub(super) fn start(engine: Arc<Engine>, moving: Arc<Moving>) -> io::Result<Self> {
        let (begin, begins) = channel::<(Box<Remaining>, Arc<OwedPages>)>();
        let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Told::new()?));
        let (stops, tells) = (Arc::clone(&stop), Arc::clone(&told));
        let receive = move || {
            let Ok((remaining, owed)) = begins.recv() else { return };
            let arriving = RegionArrivals { engine: &engine, owed: &owed, scratch: Mutex::default() };
            let mut look = |progress: &Progress| {
                moving.arrives(progress);
                if stops.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let received = catch_unwind(AssertUnwindSafe(|| remaining.receive(&arriving, &mut look)));
            // The waiting threads are told, whatever happened.
            let received = received.unwrap_or_else(|_| {
                Err(Error::System(io::Error::other("a thread that receives has failed")))
            });
            if received.is_err() {
                engine.lose_owed(&owed);
            } else {
                engine.owed.leave(&owed);
            }
            tells.tell(received.map_err(Arc::new));
        };
        let thread = JoinableThread::start("pagoda-arrivals", receive)?;
        Ok(Self { stop, begin: Some(begin), thread: Some(thread), told, owed: None })
    }

    /// Takes the region over from its sender, and lets the rest arrive.
    pub(crate) fn begin(
        &mut self,
        mut remaining: Box<Remaining>,
        owed: Arc<OwedPages>,
    ) -> Result<Arrival, Error> {
        self.owed = Some(Arc::clone(&owed));
        remaining.take_over()?;
        let gone = || Error::System(io::Error::other("the thread that receives has failed"));
        let begin = self.begin.take().ok_or_else(gone)?;
        begin.send((remaining, owed)).map_err(|_| gone())?;
        Ok(Arrival(Arc::clone(&self.told)))
    }

    /// Whether all is here that was owed.
    pub(crate) fn is_done(&self) -> bool {
        matches!(*self.told.outcome.lock().unwrap_or_else(PoisonError::into_inner), Some(Ok(_)))
    }

    /// The owed pages.
    pub(crate) fn owed(&self) -> Option<&OwedPages> {
        self.owed.as_deref()
    }

    /// Ends it. Returns the owed pages, some of which are lost, if not all have arrived.
    pub(crate) fn end(mut self, engine: &Engine) -> Option<Arc<OwedPages>> {
        self.stop.store(true, Ordering::Release);
        self.begin = None;
        if let Some(thread) = self.thread.take() {
            // It has told its outcome.
            let _ = thread.join();
        }
        if self.is_done() {
            return None;
        }
        let owed = self.owed.take()?;
        // It may never have begun.
        engine.lose_owed(&owed);
        Some(owed)
    }
}

/// The place where owed pages arrive.
struct RegionArrivals<'a> {
    engine: &'a Engine,
    owed: &'a OwedPages,
    /// One for each channel that is at work just now, kept for the next.
    scratch: Mutex<Vec<Scratch>>,
}

impl RegionArrivals<'_> {
    fn range(&self, offset: u64, len: usize) -> PageRange {
        PageRange::at(self.owed.range().start() + Bytes::new(offset).as_usize(), len)
    }
}

impl Arrivals for RegionArrivals<'_> {
    fn wants(&self) -> &Wants {
        &self.owed.wants
    }

    fn arrive(&self, offset: u64, content: &[u8]) -> io::Result<()> {
        let known = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = known.unwrap_or_else(|| Scratch::new(self.engine.base));
        let range = self.range(offset, content.len());
        let arrived = self.engine.arrive(range, Some(content), self.owed, &mut scratch);
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        self.owed.ring();
        arrived
    }

    fn arrive_packed(&self, offset: u64, packed: &[u8], content: &[u8]) -> io::Result<bool> {
        let range = self.range(offset, content.len());
        if self.engine.arrive_packed(range, packed, content, self.owed) {
            self.owed.ring();
            return Ok(true);
        }
        self.arrive(offset, content).map(|()| false)
    }

    fn arrive_zero(&self, range: Range<u64>) -> io::Result<()> {
        let range = self.range(range.start, Bytes::new(range.end - range.start).as_usize());
        let arrived = self.engine.arrive(range, None, self.owed, &mut Scratch::new(self.engine.base));
        self.owed.ring();
        arrived
    }
}
