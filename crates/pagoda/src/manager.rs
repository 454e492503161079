//! A library's manager: an engine for the regions of a program that asked for them.
//!
//! It runs on threads of the standard library, accounts for its own regions only, and ends when it
//! is dropped. This module must never manage memory that its owner has not given it.

use std::cell::RefCell;
use std::num::NonZeroU8;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::process::joinable::JoinableThread;
use pagoda_linux::process::process_mark::ProcessMark;
use pagoda_linux::uffd::fault_signal::Registration;
use pagoda_linux::uffd::{Mode, feature};

use crate::assemble::{Owner, Policies, assemble, handler_count};
use crate::config::Config;
use crate::engine::shared::{RECLAIMER, Shared};
use crate::error::abort_hook::report_and_abort;
use crate::error::{Errno, StartError};
use crate::frames::zones::{Place, ResizeError, ZoneConfig, ZoneStats};
use crate::reclaim::passing::{Exhausted, OnExhausted};
use crate::region::{AdoptedRegion, ForeignMemory, RegionBuilder, RegionError};
use crate::stats::counters::{Counters, Stats};
use crate::threads::sigbus::InThread;
use crate::tree::LibraryFile;
use crate::tuning::Tuning;

#[cfg(any(test, feature = "migrate"))]
use crate::engine::Engine;
#[cfg(feature = "migrate")]
use crate::error::other_process::OtherProcess;

/// The choices that a library's manager is made with; see [`Manager::builder`].
#[derive(Clone, Debug)]
pub struct ManagerBuilder {
    config: Config,
    mode: Mode,
    policies: Policies,
    tuning: Tuning,
    publishes: bool,
    on_exhausted: Option<OnExhausted>,
}

impl ManagerBuilder {
    /// All the memory that the manager's regions, frames and compressed pages may take: 256 MiB if
    /// it is not said.
    #[must_use]
    pub fn budget(mut self, budget: Bytes) -> Self {
        self.config.budget = budget;
        self
    }
    /// How long a call waits for memory that can't be had.
    #[cfg(test)]
    pub(crate) fn give_up(mut self, after: std::time::Duration) -> Self {
        self.config.give_up = after;
        self
    }
    /// Divides the budget among zones, memory of several kinds: adds one of `bytes`, called `name`
    /// (up to 16 small letters, digits and hyphens). The budget is then the sum of all zones,
    /// whatever else was set. Frames are taken from local zones in turns, in proportion to their
    /// sizes, and pages are evicted from the zone that is short. The frames of a zone on a node are
    /// from that node. There are at most [`ZONES_MAX`](crate::frames::zones::ZONES_MAX). With
    /// several, huge frames come only with a base page of 2 MiB.
    #[must_use]
    pub fn zone(self, name: &str, bytes: Bytes, place: Place) -> Self {
        self.weighted_zone(name, bytes, place, NonZeroU8::MIN)
    }

