//! Owed pages of shared memory, which arrive while it is used.
//!
//! An owed page is a hole of the file. A thread that touches it by the registered mapping waits,
//! and its fault leaves a request, as of a region. Content is put into the hole by the kernel,
//! page by page and only if it still is one; the mark goes after that, and then the thread is
//! woken. A hole that is not owed is zero. This module must never put anything but its content
//! into an owed page, nor let the mapping go before its owed pages are filled or poisoned.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagoda_core::migrate::geometry::STRIPE_PAGES;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::process_mark::ProcessMark;
use pagoda_linux::uffd::Stop;
use pagoda_linux::uffd::shared_fill::SharedFill;

use super::{PAGE, SharedMemory};
use crate::error::Error;
use crate::progress::{Counts, Progress};
use crate::receive::Arrived;
use crate::receive::page_requests::Wants;
use crate::receive::postcopy_receive::Arrivals;

/// How long the thread that serves faults sleeps without one, until it looks whether it is needed.
const LOOK_MS: u32 = 50;

/// How long a page waits for memory, as where tmpfs is full: less than the sender's patience.
const NO_MEMORY_FOR: Duration = Duration::from_secs(10);

/// A pause before something is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// The owed pages of shared memory, and the threads that wait for them.
pub(super) struct Owing {
    fill: SharedFill,
    /// Pages whose content is not in place.
    owed: PageSet,
    /// How many pages the memory has.
    pages: u64,
    wants: Wants,
    /// No page comes to be owed any more. Until then faults wait: one that is taken for that of a
    /// zero page must not become that of an owed one.
    is_shown: AtomicBool,
    /// Faults need no answer any more.
    is_over: AtomicBool,
}

impl Owing {
    fn new(memory: &SharedMemory, address: *const u8) -> io::Result<Self> {
        let start = address.addr();
        let end = start.checked_add(memory.len.as_usize());
        let range = end.and_then(|end| PageRange::new(start, end)).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a mapping begins at a whole page of 4096 bytes")
        })?;
        let fill = SharedFill::start(&memory.file, memory.offset, range).map_err(refused)?;
        let [is_shown, is_over] = [(); 2].map(|()| AtomicBool::new(false));
        let (owed, pages) = (memory.page_set(), memory.pages());
        Ok(Self { fill, owed, pages, wants: Wants::default(), is_shown, is_over })
    }

    pub(super) fn add(&self, pages: Range<u64>) {
        self.owed.add(pages);
    }

    /// The owed pages, in runs.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        (0..self.pages).step_by(STRIPE_PAGES as usize).flat_map(|first| {
            let runs = self.owed.stripe(first).runs();
            runs.map(move |run| first + u64::from(run.start)..first + u64::from(run.end))
        })
    }

    /// Answers faults once it is shown, and until it is over.
    fn serve(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            if !self.is_shown.load(Ordering::Acquire) {
                thread::park_timeout(Duration::from_millis(LOOK_MS.into()));
                continue;
            }
            let served = self.fill.faults(LOOK_MS, |offset| {
                let page = (offset / OS_PAGE) as u64;
                if self.owed.has(page) {
                    // Its arrival wakes the thread: the mark goes before that.
                    self.wants.want(page);
                    return;
                }
                // It has arrived meanwhile, or is a hole that is zero. A thread whose page could
                // not be made faults again.
                if self.fill.zero(offset, OS_PAGE).stop == Some(Stop::NoMemory) {
                    thread::sleep(PAUSE);
                }
                self.fill.wake(offset, OS_PAGE);
            });
            if served.is_err() {
                thread::sleep(PAUSE);
            }
        }
    }

    /// The bytes at `offset` hold their content, or are holes that are zero.
    fn came(&self, offset: usize, len: usize) {
        if len > 0 {
            self.owed.remove((offset / OS_PAGE) as u64..((offset + len) / OS_PAGE) as u64);
            self.fill.wake(offset, len);
        }
    }

    /// Poisons the owed pages, which are lost. It goes on until that is so, also where the kernel
    /// has no memory for its page tables: they would read as zero afterwards.
    fn lose(&self) {
        for run in self.runs() {
            let (mut at, end) = ((run.start * PAGE) as usize, (run.end * PAGE) as usize);
            while at < end {
                let all = self.fill.poison(at, end - at);
                at += all.bytes;
                if all.stop.is_none() {
                    continue;
                }
                // The owner may have divided its mapping, or unmapped parts.
                match self.fill.poison(at, OS_PAGE).stop {
                    Some(Stop::NoMemory | Stop::Again) => thread::sleep(PAUSE),
                    _ => at += OS_PAGE,
                }
            }
        }
    }
}

/// The user's words for a refusal.
fn refused(error: io::Error) -> io::Error {
    let why = match error.kind() {
        // It says why.
        io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => return error,
        io::ErrorKind::ResourceBusy => {
            "the mapping of the shared memory has another userfaultfd, as of `OwnWrites`; end that first"
                .to_owned()
        }
        _ => format!(
            "threads can't be made to wait for pages of shared memory here ({error}); that takes Linux 6.6 and a \
             userfaultfd that sees the kernel's faults (/dev/userfaultfd, CAP_SYS_PTRACE, or \
             vm.unprivileged_userfaultfd=1), else receive without post-copy"
        ),
    };
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Shared memory that is used, and of which pages are still owed. Call
/// [`receive_rest`](Self::receive_rest) at once, while others use the memory: no page arrives
/// without it.
///
/// Dropping it ends the arrival. The pages that have not arrived are lost then, as after an error
/// of `receive_rest`.
#[must_use]
pub struct SharedArrival<'a> {
    /// No call can send the memory or receive into it before it is whole.
    memory: &'a mut SharedMemory,
    serving: Serving,
    arrived: Arrived,
}

