//! Shared memory: a memfd that a VMM shares with other processes, as vhost-user wants it. It is
//! sent while it is written, and received into, where it is.
//!
//! No manager has it: it has no budget, and nothing of it is evicted. Here it is a file. It is read
//! and written by pread(2) and pwrite(2) and never through a mapping: so no page of it is faulted
//! in by this process, and a file that is cut short is an error and no SIGBUS. Where it holds
//! something is asked of the file as well (`SEEK_DATA`), since no page table knows what other
//! processes have written. What was written since is told by a [`DirtyLog`]: the caller's own, or
//! [`OwnWrites`]. Only pages that arrive after a switch need the mapping by which they are used
//! ([`SharedMemory::receive_late`]): its missing pages are served by userfaultfd.

pub(crate) mod arrival;
mod destination;
pub(crate) mod log;
pub(crate) mod own_writes;
mod source;

use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;

use pagoda_core::migrate::pages::PageSet;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::io::memory_file::{check_kind, check_writable};
use pagoda_linux::io::sparse_file;
use pagoda_linux::mem::words::zeroed_words;

use crate::error::Error;
use crate::live::options::{LiveOptions, Moved, Pace, Writer};
use crate::live::send_live;
use crate::net::endpoint::Endpoint;
use crate::net::listener::Listener;
use crate::progress::{Counts, Progress};
use crate::receive::options::{Event, ReceiveOptions};
use crate::receive::{Arrived, receive, receive_late};
use arrival::{Serving, SharedArrival};
use destination::SharedDestination;
use log::DirtyLog;
use source::SharedSource;

const PAGE: u64 = OS_PAGE as u64;

/// Memory that processes share: a part of a memfd, or of a file of tmpfs as in /dev/shm. Its
/// mappings are its owner's: this value has none, and needs none.
///
/// ```
/// use std::io;
/// use std::ops::ControlFlow::Continue;
/// use std::os::unix::fs::FileExt;
/// use std::time::Duration;
///
/// use pagoda_core::size::Bytes;
/// use pagoda_linux::io::shared_file::memory_file;
/// use pagoda_migrate::{
///     DirtyLog, DirtyPages, Listener, LiveOptions, Otherwise, ReceiveOptions, SendOptions,
///     SharedMemory, Writer,
/// };
///
/// /// A guest, whose log is a bitmap for its memory, as of `KVM_GET_DIRTY_LOG`.
/// struct Guest;
///
/// impl Guest {
///     fn get_and_clear_dirty_log(&mut self) -> io::Result<Vec<u64>> {
///         Ok(vec![0; 4])
///     }
/// }
/// impl DirtyLog for Guest {
///     fn take(&mut self, dirty: &mut DirtyPages<'_>) -> io::Result<()> {
///         dirty.add_bitmap(0, &self.get_and_clear_dirty_log()?);
///         Ok(())
///     }
/// }
///
/// struct Processors;
///
/// impl Writer for Processors {
///     fn throttle(&mut self, _percent: u8) {}
///     fn stop(&mut self) { /* and wait until they have stopped, and the devices, too */ }
/// }
///
/// let len = Bytes::mib(1);
/// let file = memory_file(c"guest", len.get())?;
/// file.write_all_at(b"in use", 4096)?;
/// let here = SharedMemory::new(file.try_clone()?, 0, len)?;
/// let there_file = memory_file(c"guest", len.get())?;
/// let mut there = SharedMemory::new(there_file.try_clone()?, 0, len)?;
///
/// let listener = Listener::bind(&"tcp://127.0.0.1:0".parse()?)?;
/// let to = listener.endpoint()?;
/// let sender = std::thread::spawn(move || {
///     let options = LiveOptions {
///         send: SendOptions::default(),
///         downtime: Duration::from_millis(300),
///         rounds: 30,
///         otherwise: Otherwise::StopForLonger,
///         slow_most_percent: 0,
///     };
///     here.migrate_to(&to, &options, &mut Guest, &mut Processors, &mut |_, _| Continue(()))
/// });
/// let counts = there.receive(listener, &ReceiveOptions::default(), &mut |_| Continue(()))?;
/// sender.join().expect("it does not panic")?;
/// assert_eq!(counts.data_pages, 1);
/// let mut back = [0; 6];
/// there_file.read_exact_at(&mut back, 4096)?;
/// assert_eq!(&back, b"in use");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    offset: u64,
    len: Bytes,
}