    /// The same with a weight for
    /// [`ZonePolicy::WeightedInterleave`](crate::ZonePolicy::WeightedInterleave); it is 1 if it is
    /// not said.
    #[must_use]
    pub fn weighted_zone(mut self, name: &str, bytes: Bytes, place: Place, weight: NonZeroU8) -> Self {
        self.config.zones.push(ZoneConfig { name: name.to_owned(), bytes, place, weight });
        self
    }
    /// The unit of management, and the base page of all regions without
    /// [their own](crate::region::RegionBuilder::base_page): the unit of eviction, of the store,
    /// and of a first touch. By default it is 64 KiB, and a first touch fills 4, 16 or 64 KiB of
    /// it, by the density of the touches: see [`Managed::fill`](crate::region::Managed::fill).
    #[must_use]
    pub fn base_page(mut self, base_page: BasePage) -> Self {
        self.config.base_page = base_page;
        self.policies.by_density = false;
        self
    }
    /// Spills pages that don't fit the compressed store to an unlinked file of at most `limit` in
    /// `directory`, which must be on a disk. Without it nothing is spilled.
    #[must_use]
    pub fn spill_to(mut self, directory: impl Into<PathBuf>, limit: Bytes) -> Self {
        self.config.store_directory = directory.into();
        self.config.file_limit = limit;
        self
    }
    /// Keeps pages that fit neither memory nor the file at a Redis or Valkey server, or a cluster
    /// that has one at this address, at most `limit` bytes of them (the server adds some 100 bytes
    /// to every page). The server must not evict them: it has no memory limit, or the policy
    /// `noeviction`. The pages of a manager that ended without order expire there after two
    /// minutes.
    ///
    /// A page that only the server has ends the process if it can't be fetched within 10 s, is
    /// lost, or comes back different.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn remote_store(mut self, address: crate::RemoteAddress, limit: Bytes) -> Self {
        self.config.remote = Some(address);
        self.config.remote_limit = limit;
        self
    }
    /// Serves faults of the program only, which needs no privilege on stock kernels. The
    /// consequence: **a system call that is handed an address in a region whose page is not present
    /// fails with `EFAULT`**. Touch a buffer before a `read` into it, or copy through
    /// [`Region::read_at`](crate::region::Region::read_at), which does.
    /// [`Managed::serves_the_kernel`](crate::region::Managed::serves_the_kernel) tells it of a
    /// region.
    #[must_use]
    pub fn user_mode_only(mut self, yes: bool) -> Self {
        self.mode = if yes { Mode::UserOnly } else { Mode::Full };
        self
    }
    /// Serves each fault in the faulting thread, in a handler of SIGBUS, and not by a thread of the
    /// manager. No thread is woken, and a page from the compressed store is there in a fraction of
    /// the time. For buffer pools, heaps and sandboxes whose owner knows which threads touch them.
    /// Faults of system calls are not served, as with [`user_mode_only`](Self::user_mode_only),
    /// which needs no privilege either. The program has these duties:
    ///
    /// - SIGBUS is the library's from now on. An earlier handler is called for memory that is not
    ///   managed; one that is installed later has to call the one it replaced. No thread that
    ///   touches a region blocks SIGBUS.
    /// - Each thread that touches a region has 64 KiB of its stack left, and its stack is not in a
    ///   region. Nor does the program's allocator hand out regions' memory.
    /// - No handler of a signal touches a region.
    #[must_use]
    pub fn serve_in_thread(mut self, yes: bool) -> Self {
        self.policies.in_thread = yes;
        self
    }
    /// Whether faults are told by their pages, as before Linux 5.18.
    #[cfg(test)]
    pub(crate) fn masked_addresses(mut self, yes: bool) -> Self {
        self.policies.masked_addresses = yes;
        self
    }
    /// Changes the choices of policy that are for comparisons: the defaults are those that the
    /// benches found best.
    ///
    /// ```
    /// # use pagoda::Manager;
    /// let builder = Manager::builder().tune(|tuning| tuning.fault_around(false).clear_ahead(0));
    /// ```
    #[must_use]
    pub fn tune(mut self, change: impl FnOnce(Tuning) -> Tuning) -> Self {
        self.tuning = change(self.tuning);
        self
    }
    /// Shows the manager to `pagoda top` of the same user, which finds a file of some OS pages in
    /// `XDG_RUNTIME_DIR`, `/dev/shm` or the directory for temporary files. It shows this process
    /// with the manager's figures, the 16 largest regions, and the progress of their migrations. A
    /// thread of its own writes them there ten times a second; reading costs nothing. The file is
    /// removed with the manager. `pagoda top` skips the file of a process that ended without
    /// dropping it.
    #[must_use]
    pub fn publish(mut self, yes: bool) -> Self {
        self.publishes = yes;
        self
    }
    /// Calls `told` each time that the budget is exhausted: a fault waited for a second, and
    /// nothing could be moved out to make room. The stores are full, or memory is locked, protected
    /// or pinned. The budget is passed then, by a share of it, and by twice as much each further
    /// time; so one region's owner can't end the process. Memory that is free again is taken back
    /// once a second. `told` runs on a thread of its own, may use regions, and best closes some.
    /// Without it [`passed_budget_bytes`](Stats::passed_budget_bytes) tells.
    #[must_use]
    pub fn on_exhausted(mut self, told: impl Fn(Exhausted) + Send + Sync + 'static) -> Self {
        self.on_exhausted = Some(OnExhausted::new(told));
        self
    }
    /// Makes the manager and starts its threads.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn build(mut self) -> Result<Manager, StartError> {
        self.tuning.apply(&mut self.config, &mut self.policies);
        let zones = &self.config.zones;
        if !zones.is_empty() {
            let sum = zones.iter().try_fold(0u64, |sum, zone| sum.checked_add(zone.bytes.get()));
            self.config.budget = Bytes::new(sum.ok_or(StartError::ZonesUnfit)?);
        }
        let published = self.publishes.then(|| {
            LibraryFile::create(self.config.budget, self.config.base_page)
                .map_err(|error| StartError::Publish(Errno::from(&error)))
        });
        let published = published.transpose()?;
        let counters = match &published {
            Some(file) => file.counters(),
            None => Counters::private().map_err(|error| StartError::AddressSpace(Errno::from(&error)))?,
        };
        let counters = Arc::new(counters);
        let maker = ProcessMark::of_this_process();
        let maker = maker.map_err(|error| StartError::AddressSpace(Errno::from(&error)))?;
        let adoption = pagoda_linux::mem::region_memory::own_regions();
        // A library's threads use the program's allocator. A thread that forks holds the
        // allocator's locks while it waits for us. So a child gets none of the regions.
        let mode = if self.policies.in_thread { Mode::UserOnly } else { self.mode };
        let owner = Owner::Library(mode);
        let mut engine = assemble(&self.config, counters, owner, &adoption, self.policies, report_and_abort)?;
        engine.on_exhausted = self.on_exhausted;
        let engine = Arc::new(engine);
        engine.begin_to_help();
        let registration = self.policies.in_thread.then(|| {
            Registration::new(Arc::new(InThread::new(Arc::clone(&engine))))
                .map_err(|error| StartError::FaultSignal(Errno::from(&error)))
        });
        let registration = registration.transpose()?;
        // Before memory can be adopted, which turns it off.
        engine.lift.turn_on();
        let shards = engine.store.releases().shards();
        let shared = Arc::new(Shared::new(maker, engine, registration, mode));
        let base = self.config.base_page;
        // Without faults there are only events, which are read one after another anyway.
        let handlers = if self.policies.in_thread { 1 } else { handler_count() };
        for id in 0..handlers {
            shared.spawn("pagoda-handler", base, move |engine, scratch| engine.handle(id, scratch))?;
        }
        shared.spawn(RECLAIMER, base, |engine, scratch| {
            let lifter = RefCell::new(None);
            // Few hosts protect a region: the thread is started when it is needed.
            let start = || {
                let of_lifter = Arc::clone(engine);
                let lift = move || {
                    pagoda_linux::process::thread::block_signals_for_good();
                    of_lifter.lift.serve(|range, place| of_lifter.space.lift(range, place).is_ok());
                };
                let mut lifter = lifter.borrow_mut();
                *lifter = JoinableThread::start("pagoda-lift", lift).ok();
                lifter.is_some()
            };
            engine.reclaim(None, Some(&start), scratch);
            lifter.take().into_iter().for_each(|thread| drop(thread.join()));
        })?;
        for shard in 0..shards {
            shared.spawn("pagoda-release", base, move |engine, _| {
                pagoda_linux::process::thread::raise_priority();
                engine.work_on_releases(shard);
            })?;
        }
        if self.policies.clearing.ahead_percent > 0 {
            shared.spawn("pagoda-clear", base, |engine, _| engine.clear_ahead())?;
        }
        shared.spawn("pagoda-keep", base, |engine, _| engine.store.keep(&engine.quit_handlers))?;
        if let Some(file) = published {
            shared.spawn("pagoda-publish", base, move |engine, _| engine.publish(&file))?;
        }
        Ok(Manager { shared })
    }
}

