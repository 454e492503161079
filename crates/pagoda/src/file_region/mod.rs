//! A file region: a file as memory, by a page cache of the manager's own.
//!
//! Its pages are read when they are touched and ahead of that, stay within the manager's budget and zones like any other, and
//! are written back if they differ from the file. All I/O is direct, so that nothing of the file is in the kernel's cache. Who
//! reads and writes by [`FileRegion::read_at`] and [`FileRegion::write_at`] gets an error where the file fails; who uses its
//! address gets SIGBUS, as from mmap(2).
//!
//! | file | what it has |
//! |---|---|
//! | `page_file` | the file as pages: what differs from it, what of it can't be read |
//! | `write_back` | from the file into a slot, and back |
//! | `ahead` | the thread that reads ahead, by `pagoda_core::read_ahead` |
//!
//! This module must never show bytes that are not the file's or its writers'.

mod ahead;
mod error;
mod page_file;
#[cfg(test)]
mod tests;
mod write_back;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use pagoda_core::entry::Word;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::careful_copy;
use pagoda_linux::mapped_file::{Access, MappedFile, OpenError};
use pagoda_linux::range::PageRange;
use pagoda_linux::region_memory::RegionMemory;
use pagoda_linux::thread::{now_ns, sleep_us, yield_now};

pub use error::{FileError, MapFileError};
pub(crate) use page_file::PageFile;

use crate::account::Account;
use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::Errno;
use crate::handler::Fault;
use crate::manager::Shared;
use crate::region::RegionError;
use crate::store::Scratch;
use ahead::Next;
use page_file::{Trouble, locked};

/// How often the file's length is asked for while nobody reads ahead.
const LOOK: Duration = Duration::from_secs(1);

/// Tries that only yield in between; afterwards each is followed by a short sleep.
const YIELDS: u32 = 8;
const SLEEP_US: u32 = 20;

/// A file to be mapped; see [`Manager::map_file`](crate::Manager::map_file).
pub struct FileRegionBuilder {
    shared: Arc<Shared>,
    path: PathBuf,
    access: Access,
}

impl FileRegionBuilder {
    pub(crate) fn new(shared: Arc<Shared>, path: &Path) -> Self {
        Self { shared, path: path.to_owned(), access: Access::default() }
    }

    /// Whether it is written, too; only read, if it is not said. What is written by the address of a file that is only read is
    /// dropped sooner or later.
    #[must_use]
    pub fn writable(mut self, yes: bool) -> Self {
        self.access.write = yes;
        self
    }

    /// Reads and writes through the kernel's page cache, for file systems without direct I/O. The consequence: what is in that
    /// cache, too, is in no budget.
    #[must_use]
    pub fn buffered(mut self, yes: bool) -> Self {
        self.access.buffered = yes;
        self
    }

    /// Opens the file and maps all of it; the region keeps the length that the file has now. Blocks until what others have
    /// written there is on the disk.
    ///
    /// # Errors
    /// See [`MapFileError`].
    pub fn map(self) -> Result<FileRegion, MapFileError> {
        let Self { shared, path, access } = self;
        let engine = &shared.engine;
        let (file, len) = MappedFile::open(&path, access).map_err(|error| open_error(&path, error))?;
        if len == 0 {
            return Err(MapFileError::Empty { path });
        }
        careful_copy::try_out().map_err(|errno| MapFileError::Copy { errno: Errno(errno.raw_os_error()) })?;
        let no_space = |errno| MapFileError::Region(RegionError::Map { len: Bytes::new(len), errno });
        let rounded =
            usize::try_from(len).ok().and_then(|len| len.checked_next_multiple_of(engine.base.bytes()));
        let memory = RegionMemory::map(rounded.ok_or_else(|| no_space(Errno(12)))?)
            .map_err(|error| no_space(Errno::from(&error)))?;
        let file = Arc::new(PageFile::new(file, len, engine.entry_bytes(), access.write));
        let range = memory.range();
        engine.manage_file(range, &file)?;
        engine.file_regions.fetch_add(1, Ordering::AcqRel);
        let account = engine.owners.enter(range);
        let inner = Arc::new(Inner {
            shared,
            range,
            file,
            memory: Some(memory),
            account,
            syncing: Mutex::new(()),
            scratches: Mutex::new(Vec::new()),
        });
        let reader = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("pagoda-read-ahead".to_owned())
            .spawn(move || reader.read_ahead())
            .map_err(|error| MapFileError::Thread { errno: Errno::from(&error) })?;
        Ok(FileRegion { inner: Some(inner), thread: Some(thread) })
    }
}

