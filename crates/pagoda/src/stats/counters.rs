//! The counters of one process: what `stats()`, `pagoda run`'s table and `--stats` show.
//!
//! Plain atomics in a shared mapping, so that counting never locks, and so that the counters of a
//! program that was killed can still be read. Those of a member of a process tree lie in its place
//! of the [tree](crate::tree)'s file; a library's lie in a mapping of their own. Beside them lies a
//! histogram for each kind of fault (`stats/latencies.rs`). Nothing here may ever decide anything:
//! the engine never reads a counter back to act on it (it has its own ledger).

pub use super::shared_counters::Counters;

/// How a process stands; the value of [`Counter::Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Status {
    /// The engine has not started (a static program never loads it).
    NotStarted = 0,
    /// The budget is enforced.
    Managed = 1,
    /// The process forked: everything was swapped in and it is managed no further.
    Released = 2,
    /// The engine could not start; [`Counter::ErrorCode`] says why.
    Failed = 3,
    /// It holds so little that it is only watched; its engine starts when it grows.
    Small = 4,
    /// A member of the tree without an engine, which is not watched.
    Unmanaged = 5,
}

impl Status {
    /// Reads the value of [`Counter::Status`].
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Managed,
            2 => Self::Released,
            3 => Self::Failed,
            4 => Self::Small,
            5 => Self::Unmanaged,
            _ => Self::NotStarted,
        }
    }

    /// The name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotStarted => "not started",
            Self::Managed => "managed",
            Self::Released => "released",
            Self::Failed => "failed",
            Self::Small => "small",
            Self::Unmanaged => "unmanaged",
        }
    }
}

/// How a counter sums up over several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is of one process and has no sum.
    Own,
    /// It only grows, and sums up over all processes that ever were.
    Total,
    /// A current value, summed up over the processes that live.
    Gauge,
    /// The most that a gauge was: several processes had theirs at different times, so that only the
    /// largest is known.
    Peak,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $kind:ident $variant:ident $name:ident,)+) => {
        /// The name of one counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        /// How many counters there are.
        pub const COUNT: usize = [$(Counter::$variant),+].len();

        impl Counter {
            /// All of them, in the order of their declaration.
            pub const ALL: [Self; COUNT] = [$(Self::$variant),+];

            /// How it sums up.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)+ }
            }

            /// Its name, as that of its field in [`Stats`].
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($name),)+ }
            }

            /// Its meaning, in a sentence or more: its documentation.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+),)+ }
            }
        }

        /// A copy of all counters, taken without a lock: each number is right, two of them may be a
        /// moment apart.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Stats {
            /// Of every counter's value.
            #[must_use]
            pub fn of(mut value: impl FnMut(Counter) -> u64) -> Self {
                Self { $($name: value(Counter::$variant),)+ }
            }

            /// Every counter's name and value, in the order of their declaration.
            #[must_use]
            pub fn fields(&self) -> [(&'static str, u64); COUNT] {
                [$((stringify!($name), self.$name)),+]
            }
        }
    };
}