/// Manages regions within a budget. Cheap to clone; it lives as long as its last clone or region.
///
/// ```
/// use pagoda::{Bytes, Manager};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !pagoda::userfaultfd_allows_managers() { return Ok(()); }
/// let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build()?;
/// let mut region = manager.region(Bytes::mib(256)).create()?;
/// region.write_at(200 << 20, b"far beyond the budget, and not lost")?;
/// let mut back = [0; 35];
/// region.read_at(200 << 20, &mut back)?;
/// assert_eq!(&back, b"far beyond the budget, and not lost");
/// assert!(manager.stats().resident_bytes <= 64 << 20);
/// region.close();
/// # Ok(())
/// # }
/// ```
///
/// # In a forked child
/// A child of fork(2) has neither the threads nor the regions. There everything refuses with
/// [`OtherProcess`] or forgets, dropping does nothing, and a touch of a
/// region's address is a fault (SIGSEGV). A child that wants managed memory builds a manager of its
/// own.
#[derive(Clone)]
pub struct Manager {
    shared: Arc<Shared>,
}

impl Manager {
    /// Begins a manager.
    #[must_use]
    pub fn builder() -> ManagerBuilder {
        let policies = Policies { by_density: true, ..Policies::default() };
        ManagerBuilder {
            config: Config::library(),
            mode: Mode::Full,
            policies,
            tuning: Tuning::default(),
            publishes: false,
            on_exhausted: None,
        }
    }

    /// Begins a region of `len`, rounded up to whole base pages. It reads as zero and takes no
    /// memory yet.
    #[must_use]
    pub fn region(&self, len: Bytes) -> RegionBuilder {
        RegionBuilder::new(Arc::clone(&self.shared), len)
    }

    /// Begins to map the file at `path`: a region whose pages are read from it and written back to
    /// it, through this manager's budget and not through the kernel's page cache.
    #[must_use]
    pub fn map_file(&self, path: impl AsRef<std::path::Path>) -> crate::file::FileRegionBuilder {
        crate::file::FileRegionBuilder::new(Arc::clone(&self.shared), path.as_ref())
    }