fn open_error(path: &Path, error: OpenError) -> MapFileError {
    let path = path.to_owned();
    let errno = |errno: pagoda_linux::uffd::Errno| Errno(errno.raw_os_error());
    match error {
        OpenError::Open(why) => MapFileError::Open { path, errno: errno(why) },
        OpenError::Kind(kind) => MapFileError::NotAFile { path, kind },
        OpenError::InMemory(filesystem) => MapFileError::InMemory { path, filesystem },
        OpenError::NoDirectIo(why) => MapFileError::NoDirectIo { path, errno: errno(why) },
    }
}

/// What a file region has done so far, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStats {
    /// Read of the file.
    pub read: Bytes,
    /// Of that, read before it was asked for.
    pub read_ahead: Bytes,
    /// Written to the file: by syncs, and by reclaim.
    pub written: Bytes,
}

/// A file as memory. Any number of threads may use it at once. Dropping it writes what differs back, without waiting for the disk
/// to be safe and without telling what fails: [`close`](Self::close) does both.
///
/// ```
/// use pagoda::{Bytes, Manager};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !pagoda::userfaultfd_allows_managers() { return Ok(()); }
/// let directory = std::env::current_exe()?.parent().ok_or("a directory")?.to_owned();
/// let path = directory.join(format!("pages-{}", std::process::id()));
/// std::fs::write(&path, vec![b'.'; 1 << 20])?;
/// let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build()?;
/// # let direct = manager.map_file(&path).map().is_ok();
/// let region = manager.map_file(&path).writable(true)
///     # .buffered(!direct)
///     .map()?;
/// region.write_at(5000, b"to be kept")?;
/// region.sync()?;
/// assert_eq!(&std::fs::read(&path)?[5000..5010], b"to be kept");
/// region.close()?;
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
pub struct FileRegion {
    inner: Option<Arc<Inner>>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    shared: Arc<Shared>,
    range: PageRange,
    file: Arc<PageFile>,
    /// As long as it lives.
    memory: Option<RegionMemory>,
    account: Arc<Account>,
    /// One sync at a time. Whoever has it may take the gate.
    syncing: Mutex<()>,
    /// Working memory, at most of as many threads as were here at once. Held around nothing else.
    scratches: Mutex<Vec<Scratch>>,
}

impl FileRegion {
    fn inner(&self) -> &Inner {
        self.inner.as_ref().expect("it is there until it is dropped")
    }

    /// The file's length when it was mapped, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a file region is never empty")]
    pub fn len(&self) -> u64 {
        self.inner().file.len()
    }

    /// Its first byte. Valid for reads of [`len`](Self::len) bytes, and for writes if it was mapped writable, as long as the region
    /// lives. An access to a page that is out blocks until it is read; one to a page that can't be read raises SIGBUS. Who
    /// needs an error in its place uses [`read_at`](Self::read_at).
    ///
    /// Its memory must not be unmapped, moved or discarded by its address: what was written there might read zero, or as the file
    /// is, and a sync of another thread might wait for it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.inner().range.start())
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> FileStats {
        let file = &self.inner().file;
        let bytes = |count: &std::sync::atomic::AtomicU64| Bytes::new(count.load(Ordering::Relaxed));
        FileStats {
            read: bytes(&file.read_bytes),
            read_ahead: bytes(&file.ahead_bytes),
            written: bytes(&file.written_bytes),
        }
    }

