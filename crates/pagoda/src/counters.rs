//! The counters of one manager: what `stats()`, `pagoda run`'s table and `--stats` show.
//!
//! Plain atomics in a mapping of their own, so that counting never locks, and so that the counters of a program that
//! was killed can still be read. Nothing here may ever decide anything: the engine never reads a counter back to act
//! on it (it has its own ledger).

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use pagoda_linux::shared_file::SharedWords;

/// `MAGIC` of this layout; a reader that finds another refuses to read.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pagoda01");

/// How a managed process stands; the value of [`Counter::Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Status {
    /// The engine has not started (a static program never loads it).
    NotStarted = 0,
    /// The budget is enforced.
    Managed = 1,
    /// The process forked: everything was brought back and it is managed no further.
    Released = 2,
    /// The engine could not start; [`Counter::ErrorCode`] says why.
    Failed = 3,
}

impl Status {
    /// Reads the value of [`Counter::Status`].
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Managed,
            2 => Self::Released,
            3 => Self::Failed,
            _ => Self::NotStarted,
        }
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:ident,)+) => {
        /// The name of one counter. Gauges hold what is so now, all others only ever grow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        /// How many counters there are: the words of a counters file.
        pub const COUNT: usize = [$(Counter::$variant),+].len();

        /// A copy of all counters, taken without a lock: each number is right, two of them may be a moment apart.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Reads every counter once.
            #[must_use]
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.get(Counter::$variant),)+ }
            }
        }

        impl Snapshot {
            /// Every counter's name and value, in the order of their declaration.
            #[must_use]
            pub fn fields(&self) -> [(&'static str, u64); COUNT] {
                [$((stringify!($name), self.$name)),+]
            }
        }
    };
}

/// The counters of one manager, perhaps shared with another process.
pub struct Counters {
    words: SharedWords,
}

impl Counters {
    /// Counters that only this process sees.
    pub fn private() -> io::Result<Self> {
        Ok(Self { words: SharedWords::anonymous(COUNT)? })
    }
    /// Creates a counters file for another process to write; it is readable by this user alone.
    pub fn create(path: &Path) -> io::Result<Self> {
        let counters = Self { words: SharedWords::create(path, COUNT)? };
        counters.set(Counter::Magic, MAGIC);
        Ok(counters)
    }
    /// Opens a counters file; one of another version is an error.
    pub fn open(path: &Path) -> io::Result<Self> {
        let counters = Self { words: SharedWords::open(path, COUNT)? };
        if counters.get(Counter::Magic) != MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is not a counters file of this version",
            ));
        }
        Ok(counters)
    }
    /// Makes this process the one that is counted here. False if another one is.
    #[must_use]
    pub fn claim(&self, pid: u64) -> bool {
        let owner = &self.words[Counter::OwnerPid as usize];
        match owner.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(other) if other == pid => {
                // The process replaced its program by exec: what was counted is of the old one.
                for (i, word) in self.words.iter().enumerate() {
                    if i != Counter::Magic as usize && i != Counter::OwnerPid as usize {
                        word.store(0, Ordering::Relaxed);
                    }
                }
                true
            }
            Err(_) => false,
        }
    }
    /// One counter's value.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.words[counter as usize].load(Ordering::Relaxed)
    }
    /// Counts `n` more.
    pub fn add(&self, counter: Counter, n: u64) {
        self.words[counter as usize].fetch_add(n, Ordering::Relaxed);
    }
    /// Sets a gauge.
    pub fn set(&self, counter: Counter, n: u64) {
        self.words[counter as usize].store(n, Ordering::Relaxed);
    }
    /// Raises a peak.
    pub fn raise(&self, counter: Counter, n: u64) {
        self.words[counter as usize].fetch_max(n, Ordering::Relaxed);
    }
}