    /// The same of a file that is open, by a descriptor of its own: the file is opened anew for
    /// what the builder says, which this user must be allowed to.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn map_open_file(&self, file: impl AsFd) -> std::io::Result<crate::file::FileRegionBuilder> {
        let file = file.as_fd().try_clone_to_owned()?;
        Ok(crate::file::FileRegionBuilder::of_open(Arc::clone(&self.shared), file))
    }

    /// Takes memory that was mapped by another under management, with its content, which
    /// [`AdoptedRegion`] gives back or forgets. Making a [`ForeignMemory`] is unsafe: its owner
    /// vouches for the memory. Shared memory is refused: the kernel moves no pages out of it, and
    /// does not show what other mappings of it write.
    ///
    /// # Errors
    /// See [`RegionError`]: memory of which a part is managed already is refused.
    pub fn adopt(&self, memory: ForeignMemory) -> Result<AdoptedRegion, RegionError> {
        AdoptedRegion::adopt(Arc::clone(&self.shared), memory, None)
    }

    /// The same with a base page of its own, as [`RegionBuilder::base_page`] tells. For 2 MiB it
    /// gets 64 KiB: whether its mapping may have huge pages is for its owner to say. Base pages are
    /// counted from its first address.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt), and if the manager can't have that base page.
    pub fn adopt_with(
        &self,
        memory: ForeignMemory,
        base_page: BasePage,
    ) -> Result<AdoptedRegion, RegionError> {
        AdoptedRegion::adopt(Arc::clone(&self.shared), memory, Some(base_page))
    }

    /// The state and totals of each zone, by name, in the order in which they were named. Empty
    /// unless there are several, and in a forked child.
    #[must_use]
    pub fn zones(&self) -> Vec<(String, ZoneStats)> {
        let Ok(engine) = self.shared.engine() else { return Vec::new() };
        engine.zones.names().into_iter().zip(ZoneStats::all(&self.stats())).collect()
    }

    /// Changes the budget, and all zones in proportion. It returns at once. A larger budget is used
    /// from now on. For a smaller one reclaim begins at once, and evicts as fast as it compresses,
    /// some hundred MiB a second: [`anon_bytes`](Stats::anon_bytes) shows how much is held.
    /// Bounds and errors are those of [`resize_zone`](Self::resize_zone): up to twice the budget
    /// that the manager was made with.
    ///
    /// # Errors
    /// See [`ResizeError`]; then nothing has changed.
    pub fn set_budget(&self, budget: Bytes) -> Result<(), ResizeError> {
        self.shared.engine()?.resize_budget(budget)
    }

    /// Resizes the zone `name`, and the budget to the sum of all zones. A manager whose zones were
    /// not named has one, `all`. Nothing in memory is lost, and no thread waits: pages beyond the
    /// new size are evicted in the background, as long as they can be stored, and their frames go
    /// back to the kernel. [`zones`](Self::zones) shows the progress.
    ///
    /// A zone can grow to twice the size that it was made with, and has 4 MiB at least. The limit
    /// of the compressed store stays as it was.
    ///
    /// # Errors
    /// See [`ResizeError`]; then nothing has changed.
    pub fn resize_zone(&self, name: &str, bytes: Bytes) -> Result<(), ResizeError> {
        self.shared.engine()?.resize_zone(name, bytes)
    }

    /// Returns when everything of closed regions is freed: frames, stored pages and tables. Frees
    /// that itself which no worker has begun. Also waits for regions that are closed meanwhile.
    /// Blocks as long as that takes. Does nothing in a forked child.
    pub fn flush_releases(&self) {
        if let Ok(engine) = self.shared.engine() {
            engine.flush_releases();
        }
    }

    #[cfg(test)]
    pub(crate) fn join_threads(&self, names: &[&str]) {
        self.shared.join_threads(names);
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.shared.engine_of_maker())
    }

    /// The engine with its threads.
    #[cfg(feature = "image")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The engine, in the process that made the manager.
    #[cfg(feature = "migrate")]
    pub(crate) fn maker(&self) -> Result<&Arc<Engine>, OtherProcess> {
        self.shared.engine()
    }

    /// The current state and totals of the manager. All zero in a forked child, which has none of
    /// it.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Ok(engine) = self.shared.engine() else { return Stats::default() };
        engine.publish_library_gauges();
        engine.counters.snapshot()
    }
}

/// Whether this machine lets this process make a library's manager in user mode: userfaultfd with
/// `UFFDIO_MOVE`.
#[must_use]
pub fn userfaultfd_allows_managers() -> bool {
    pagoda_linux::uffd::Uffd::open(Mode::UserOnly, feature::PROCESS).is_ok()
}