counters! {
    /// The process that is counted.
    Own OwnerPid owner_pid,
    /// A [`Status`].
    Own Status status,
    /// The code of a start error when `status` is `Failed`, or the reason of a clean stop.
    Own ErrorCode error_code,
    /// The operating system's error number that came with `error_code`, 0 if none.
    Own ErrorErrno error_errno,
    /// The budget of this process in bytes: in a tree, its share when its engine started.
    Own BudgetBytes budget_bytes,
    /// The base page in bytes.
    Own BasePageBytes base_page_bytes,
    /// Gauge: anonymous memory of the process by the kernel's count, in bytes.
    Gauge AnonBytes anon_bytes,
    /// The most `anon_bytes` was seen to be.
    Peak AnonPeakBytes anon_peak_bytes,
    /// Gauge: bytes that managed regions hold in frames (resident).
    Gauge ResidentBytes resident_bytes,
    /// Gauge: of those, bytes that are only followed: as long as there is plenty of room the kernel
    /// fills new memory.
    Gauge FollowedBytes followed_bytes,
    /// The most `followed_bytes` was.
    Peak FollowedPeakBytes followed_peak_bytes,
    /// Gauge: bytes that are out of the regions with their frames intact (staged).
    Gauge StagedBytes staged_bytes,
    /// Gauge: bytes of unused frames that are ready.
    Gauge ReadyBytes ready_bytes,
    /// Gauge: bytes that may be used at once: ready frames, and the room left in the budget.
    Gauge FreeBytes free_bytes,
    /// Gauge: below so many free bytes only a fault that is being served gets a frame.
    Gauge FreeMinBytes free_min_bytes,
    /// Gauge: below so many free bytes reclaim starts.
    Gauge FreeLowBytes free_low_bytes,
    /// Gauge: at so many free bytes reclaim stops.
    Gauge FreeHighBytes free_high_bytes,
    /// Gauge: uncompressed bytes of the stored pages, without their OS pages of zeroes.
    Gauge StoredBytes stored_bytes,
    /// The most `stored_bytes` was seen to be.
    Peak StoredPeakBytes stored_peak_bytes,
    /// Gauge: bytes of memory that the compressed store takes.
    Gauge StoreMemoryBytes store_memory_bytes,
    /// Gauge: bytes of used blocks of the compressed store, with the waste within them.
    Gauge StoreUsedBytes store_used_bytes,
    /// Gauge: bytes of the packed pages in those blocks: the rest of `store_used_bytes` is wasted,
    /// a few hundredths of it.
    Gauge StorePackedBytes store_packed_bytes,
    /// The most `store_memory_bytes` was seen to be.
    Peak StoreMemoryPeakBytes store_memory_peak_bytes,
    /// Gauge: uncompressed bytes of stored pages of closed owners that are handed over to be freed;
    /// not in `stored_bytes`.
    Gauge ReleaseQueuedBytes release_queued_bytes,
    /// The most `release_queued_bytes` was.
    Peak ReleaseQueuedPeakBytes release_queued_peak_bytes,
    /// Gauge: bytes of the spill file in use.
    Gauge SpilledBytes spilled_bytes,
    /// The most requests to the store's file that one thread can have in flight at once: 32 with
    /// io_uring, 1 without it, 0 without a file.
    Peak FileRequestsAtOnce file_requests_at_once,
    /// Requests to the store's file that were in flight together with others of the same thread.
    Total FileRequestsTogether file_requests_together,
    /// The most `spilled_bytes` was seen to be.
    Peak SpilledPeakBytes spilled_peak_bytes,
    /// Gauge: Pagoda's own tables, stacks and heap, in bytes.
    Gauge OwnBytes own_bytes,
    /// Gauge: the page table of all that is managed, in bytes: 512 for each 64 entries of which one
    /// was used, and as much for each 64 of those.
    Gauge TableBytes table_bytes,
    /// Gauge: anonymous memory of the program that is not managed, in bytes.
    Gauge UnmanagedBytes unmanaged_bytes,
    /// `unmanaged_bytes` when `anon_bytes` plus stored content was at its peak.
    Peak UnmanagedAtPeakBytes unmanaged_at_peak_bytes,
    /// Gauge: bytes that the program holds: resident, staged, stored and unmanaged (its size
    /// without Pagoda).
    Gauge HeldBytes held_bytes,
    /// Gauge: the share of the tree's budget that the process may use now, in bytes; 0 if it has no
    /// engine.
    Gauge ShareBytes share_bytes,
    /// The most the program held at once: resident, staged, stored and unmanaged, in bytes (its
    /// peak without Pagoda).
    Peak HeldPeakBytes held_peak_bytes,
    /// Ranges of memory taken under management.
    Total AdoptedRanges adopted_ranges,
    /// Bytes of address space taken under management.
    Total AdoptedBytes adopted_bytes,
    /// Gauge: bytes by which a library's manager passes its budget, because nothing could be moved
    /// out while a fault waited.
    Gauge PassedBudgetBytes passed_budget_bytes,
    /// Gauge: bytes left alone because they are mlocked.
    Gauge LeftLockedBytes left_locked_bytes,
    /// Gauge: bytes of populated private anonymous memory left alone because it is read-only or has
    /// no access.
    Gauge LeftReadonlyBytes left_readonly_bytes,
    /// Gauge: bytes left alone because the memory is executable.
    Gauge LeftExecutableBytes left_executable_bytes,
    /// Gauge: bytes left alone because the memory is shared.
    Gauge LeftSharedBytes left_shared_bytes,
    /// Gauge: bytes left alone because the program keeps them out of its children (only where the
    /// kernel does not tell of forks).
    Gauge LeftUnforkedBytes left_unforked_bytes,
    /// Gauge: bytes left alone because the program registered them with userfaultfd itself.
    Gauge LeftRegisteredBytes left_registered_bytes,
    /// Gauge: bytes left alone because a live thread's control block, rseq area or robust mutex is
    /// in them.
    Gauge LeftThreadBytes left_thread_bytes,
    /// Gauge: bytes left alone because the mapping is too small or too young to be worth an event.
    Gauge LeftSmallBytes left_small_bytes,
    /// Faults of all kinds that were served: those with zeroes, on staged and on stored pages, and
    /// spurious ones together.
    Total Faults faults,
    /// Gauge: handlers that have faults to serve. A fault is counted when it has been served,
    /// perhaps after its thread goes on; when this is 0 all those are counted whose threads went on
    /// before.
    Gauge FaultsInService faults_in_service,
    /// Faults on content that never was, or was discarded: served with zeroes.
    Total FaultsZero faults_zero,
    /// Faults on staged pages: the second chance, served by one move.
    Total FaultsStaged faults_staged,
    /// Faults on pages that were fetched from the store, or from the file whose page it is.
    Total FaultsStored faults_stored,
    /// Of those the ones whose content was read from the store's file, the remote store, or the
    /// file whose page it is.
    Total FaultsSpilled faults_spilled,
    /// Base pages that were swapped in before they were touched, because the one beside them was.
    Total FetchedAhead fetched_ahead,
    /// Base pages that were filled with zeroes before anyone touched them, because the one below
    /// them was touched first.
    Total FilledAround filled_around,
    /// How often first touches of a region that goes by density got more at once than before.
    Total FillsGrown fills_grown,
    /// And how often less.
    Total FillsShrunk fills_shrunk,
    /// Faults that found their page already there.
    Total FaultsSpurious faults_spurious,
    /// Faults that had to wait for memory.
    Total FaultsThrottled faults_throttled,
    /// Times a fill met an unread event and was tried again.
    Total RetriesAgain retries_again,
    /// The time from a fault's having been read to its having been served, in nanoseconds, of all
    /// faults together.
    Total FaultServiceNs fault_service_ns,
    /// Processes with an engine whose faults and evictions are missing in the requested trace.
    Total Untraced untraced,
    /// Times a thread of the engine kept rights that the program had given up: it could not follow,
    /// or not within two seconds.
    Total RightsKept rights_kept,
    /// Base pages moved out of a region.
    Total Evictions evictions,
    /// Base pages that were evicted clean: the store still had a copy, and nothing was stored
    /// again.
    Total EvictionsClean evictions_clean,
    /// Base pages that went on to the store.
    Total Stores stores,
    /// Base pages that were all zero when they were to be stored: they cost nothing.
    Total StoresZero stores_zero,
    /// Base pages that repeat one word: they cost nothing.
    Total StoresSame stores_same,
    /// OS pages that could not be moved out because they were pinned or shared.
    Total EvictBusy evict_busy,
    /// Of the pages that were there already by the table those that were missing, and were filled
    /// with zeroes: a discard took them after its event had been applied. Nothing else is marked as
    /// there that is not.
    Total HolesFilled holes_filled,
    /// Faults that got a huge frame.
    Total FaultsHuge faults_huge,
    /// Bytes of frames that the kernel gave, zeroed: of huge ones, and of base frames of zones and
    /// of those that are got ahead.
    Total KernelZeroedBytes kernel_zeroed_bytes,
    /// Bytes of frames that had held something, and were cleared within a fault.
    Total ClearedInFaultBytes cleared_in_fault_bytes,
    /// Bytes of used frames that were cleared ahead of a request.
    Total ClearedAheadBytes cleared_ahead_bytes,
    /// Bytes of frames that were ready and zero when a fault asked.
    Total TakenClearedBytes taken_cleared_bytes,
    /// Processor time of clearing ahead, in nanoseconds.
    Total ClearingAheadNs clearing_ahead_ns,
    /// Huge frames that were moved out of their region whole, by reclaim and by closing.
    Total HugeMovedOut huge_moved_out,
    /// Huge frames in which content from another host was moved in.
    Total HugeArrived huge_arrived,
    /// Bytes from another host that came by a move, out of a frame into which they had been
    /// received or copied; whole huge frames count with the bytes that arrived.
    Total ArrivedMovedBytes arrived_moved_bytes,
    /// Bytes from another host that the kernel copied into fresh memory.
    Total ArrivedCopiedBytes arrived_copied_bytes,
    /// Base pages that could not be moved out because their mapping does not allow it.
    Total EvictRefused evict_refused,
    /// UNMAP events.
    Total EventsUnmap events_unmap,
    /// REMAP events.
    Total EventsRemap events_remap,
    /// REMOVE events (madvise).
    Total EventsRemove events_remove,
    /// Events that waited for another thread's.
    Total EventsDeferred events_deferred,
    /// Gauge: upper bound of the bytes beyond the process's share that are copies made by writes to
    /// memory shared by a fork, and not evicted yet.
    Gauge CopiedOnWriteBytes copied_on_write_bytes,
    /// The most `copied_on_write_bytes` was, of all processes of a tree together.
    Peak CopiedOnWritePeakBytes copied_on_write_peak_bytes,
    /// Writes to memory shared by a fork that were held until there was room for their copies.
    Total HeldWrites held_writes,
    /// The time that these waited, in nanoseconds.
    Total HeldWriteNs held_write_ns,
    /// Forks seen.
    Total Forks forks,
    /// Bytes that were out when the process forked, and were copied to the child.
    Total ForkCopiedBytes fork_copied_bytes,
    /// Bytes that were out when the process forked, and that the child's engine took over as they
    /// were stored.
    Total ForkTakenOverBytes fork_taken_over_bytes,
    /// Of them, bytes of pages that stayed in the parent's file, which the child reads.
    Total ForkLentBytes fork_lent_bytes,
    /// Bytes that could not be moved, perhaps because a fork shares them, and were made the
    /// process's own.
    Total MadeOwnBytes made_own_bytes,
    /// Bytes that were swapped in because the process forked and the kernel does not tell of
    /// forks.
    Total BroughtBackBytes brought_back_bytes,
    /// Processes whose memory was brought back, all of it, before they dumped core.
    Total CoresWhole cores_whole,
    /// Processes that dumped core and whose memory was not brought back: there was no room for it,
    /// or it took too long.
    Total CoresLeftOut cores_left_out,
    /// Child processes that were not managed.
    Total ChildrenUnmanaged children_unmanaged,
    /// Frames given back to the kernel, in bytes.
    Total ReleasedBytes released_bytes,
    /// Stored base pages that owners had when they closed and that were handed over to be freed.
    Total ReleaseQueued release_queued,
    /// Those that the closing thread freed at once.
    Total ReleaseInline release_inline,
    /// Those that are freed: `release_queued` and `release_inline` together, once nothing is
    /// queued.
    Total ReleaseFreed release_freed,
    /// Of them, those that were freed before the owner's last frame was back.
    Total ReleaseEarly release_early,
    /// Of those handed over, the ones freed by a thread that needed the room or waited for it.
    Total ReleaseHelped release_helped,
    /// Uncompressed bytes of freed pages.
    Total ReleaseBytes release_bytes,
    /// Closes of which something had to be freed at once because the queue was full or its worker
    /// stalled.
    Total ReleaseFallbacks release_fallbacks,
    /// Workers that were found stalled.
    Total ReleaseStalls release_stalls,
    /// Times the store was locked to free the pages of owners.
    Total ReleaseLocks release_locks,
    /// Time spent waiting for that lock, in nanoseconds.
    Total ReleaseLockWaitNs release_lock_wait_ns,
    /// Processor time spent on taking handles out of the tables and on freeing them, in
    /// nanoseconds, by whichever thread.
    Total ReleaseCpuNs release_cpu_ns,
    /// When the engine looked at the process last, in nanoseconds of the monotonic clock.
    Own LastLookNs last_look_ns,
    /// Looks at the maps of the process.
    Total MapScans map_scans,
    /// Processes that joined the tree: the program itself, and those below it that lived for 2 ms.
    Total Processes processes,
    /// Of them, those that grew so large that their engine started.
    Total ProcessesManaged processes_managed,
    /// Times a process of the tree replaced its program by exec.
    Total Execs execs,
    /// Gauge: bytes of pages, as they are stored, at the remote store.
    Gauge RemoteBytes remote_bytes,
    /// The most `remote_bytes` was seen to be.
    Peak RemotePeakBytes remote_peak_bytes,
    /// Failed requests to the remote store: no answer, cut off, full, refused, or lost.
    Total RemoteFailures remote_failures,
    /// Times the turns of all local zones began anew.
    Total ZonesResets zones_resets,
    /// Tries for a frame while no zone had one above its low watermark.
    Total ZonesShort zones_short,
    /// Bytes of frames that remote zones gave.
    Total ZonesSpilledBytes zones_spilled_bytes,
    /// Base pages that were staged to see whether they are used; they are among `evictions`.
    Total ZonesSampled zones_sampled,
    /// Bytes of hot pages whose content was moved from a remote zone to a local one.
    Total ZonesPromotedBytes zones_promoted_bytes,
    /// Bytes of cold pages whose content was moved from a local zone to a remote one.
    Total ZonesDemotedBytes zones_demoted_bytes,
    /// Gauge: the bytes of the zone that was named first; 0 with one zone, as all that follows.
    Gauge Zone0Bytes zone0_bytes,
    /// Gauge: bytes that the first zone has in frames: in the regions, staged and ready.
    Gauge Zone0HeldBytes zone0_held_bytes,
    /// Gauge: bytes that are free of the first zone.
    Gauge Zone0FreeBytes zone0_free_bytes,
    /// Gauge: bytes that allocations leave of the first zone, as long as another has more.
    Gauge Zone0LowBytes zone0_low_bytes,
    /// Gauge: bytes to which reclaim raises the free memory of the first zone.
    Gauge Zone0HighBytes zone0_high_bytes,
    /// Bytes of frames that the first zone gave.
    Total Zone0AllocatedBytes zone0_allocated_bytes,
    /// Bytes of frames of the first zone that reclaim moved out of the regions.
    Total Zone0EvictedBytes zone0_evicted_bytes,
    /// Gauge: the bytes of the second zone; 0 if there is none, as all that follows of it.
    Gauge Zone1Bytes zone1_bytes,
    /// Gauge: bytes that the second zone has in frames: in the regions, staged and ready.
    Gauge Zone1HeldBytes zone1_held_bytes,
    /// Gauge: bytes that are free of the second zone.
    Gauge Zone1FreeBytes zone1_free_bytes,
    /// Gauge: bytes that allocations leave of the second zone, as long as another has more.
    Gauge Zone1LowBytes zone1_low_bytes,
    /// Gauge: bytes to which reclaim raises the free memory of the second zone.
    Gauge Zone1HighBytes zone1_high_bytes,
    /// Bytes of frames that the second zone gave.
    Total Zone1AllocatedBytes zone1_allocated_bytes,
    /// Bytes of frames of the second zone that reclaim moved out of the regions.
    Total Zone1EvictedBytes zone1_evicted_bytes,
    /// Gauge: the bytes of the third zone; 0 if there is none, as all that follows of it.
    Gauge Zone2Bytes zone2_bytes,
    /// Gauge: bytes that the third zone has in frames: in the regions, staged and ready.
    Gauge Zone2HeldBytes zone2_held_bytes,
    /// Gauge: bytes that are free of the third zone.
    Gauge Zone2FreeBytes zone2_free_bytes,
    /// Gauge: bytes that allocations leave of the third zone, as long as another has more.
    Gauge Zone2LowBytes zone2_low_bytes,
    /// Gauge: bytes to which reclaim raises the free memory of the third zone.
    Gauge Zone2HighBytes zone2_high_bytes,
    /// Bytes of frames that the third zone gave.
    Total Zone2AllocatedBytes zone2_allocated_bytes,
    /// Bytes of frames of the third zone that reclaim moved out of the regions.
    Total Zone2EvictedBytes zone2_evicted_bytes,
    /// Gauge: the bytes of the fourth zone; 0 if there is none, as all that follows of it.
    Gauge Zone3Bytes zone3_bytes,
    /// Gauge: bytes that the fourth zone has in frames: in the regions, staged and ready.
    Gauge Zone3HeldBytes zone3_held_bytes,
    /// Gauge: bytes that are free of the fourth zone.
    Gauge Zone3FreeBytes zone3_free_bytes,
    /// Gauge: bytes that allocations leave of the fourth zone, as long as another has more.
    Gauge Zone3LowBytes zone3_low_bytes,
    /// Gauge: bytes to which reclaim raises the free memory of the fourth zone.
    Gauge Zone3HighBytes zone3_high_bytes,
    /// Bytes of frames that the fourth zone gave.
    Total Zone3AllocatedBytes zone3_allocated_bytes,
    /// Bytes of frames of the fourth zone that reclaim moved out of the regions.
    Total Zone3EvictedBytes zone3_evicted_bytes,
    /// Bytes of those that were cleared within a fault past the cache.
    Total ClearedStreamingBytes cleared_streaming_bytes,
    /// Bytes that the kernel had cleared and that are cleared again: of huge frames that it could
    /// not take back whole.
    Total ClearedTwiceBytes cleared_twice_bytes,
    /// First touches of base pages that got a frame which was ready and zero.
    Total FaultsZeroReady faults_zero_ready,
    /// Bytes of base frames that were got ready, for first touches or to read a file into, out of a
    /// huge page: contiguous in physical memory each, if the kernel had one.
    Total ContiguousReadyBytes contiguous_ready_bytes,
    /// Huge frames that left and were stored by base pages.
    Total HugeBroken huge_broken,
    /// Time that moving them out and storing them took, in nanoseconds.
    Total HugeBreakNs huge_break_ns,
    /// Huge frames that were joined of their base pages again.
    Total HugeRebuilt huge_rebuilt,
    /// Bytes that were copied for that.
    Total HugeRebuiltBytes huge_rebuilt_bytes,
    /// Time that joining took, in nanoseconds, refused tries included.
    Total HugeRebuildNs huge_rebuild_ns,
    /// Tries to join that the kernel refused.
    Total HugeRebuildsRefused huge_rebuilds_refused,
    /// Huge frames that came in OS pages: the kernel still had a table of those for the place, and
    /// took the frame apart; or it had had no huge page for the frame.
    Total HugeTorn huge_torn,
    /// Clears of a huge frame within a fault that yielded to another fault, as no handler was free.
    Total ClearsInterrupted clears_interrupted,
    /// Time from a fault's having been read to its having been served, in nanoseconds, of faults on
    /// stored pages.
    Total RefaultWaitNs refault_wait_ns,
    /// The bytes that had left memory since the page did, at nine of ten refaults and more: about
    /// what the budget lacks.
    Peak RefaultDistanceBytes refault_distance_bytes,
}