counters! {
    /// [`MAGIC`], written by whoever created the file.
    Magic magic,
    /// The process that is managed; claimed by compare-and-swap from 0.
    OwnerPid owner_pid,
    /// A [`Status`].
    Status status,
    /// The code of a start error when `status` is `Failed`, or the reason of a clean stop.
    ErrorCode error_code,
    /// The operating system's error number that came with `error_code`, 0 if none.
    ErrorErrno error_errno,
    /// The budget in bytes.
    BudgetBytes budget_bytes,
    /// The base page in bytes.
    BasePageBytes base_page_bytes,
    /// Gauge: anonymous memory of the process by the kernel's count, in bytes.
    AnonBytes anon_bytes,
    /// The most `anon_bytes` was seen to be.
    AnonPeakBytes anon_peak_bytes,
    /// Gauge: bytes that managed regions hold in frames (resident).
    ResidentBytes resident_bytes,
    /// Gauge: bytes that are out of the regions with their frames intact (staged).
    StagedBytes staged_bytes,
    /// Gauge: bytes of frames that are ready to be used and hold nobody's data any more.
    ReadyBytes ready_bytes,
    /// Gauge: uncompressed bytes of what the store holds.
    StoredBytes stored_bytes,
    /// The most `stored_bytes` was seen to be.
    StoredPeakBytes stored_peak_bytes,
    /// Gauge: bytes of memory that the compressed store takes.
    StoreMemoryBytes store_memory_bytes,
    /// The most `store_memory_bytes` was seen to be.
    StoreMemoryPeakBytes store_memory_peak_bytes,
    /// Gauge: bytes of the spill file in use.
    SpilledBytes spilled_bytes,
    /// The most `spilled_bytes` was seen to be.
    SpilledPeakBytes spilled_peak_bytes,
    /// Gauge: Pagoda's own tables, stacks and heap, in bytes.
    OwnBytes own_bytes,
    /// Gauge: anonymous memory of the program that is not managed, in bytes.
    UnmanagedBytes unmanaged_bytes,
    /// `unmanaged_bytes` when `anon_bytes` plus stored content was at its peak.
    UnmanagedAtPeakBytes unmanaged_at_peak_bytes,
    /// The most the program held at once: resident, staged, stored and unmanaged, in bytes (its peak without Pagoda).
    HeldPeakBytes held_peak_bytes,
    /// Ranges of memory taken under management.
    AdoptedRanges adopted_ranges,
    /// Bytes of address space taken under management.
    AdoptedBytes adopted_bytes,
    /// Gauge: bytes left alone because they are mlocked.
    LeftLockedBytes left_locked_bytes,
    /// Gauge: bytes of populated private anonymous memory left alone because it is read-only.
    LeftReadonlyBytes left_readonly_bytes,
    /// Gauge: bytes left alone because the memory is executable.
    LeftExecutableBytes left_executable_bytes,
    /// Gauge: bytes left alone because the memory is shared.
    LeftSharedBytes left_shared_bytes,
    /// Gauge: bytes left alone because the program registered them with userfaultfd itself.
    LeftRegisteredBytes left_registered_bytes,
    /// Gauge: bytes left alone because a live thread's control block, rseq area or robust mutex is in them.
    LeftThreadBytes left_thread_bytes,
    /// Gauge: bytes left alone because the mapping is too small or too young to be worth an event.
    LeftSmallBytes left_small_bytes,
    /// Faults of all kinds that were served.
    Faults faults,
    /// Faults on content that never was, or was discarded: served with zeroes.
    FaultsZero faults_zero,
    /// Faults on staged pages: the second chance, served by one move.
    FaultsStaged faults_staged,
    /// Faults on stored pages: fetched from the store.
    FaultsStored faults_stored,
    /// Faults that found their page already there.
    FaultsSpurious faults_spurious,
    /// Faults that had to wait for memory.
    FaultsThrottled faults_throttled,
    /// Times a fill met an unread event and was tried again.
    RetriesAgain retries_again,
    /// Time spent serving faults, in nanoseconds, of all handlers together.
    FaultServiceNs fault_service_ns,
    /// Base pages moved out of a region.
    Evictions evictions,
    /// Base pages of which the store still had what was moved out: nothing was stored again.
    EvictionsClean evictions_clean,
    /// Base pages that went on to the store.
    Stores stores,
    /// Base pages that were all zero when they were to be stored: they cost nothing.
    StoresZero stores_zero,
    /// Base pages that repeat one word: they cost nothing.
    StoresSame stores_same,
    /// OS pages that could not be moved out because they were pinned or shared.
    EvictBusy evict_busy,
    /// Base pages that could not be moved out because their mapping does not allow it.
    EvictRefused evict_refused,
    /// UNMAP events.
    EventsUnmap events_unmap,
    /// REMAP events.
    EventsRemap events_remap,
    /// REMOVE events (madvise).
    EventsRemove events_remove,
    /// Events that waited for another thread's.
    EventsDeferred events_deferred,
    /// Forks seen.
    Forks forks,
    /// Bytes that were brought back because the process forked.
    BroughtBackBytes brought_back_bytes,
    /// Child processes that were not managed.
    ChildrenUnmanaged children_unmanaged,
    /// Frames given back to the kernel, in bytes.
    ReleasedBytes released_bytes,
    /// Gauge: when the engine looked at the process last, in nanoseconds of the monotonic clock.
    LastLookNs last_look_ns,
    /// Looks at the maps of the process.
    MapScans map_scans,
}