impl SharedMemory {
    /// The `len` bytes of `file` from `offset` on, whole OS pages. To keep the file use a
    /// [clone](File::try_clone) of it. While it is sent, or received late, its position (lseek(2))
    /// is moved, which is that of all clones.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if it is no shared memory, as a file on a disk
    /// or of huge pages (hugetlbfs) is none, if these are no whole pages, or if it is shorter;
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if it can't be read. Each says why.
    pub fn new(file: impl Into<OwnedFd>, offset: u64, len: Bytes) -> io::Result<Self> {
        let file = File::from(file.into());
        check_kind(&file)?;
        let memory = Self { file, offset, len };
        let are_pages = offset.is_multiple_of(PAGE) && len.get().is_multiple_of(PAGE) && len > Bytes::ZERO;
        if !are_pages || offset.checked_add(len.get()).is_none() {
            let why = format!("{len} at {offset} of the shared memory are no whole pages of {PAGE} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        memory.check_len().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(memory)
    }

    /// Its size.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        self.len
    }

    /// Moves its content to the receiver at `to`, while it is written by any process: in rounds
    /// over the pages that `dirty` tells, and in the end, with `writer` stopped, the rest. Pages
    /// that hold nothing, because they were never touched or their content was given back
    /// (`MADV_REMOVE`, a hole), are neither read nor sent. Pages that become holes meanwhile become
    /// zero there; if they may be read again `dirty` has to tell them.
    ///
    /// The receiver may be one of regions as well; it may be one that goes on before all has
    /// arrived, with [`Otherwise::PostCopy`](crate::Otherwise::PostCopy). The memory itself stays
    /// as it is.
    ///
    /// Blocks until the receiver has confirmed all of it; `watch` is called about ten times a
    /// second and at the start of each round, and ends it by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// See [`Error`]. Unless it is [`Error::Unconfirmed`] or [`Error::AfterSwitch`] the other side
    /// shows nothing and the writer may go on. [`Error::Source`] also if `dirty` returns an error,
    /// or the file was cut short.
    pub fn migrate_to(
        &self,
        to: &Endpoint,
        options: &LiveOptions,
        dirty: &mut dyn DirtyLog,
        writer: &mut dyn Writer,
        watch: &mut dyn FnMut(&Progress, &Pace) -> ControlFlow<()>,
    ) -> Result<Moved, Error> {
        send_live(&SharedSource::new(self, dirty), to, options, writer, watch)
    }

    /// Receives into this memory, from a sender of memory as long as it. Its content is given up
    /// once a sender was admitted; until this returns it may hold anything, and no process may use
    /// it, nor change its length. Seal it against shrinking (`F_SEAL_SHRINK`) where others could. A
    /// sender that wants this side to go on before all has arrived is refused: see
    /// [`receive_late`](Self::receive_late).
    ///
    /// Pages that hold nothing at the sender become holes. Processors that have it mapped find the
    /// content at their next access; a device with pinned pages (VFIO) has to be set up anew.
    ///
    /// Blocks until all has arrived. `watch` is called about ten times a second, and ends it by
    /// [`ControlFlow::Break`].
    ///
    /// # Errors
    /// See [`Error`]. If a sender was admitted the memory reads as zero then, else it has its
    /// content. [`Error::Destination`] also if the lengths differ, or the memory can't be written:
    /// it was opened to be read only, or is sealed against writing. Then nothing has changed.
    pub fn receive(
        &mut self,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Counts, Error> {
        check_writable(&self.file).map_err(Error::Destination)?;
        let mut destination = SharedDestination::new(self, None);
        let counts = receive(listener, &mut destination, options, watch)?;
        destination.show();
        Ok(counts)
    }

    /// As [`receive`](Self::receive), for a sender that may let this side go on before all has
    /// arrived ([`Otherwise::PostCopy`](crate::Otherwise::PostCopy)), and for memory that this
    /// process uses by its mapping of all of it that begins at `address`, as for a guest of KVM.
    /// Returns at that moment. The memory may be used **by that mapping**, while
    /// [`SharedArrival::receive_rest`] receives the rest. A thread that touches a page that is not
    /// here waits until it is, also in a system call or in KVM; the page is asked for at once.
    ///
    /// **Nothing else may touch the memory before all has arrived**: no other process (vhost-user),
    /// no other mapping, no read(2) or write(2) of the file. Such an access finds a hole where a
    /// page is still owed, reads zeroes, and leaves a page in the place of the right one. That ends
    /// the arrival with an error when the page comes. A forked child counts as another process. The
    /// mapping must stay where it is, for the registration does not move with it. A page that is
    /// given back before it has arrived (`MADV_REMOVE`) gets its content all the same.
    ///
    /// Until this returns a thread that touches a page that holds nothing, by that mapping, waits.
    ///
    /// ```no_run
    /// # use std::ops::ControlFlow::Continue;
    /// # use pagoda_migrate::{Error, Listener, ReceiveOptions, SharedMemory};
    /// # fn start_guest() {}
    /// # fn go_on(mut memory: SharedMemory, at: *const u8, by: Listener) -> Result<(), Error> {
    /// let options = ReceiveOptions::default();
    /// let arrival = memory.receive_late(at, by, &options, &mut |_| Continue(()))?;
    /// start_guest();
    /// arrival.receive_rest(&mut |_| Continue(()))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Needs Linux 6.6 and a userfaultfd that sees the kernel's faults: `/dev/userfaultfd`,
    /// `CAP_SYS_PTRACE` or `vm.unprivileged_userfaultfd=1`. The mapping can't have another one,
    /// as of [`OwnWrites`](crate::OwnWrites), until the arrival has ended.
    ///
    /// # Errors
    /// As [`receive`](Self::receive). [`Error::Destination`] also if `address` is not that of a
    /// shared mapping of all of it, or this kernel or process has no such userfaultfd: then nothing
    /// has changed, and no sender was waited for; and if an owed page could not be made a hole at
    /// the switch, as where tmpfs has huge pages: then the sender goes on.
    pub fn receive_late(
        &mut self,
        address: *const u8,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<SharedArrival<'_>, Error> {
        check_writable(&self.file).map_err(Error::Destination)?;
        let serving = Serving::start(self, address)?;
        let mut destination = SharedDestination::new(self, Some(serving.owing()));
        let mut arrived = receive_late(listener, &mut destination, options, watch)?;
        if let Arrived::Owed(remaining) = &mut arrived {
            destination
                .check_owed()
                .map_err(Error::Destination)
                .inspect_err(|error| remaining.refuse(error))?;
            remaining.take_over()?;
        }
        serving.show();
        destination.show();
        Ok(SharedArrival::new(self, serving, arrived))
    }

    /// How many pages it has.
    const fn pages(&self) -> u64 {
        self.len.get() / PAGE
    }

    /// No pages of it.
    fn page_set(&self) -> PageSet {
        PageSet::new(zeroed_words(Bytes::new(PageSet::words_for(self.pages())).as_usize()))
    }

    /// The pages that hold something, in any process, in memory or in the kernel's swap.
    fn held(&self) -> io::Result<PageSet> {
        let (held, end) = (self.page_set(), self.offset + self.len.get());
        let mut at = self.offset;
        while let Some(data) = sparse_file::data_in(&self.file, at..end)? {
            held.add(self.pages_of(&data));
            at = data.end;
        }
        Ok(held)
    }

    /// The pages that have bytes of this range of the file.
    const fn pages_of(&self, bytes: &Range<u64>) -> Range<u64> {
        (bytes.start - self.offset) / PAGE..(bytes.end - self.offset).div_ceil(PAGE)
    }

    /// The length of the file, if all of this memory is still in it.
    fn check_len(&self) -> io::Result<u64> {
        let len = self.file.metadata()?.len();
        if len >= self.offset + self.len.get() {
            return Ok(len);
        }
        let why = format!(
            "the file of the shared memory ends at {len} bytes, and {} at {} are meant; don't cut it short",
            self.len, self.offset
        );
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, why))
    }
}