    /// Copies from the file. Blocks for the disk where it is not in memory. Of bytes that others write meanwhile each is what it was
    /// before or after.
    ///
    /// # Errors
    /// See [`FileError`]; `into` may hold anything then.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        let inner = self.inner();
        inner.check(offset, into.len())?;
        let memory = inner.memory();
        inner.each_part(offset, into.len(), |at, done, len| {
            memory.read_what_is_there(at, &mut into[done..done + len])
        })
    }

    /// Copies into the file's memory. It reaches the file when memory gets short, and is safe after [`sync`](Self::sync).
    ///
    /// # Errors
    /// See [`FileError`]; a part may be written then.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), FileError> {
        let inner = self.inner();
        if !inner.file.is_writable() {
            return Err(FileError::ReadOnly);
        }
        inner.check(offset, from.len())?;
        let memory = inner.memory();
        inner.each_part(offset, from.len(), |at, done, len| {
            memory.write_what_is_there(at, &from[done..done + len])
        })
    }

    /// Returns when all that was written before is on stable storage. It looks at everything of the file
    /// that is in memory, and then waits for the disk. Nobody else waits for it.
    ///
    /// # Errors
    /// See [`FileError`]: also what went wrong since the last call, when memory got short. It is told once, as fsync(2) does. What
    /// could not be written is kept and tried again by the next call; all else was written.
    pub fn sync(&self) -> Result<(), FileError> {
        self.inner().sync()
    }

    /// Makes everything safe, as [`sync`](Self::sync) does, and frees the region whatever comes of it.
    ///
    /// # Errors
    /// As for [`sync`](Self::sync).
    pub fn close(self) -> Result<(), FileError> {
        self.sync()
    }
}

impl Drop for FileRegion {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        inner.file.orders.quit();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
        if inner.file.is_writable() {
            inner.write_all_back();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let engine = &self.shared.engine;
        // The kernel tells the handlers by an event, and returns when one has read it.
        drop(self.memory.take());
        engine.await_unmapped();
        engine.file_regions.fetch_sub(1, Ordering::AcqRel);
        engine.owners.leave(&self.account);
        engine.look_after_releases();
    }
}

impl Inner {
    fn engine(&self) -> &Engine {
        &self.shared.engine
    }
    fn memory(&self) -> &RegionMemory {
        self.memory.as_ref().expect("it is there until the last owner is gone")
    }

    fn with_scratch<T>(&self, body: impl FnOnce(&mut Scratch) -> T) -> T {
        let spare = locked(&self.scratches).pop();
        let mut scratch = spare.unwrap_or_else(|| Scratch::new(self.engine().base));
        let result = body(&mut scratch);
        locked(&self.scratches).push(scratch);
        result
    }

