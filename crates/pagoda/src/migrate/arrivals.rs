//! What arrives for a region after the switch, while it is used.
//!
//! A thread of its own receives it, for as long as the region lives. Each page is put in place with its entry's busy bit
//! held, by a move or a copy that wakes whoever waits there, and is owed no longer from then on. This module must never write
//! through the region's address: what is there may be the program's.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use pagoda_core::entry::{Backing, Granules, Word};
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::range::PageRange;
use pagoda_linux::thread::yield_now;
use pagoda_linux::uffd::{Progress, Stop};
use pagoda_migrate::{Arrivals, Counts, Error, Remaining, Wants};

use crate::engine::Engine;
use crate::owed::OwedPages;
use crate::store::Scratch;
use crate::table::{give, try_take};

/// What is known of an arrival.
#[derive(Default)]
struct Told {
    /// Set once all has arrived, or has failed.
    outcome: Mutex<Option<Result<Counts, Arc<Error>>>>,
    rings: Condvar,
}

/// The arrival of what was owed of a region when it was shown.
#[derive(Clone)]
pub struct Arrival(Arc<Told>);

/// A part of a region that will never arrive: its sender was lost, or the connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a part of what was to be read is lost with the host that it was on; close the region, and start again from what was saved"
)]
pub struct Lost;

impl Arrival {
    /// One for which nothing is owed.
    pub(super) fn whole(counts: Counts) -> Self {
        let arrival = Self(Arc::default());
        arrival.0.tell(Ok(counts));
        arrival
    }