/// The thread that answers faults. Dropping it poisons the pages that are owed, if the memory was
/// shown, and ends the registration.
pub(super) struct Serving {
    owing: Arc<Owing>,
    thread: Option<JoinHandle<()>>,
    /// A forked child has neither the thread nor the memory that its descriptor acts on.
    maker: ProcessMark,
}

impl Serving {
    /// Answers the faults of the mapping of all of `memory` that begins at `address`.
    pub(super) fn start(memory: &SharedMemory, address: *const u8) -> Result<Self, Error> {
        let owing = Arc::new(Owing::new(memory, address).map_err(Error::Destination)?);
        let maker = ProcessMark::of_this_process().map_err(Error::System)?;
        let serve = {
            let owing = Arc::clone(&owing);
            move || owing.serve()
        };
        let thread = thread::Builder::new().name("pagoda-faults".to_owned()).spawn(serve);
        Ok(Self { owing, thread: Some(thread.map_err(Error::System)?), maker })
    }

    pub(super) fn owing(&self) -> &Owing {
        &self.owing
    }

    /// The memory lives here. From now on faults are answered.
    pub(super) fn show(&self) {
        self.owing.is_shown.store(true, Ordering::Release);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.maker.is_of_this_process() {
            if self.owing.is_shown.load(Ordering::Acquire) {
                self.owing.lose();
            }
            self.owing.is_over.store(true, Ordering::Release);
            // It does not panic, and looks about 20 times a second.
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

impl<'a> SharedArrival<'a> {
    pub(super) const fn new(memory: &'a mut SharedMemory, serving: Serving, arrived: Arrived) -> Self {
        Self { memory, serving, arrived }
    }

    /// Whether all had arrived before the memory was shown: the sender did not switch.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        matches!(self.arrived, Arrived::Whole(_))
    }

    /// Receives the owed pages, and ends the registration of the mapping. If channels are lost the
    /// sender may connect once more for as long as
    /// [`recover_for`](crate::ReceiveOptions::recover_for) says.
    ///
    /// Blocks until all is there, or something has failed. `watch` is called about ten times a
    /// second, and ends it by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// See [`Error`]. Pages that have not arrived are lost: no other process has them. A thread
    /// that touches one by the mapping gets SIGBUS from then on (`EFAULT` from a system call),
    /// until the page is discarded there (`MADV_DONTNEED`). By other mappings, and for read(2), it
    /// is a hole, and **reads as zero: end the processes that use them**. Map the memory anew
    /// before something is received into it again.
    ///
    /// [`Error::Destination`] also if another process or mapping has touched a page before it
    /// arrived, as the message says, if the file was cut short, or if there was no memory for a
    /// page within ten seconds.
    pub fn receive_rest(self, watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>) -> Result<Counts, Error> {
        let Self { memory, serving, arrived } = self;
        if !serving.maker.is_of_this_process() {
            let why = "the memory arrives in another process, of which this one is a fork";
            return Err(Error::System(io::Error::other(why)));
        }
        let remaining = match arrived {
            Arrived::Whole(counts) => return Ok(counts),
            Arrived::Owed(remaining) => remaining,
        };
        let received = remaining.receive(&Arriving { memory, owing: &serving.owing }, watch)?;
        memory.check_len().map_err(Error::Destination)?;
        Ok(received)
    }
}

/// The place where owed pages arrive.
struct Arriving<'a> {
    memory: &'a SharedMemory,
    owing: &'a Owing,
}

impl Arriving<'_> {
    /// Why the kernel did not take the page at `offset`.
    fn why(&self, offset: usize, stop: Stop) -> io::Error {
        let at = self.memory.offset + offset as u64;
        match stop {
            Stop::Exists => io::Error::other(format!(
                "the page at {at} of the shared memory's file was made by another process or mapping, or by a write \
                 to the file, before it had arrived; it does not hold its content, don't touch the memory by them \
                 before all is there"
            )),
            Stop::NoMemory => io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "there was no memory for the page at {at} of the shared memory's file for {NO_MEMORY_FOR:?}"
                ),
            ),
            stop => self.memory.check_len().err().unwrap_or_else(|| {
                io::Error::other(format!(
                    "the kernel did not take the page at {at} of the shared memory's file ({stop:?})"
                ))
            }),
        }
    }
}

impl Arrivals for Arriving<'_> {
    fn wants(&self) -> &Wants {
        &self.owing.wants
    }

    fn arrive(&self, offset: u64, content: &[u8]) -> io::Result<()> {
        let (start, mut done, mut lacking_since) = (Bytes::new(offset).as_usize(), 0, None);
        while done < content.len() {
            let filled = self.owing.fill.copy(start + done, &content[done..]);
            self.owing.came(start + done, filled.bytes);
            done += filled.bytes;
            match filled.stop {
                None => lacking_since = None,
                Some(Stop::Again) => thread::yield_now(),
                Some(Stop::NoMemory)
                    if lacking_since.get_or_insert_with(Instant::now).elapsed() < NO_MEMORY_FOR =>
                {
                    thread::sleep(PAUSE);
                }
                Some(stop) => return Err(self.why(start + done, stop)),
            }
        }
        Ok(())
    }

    fn arrive_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.owing.came(Bytes::new(range.start).as_usize(), Bytes::new(range.end - range.start).as_usize());
        Ok(())
    }
}