    /// Whether `len` bytes from `offset` on are the file's, now, too.
    fn check(&self, offset: u64, len: usize) -> Result<(), FileError> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.file.len());
        let Some(end) = end else {
            return Err(FileError::BeyondEnd { offset: Bytes::new(offset), len: Bytes::new(len as u64) });
        };
        let now = self.file.now_len().map_err(|trouble| error_of(trouble, offset))?;
        if now < self.file.len() {
            self.cut(now);
        }
        if now < end { Err(FileError::Truncated) } else { Ok(()) }
    }

    /// The file has become shorter: what lay beyond its end is in memory no longer.
    fn cut(&self, now_len: u64) {
        if let Some(from) = self.file.lose_beyond(now_len) {
            // What of it can't be dropped goes when memory gets short.
            let from = from as usize;
            let _ = self.memory().discard(from, self.range.len() - from);
        }
    }

    /// Lets `copy` copy `len` bytes at `offset` of the region, entry by entry, what is missing brought in before. It gets the
    /// offset, the bytes that are done, and how many more; it says how far it came.
    fn each_part(
        &self,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(usize, usize, usize) -> usize,
    ) -> Result<(), FileError> {
        let entry_bytes = self.engine().entry_bytes();
        let (offset, mut done) = (offset as usize, 0);
        let mut failed = false;
        while done < len {
            let at = offset + done;
            self.bring_in(at, failed)?;
            let copied = copy(at, done, (len - done).min(entry_bytes - at % entry_bytes));
            // What was there a moment ago is not: it is asked for by a fault.
            failed = copied == 0;
            done += copied;
        }
        Ok(())
    }

    /// Brings in the page at `offset`, unless it is there by the table and `anew` is not said. Serves the fault that an access
    /// would have, in this thread.
    fn bring_in(&self, offset: usize, anew: bool) -> Result<(), FileError> {
        let engine = self.engine();
        let address = (self.range.start() + offset) & !(OS_PAGE - 1);
        let error = |trouble| error_of(trouble, offset as u64);
        if let Some(trouble) = self.file.why_lost(offset as u64) {
            return Err(error(trouble));
        }
        if !anew && engine.is_in_region(address) {
            return Ok(());
        }
        let since_ns = now_ns();
        let mut tries = 0;
        self.with_scratch(|scratch| {
            while !engine.serve_or_keep(Fault { address, write: false, since_ns }, scratch) {
                // An event that nobody has read keeps the kernel from filling.
                engine.read_messages(&mut Vec::new(), scratch);
                tries += 1;
                if tries < YIELDS { yield_now() } else { sleep_us(SLEEP_US) }
            }
        });
        engine.counters.add(Counter::Faults, 1);
        engine.counters.add(Counter::FaultServiceNs, now_ns() - since_ns);
        self.file.why_lost(offset as u64).map_or(Ok(()), |trouble| Err(error(trouble)))
    }

    fn write_all_back(&self) {
        self.with_scratch(|scratch| {
            self.engine().write_all_back(&self.file, self.range, self.memory(), scratch);
        });
    }

    fn sync(&self) -> Result<(), FileError> {
        if !self.file.is_writable() {
            return Ok(());
        }
        let _one = locked(&self.syncing);
        self.write_all_back();
        // Told whatever else fails, and not again.
        let unwritten = self.file.take_untold();
        let flushed = self.file.flush();
        let now = self.file.now_len().map_err(|trouble| error_of(trouble, 0))?;
        if now < self.file.len() {
            self.cut(now);
            return Err(FileError::Truncated);
        }
        match (unwritten, flushed) {
            (Some(Trouble::Truncated), _) => Err(FileError::Truncated),
            (Some(Trouble::Os(errno)), _) => Err(FileError::Unwritten { errno }),
            (None, Err(errno)) => Err(FileError::Unsafe { errno: Errno(errno.raw_os_error()) }),
            (None, Ok(())) => Ok(()),
        }
    }

    /// The life of the thread that reads ahead.
    fn read_ahead(&self) {
        pagoda_linux::thread::block_signals_for_good();
        let mut scratch = Scratch::new(self.engine().base);
        loop {
            match self.file.orders.next(LOOK) {
                Next::Quit => return,
                Next::Read(window) => {
                    self.engine().read_window(&self.file, self.range, window, &mut scratch);
                }
                // Who reads by address has no other way to learn of it.
                Next::Idle => {
                    if let Ok(now) = self.file.now_len() {
                        self.cut(now);
                    }
                }
            }
        }
    }
}

/// What trouble with what lies at `offset` means to its reader.
fn error_of(trouble: Trouble, offset: u64) -> FileError {
    match trouble {
        Trouble::Truncated => FileError::Truncated,
        Trouble::Os(errno) => {
            FileError::Unreadable { offset: Bytes::new(offset / OS_PAGE as u64 * OS_PAGE as u64), errno }
        }
    }
}

impl Engine {
    /// Whether the page at `address` is in its region, as far as the table knows.
    fn is_in_region(&self, address: usize) -> bool {
        let table = self.gate_shared();
        table.find(address).is_some_and(|span| {
            let page = table.page_at(span, address);
            let word = Word::from_bits(span.entry(page.index).load(Ordering::Acquire));
            word.resident().has(page.granule_of(address))
        })
    }
}