    /// Waits until all of the region is here.
    ///
    /// # Errors
    /// Why a part of it never will be: see [`pagoda_migrate::Error`]. Who touches that part gets a SIGBUS.
    pub fn wait(&self) -> Result<Counts, Arc<Error>> {
        let mut outcome = self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            outcome = self.0.rings.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What came of it. None if something may still arrive.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<Counts, Arc<Error>>> {
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Told {
    fn tell(&self, outcome: Result<Counts, Arc<Error>>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.rings.notify_all();
    }
}

/// The thread that receives what is owed. Dropping it ends that: what has not arrived is lost.
pub(crate) struct Receiving {
    stop: Arc<AtomicBool>,
    begin: Option<Sender<(Box<Remaining>, Arc<OwedPages>)>>,
    thread: Option<JoinHandle<()>>,
    told: Arc<Told>,
    owed: Option<Arc<OwedPages>>,
}

impl Receiving {
    /// Starts the thread, which waits for what it is to receive: so that it can't be missing after the switch.
    pub(super) fn start(engine: Arc<Engine>) -> io::Result<Self> {
        let (begin, begins) = channel::<(Box<Remaining>, Arc<OwedPages>)>();
        let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::<Told>::default());
        let (stops, tells) = (Arc::clone(&stop), Arc::clone(&told));
        let receive = move || {
            let Ok((remaining, owed)) = begins.recv() else { return };
            let arriving = RegionArrivals { engine: &engine, owed: &owed, scratch: Mutex::default() };
            let received = remaining.receive(&arriving, &mut |_| {
                if stops.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if received.is_err() {
                engine.lose_owed(&owed);
            } else {
                engine.owed.leave(&owed);
            }
            tells.tell(received.map_err(Arc::new));
        };
        let thread = Builder::new().name("arrivals".to_owned()).spawn(receive)?;
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

    /// What is owed.
    pub(crate) fn owed(&self) -> Option<&OwedPages> {
        self.owed.as_deref()
    }

    /// Ends it.
    pub(crate) fn end(&mut self, engine: &Engine) {
        self.stop.store(true, Ordering::Release);
        self.begin = None;
        if let Some(thread) = self.thread.take() {
            // It has told what it knows.
            let _ = thread.join();
        }
        if let Some(owed) = &self.owed
            && !self.is_done()
        {
            engine.owed.leave(owed);
        }
    }
}

/// Where what is owed arrives.
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

    fn arrive_packed(&self, offset: u64, packed: &[u8], content: &[u8]) -> io::Result<()> {
        let range = self.range(offset, content.len());
        if self.engine.arrive_packed(range, packed, content, self.owed) {
            self.owed.ring();
            return Ok(());
        }
        self.arrive(offset, content)
    }

    fn arrive_zero(&self, range: Range<u64>) -> io::Result<()> {
        let range = self.range(range.start, Bytes::new(range.end - range.start).as_usize());
        let arrived = self.engine.arrive(range, None, self.owed, &mut Scratch::new(self.engine.base));
        self.owed.ring();
        arrived
    }
}

/// What came of putting pages in place, from the first on.
enum Step {
    /// So many bytes are done.
    Done(usize),
    /// Someone else has the entry, or an event is unread: again in a moment.
    Again,
    /// There is no frame.
    NoMemory,
}

impl Engine {
    /// Puts what arrives for the owed pages of `range` in place: `content`, or zeroes if there is none. What is not owed any more
    /// was discarded meanwhile, and stays as it is.
    fn arrive(
        &self,
        range: PageRange,
        content: Option<&[u8]>,
        owed: &OwedPages,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = PageRange::new(range.start() + done, range.end()) {
            match self.arrive_next(rest, content.map(|content| &content[done..]), owed)? {
                Step::Done(bytes) => done += bytes,
                Step::Again => yield_now(),
                Step::NoMemory => self.make_room(scratch)?,
            }
        }
        self.note_use();
        Ok(())
    }

    /// The same for the first pages, as many as go together.
    fn arrive_next(&self, range: PageRange, content: Option<&[u8]>, owed: &OwedPages) -> io::Result<Step> {
        let table = self.gate_shared();
        if table.order.deferred() > 0 {
            return Ok(Step::Again);
        }
        // Unmapped meanwhile.
        let Some(span) = table.find(range.start()) else { return Ok(Step::Done(OS_PAGE)) };
        let Some(within) = span.range().intersection(range) else { return Ok(Step::Done(OS_PAGE)) };
        let page = span.page(table.page_at(span, range.start()).index, within, table.entry_bytes());
        let entry = span.entry(page.index);
        let Some(word) = try_take(entry) else { return Ok(Step::Again) };
        let (granule, still) = (page.granule_of(range.start()), self.owed_granules(&page));
        if !still.has(granule) {
            give(entry, word);
            let gone = page.granules.without(still).run_around(granule);
            return Ok(Step::Done(gone.count() as usize * OS_PAGE));
        }
        let run = still.run_around(granule);
        let here = PageRange::at(range.start(), run.count() as usize * OS_PAGE);
        let Some(content) = content else {
            owed.remove(here);
            give(entry, word);
            // Whoever waits faults again, and finds a page that nobody has written.
            self.space.wake(here);
            return Ok(Step::Done(here.len()));
        };
        let Some(placed) = self.place_owed(here, &content[..here.len()]) else {
            give(entry, word);
            return Ok(Step::NoMemory);
        };
        let now = Granules::range(granule, granule + (placed.bytes / OS_PAGE) as u32);
        let after = word.with_resident(word.resident().or(now));
        if placed.bytes > 0 {
            owed.remove(PageRange::at(here.start(), placed.bytes));
            self.ledger.resident(placed.bytes as i64);
            self.ledger.changed(word, after);
        }
        give(entry, after);
        match placed.stop {
            _ if placed.bytes > 0 => Ok(Step::Done(placed.bytes)),
            None | Some(Stop::Again) => Ok(Step::Again),
            Some(Stop::NoMemory) => Ok(Step::NoMemory),
            // Nobody else fills what is owed: there is something that nobody knows of.
            Some(stop) => Err(io::Error::other(format!("the kernel did not take an owed page ({stop:?})"))),
        }
    }

    /// Puts pages of one entry in place: into fresh memory, or within what the budget has. None if there is no frame.
    fn place_owed(&self, here: PageRange, content: &[u8]) -> Option<Progress> {
        if self.is_released() || self.ledger.room_bytes() >= here.len() as u64 {
            let copied = self.space.fill_with(here, content);
            self.ledger.took(copied.bytes as i64);
            return Some(copied);
        }
        let page = PageRange::page(here.start());
        self.zone.place_page(&self.space, &content[..OS_PAGE], self.may_use_frames(), |slot, offset| {
            let progress = self.space.fill(page, slot, offset);
            (progress.stop.is_none(), progress)
        })
    }

    /// Stores what arrives packed for a base page of which all is owed. False if it is to be put in place.
    fn arrive_packed(&self, range: PageRange, packed: &[u8], content: &[u8], owed: &OwedPages) -> bool {
        let table = self.gate_shared();
        let Some(span) = table.find(range.start()) else { return false };
        let page = table.page_at(span, range.start());
        let all = Granules::range(0, (self.entry_bytes() / OS_PAGE) as u32);
        let is_whole = page.addresses(0, 1).start() == range.start()
            && page.granules == all
            && content.len() == self.entry_bytes();
        let Some(word) = is_whole.then(|| try_take(span.entry(page.index))).flatten() else { return false };
        let is_free = word == Word::EMPTY && self.owed_granules(&page) == all;
        let put = if is_free { self.store.put_packed(packed, content) } else { Ok(None) };
        // A full store says so when it has to take what is written.
        let Ok(Some(handle)) = put else {
            give(span.entry(page.index), word);
            return false;
        };
        self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
        owed.remove(range);
        give(span.entry(page.index), word.with_backing(Backing::Handle(handle.to_bits())));
        self.space.wake(range);
        true
    }
}
