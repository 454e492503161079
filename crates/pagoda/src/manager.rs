//! Making an engine and its threads: for the regions of a library, or for a whole process.
//!
//! A library's manager runs on threads of the standard library, accounts for its own regions only, and ends when it is
//! dropped. A process's engine is made by the preload library on raw threads that the program can't see, goes by the
//! kernel's count of the whole process, and never ends.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagoda_core::budget::store_most;
use pagoda_core::clear::Order;
use pagoda_core::page::BasePage;
use pagoda_core::release::ReleasePolicy;
use pagoda_core::size::Bytes;
use pagoda_core::watermark::Watermarks;
use pagoda_core::zone::ZonePolicy;
use pagoda_linux::fault_signal::Registration;
use pagoda_linux::offer::Stream;
use pagoda_linux::pagemap::PagemapScanner;
use pagoda_linux::space::{Adoption, Space};
use pagoda_linux::statm::StatmReader;
use pagoda_linux::tcb::ThreadLayout;
use pagoda_linux::thread::{Files, spawn_raw};
use pagoda_linux::uffd::{Mode, Uffd, feature};

use crate::around::Around;
use crate::config::Config;
use crate::counters::{Counters, Snapshot};
use crate::engine::{Engine, StopHook};
use crate::error::{Errno, StartError, StopReason};
use crate::huge::Clearing;
use crate::in_thread::InThread;
use crate::region::RegionBuilder;
use crate::store::{
    FileConfig, OpenError, RemoteAddress, RemoteConfig, RemoteOpenError, Scratch, StoreConfig, TieredStore,
};
use crate::table::entry_bytes;
use crate::tree::ShareKeeper;
use crate::watch::Watcher;
use crate::zones::{self, Place, ZoneConfig, ZoneStats, Zones};

/// Threads that serve faults: one more than a blocking fetch can occupy, no more than processors help.
pub(crate) fn handler_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(2, crate::engine::HANDLERS_MAX)
}

/// What closed owners had in the store and is not freed yet, before compression, in budgets at most: what the store's share of
/// the budget holds at 4:1, and some more of what is spilled. It takes no memory beyond the store's own limit.
const QUEUED_BUDGETS: u64 = 4;

/// How long a remote store keeps what nobody renews: a host that is cut off for so long has lost what it had there.
const REMOTE_EXPIRY: Duration = Duration::from_secs(120);

/// The least zone: what a program fills between two looks, twice over.
const ZONE_LEAST: Bytes = Bytes::mib(4);

/// The name of the thread that reclaims.
const RECLAIMER: &str = "pagoda-reclaim";

/// What a library's user may choose, and a process has as it is.
#[derive(Clone, Copy, Debug, Default)]
struct Policies {
    release: ReleasePolicy,
    clearing: Clearing,
    /// Faults are served in the thread that has them.
    in_thread: bool,
    /// Who touches memory upwards gets more than it faulted for.
    fault_around: bool,
}

/// The parts that both kinds of engine share.
fn assemble(
    config: &Config,
    counters: Arc<Counters>,
    mode: Mode,
    serves_forks: bool,
    adoption: &Adoption,
    of_parent: Option<Uffd>,
    policies: Policies,
    stop_hook: StopHook,
) -> Result<Engine, StartError> {
    let handlers = handler_count() as u32;
    if config.budget < Watermarks::least_budget(config.base_page, handlers) {
        return Err(StartError::BudgetBelowMinimum);
    }
    let slot_bytes = entry_bytes(config.base_page);
    let least = Watermarks::least_share(config.base_page, handlers).max(ZONE_LEAST);
    let zones = zones::in_order(&config.zones, config.budget, least, pagoda_linux::node::current());
    let zones = zones.map_err(|zones::Unfit| StartError::ZonesUnfit)?;
    let plan = zones.into_iter().map(|ranked| {
        // Frames never hold more than the budget; as many addresses again keep runs of empty slots at hand.
        let slots = (2 * ranked.zone.bytes.as_usize()).next_multiple_of(2 << 20) / slot_bytes;
        let slots = u32::try_from(slots).map_err(|_| StartError::AddressSpace(Errno::NONE))?;
        Ok((ranked, slots))
    });
    let plan: Vec<zones::Plan> = plan.collect::<Result<_, StartError>>()?;
    let slots = plan.iter().try_fold(0u32, |sum, (_, slots)| sum.checked_add(*slots));
    let slots = slots.ok_or(StartError::AddressSpace(Errno::NONE))?;
    let fork = if serves_forks { feature::EVENT_FORK } else { 0 };
    // A program's own huge pages would have to be taken apart: it has none.
    // Nor have several zones any: a huge frame would have to be of one.
    let huge =
        if serves_forks || plan.len() > 1 { 0 } else { crate::huge::slots(config.budget, config.base_page) };
    let open = |features| Space::open(adoption, mode, features, slots, slot_bytes, huge);
    // A library's regions can be sent elsewhere, which takes seeing who writes; it does without where that is not to be had.
    let tracks = if serves_forks { 0 } else { feature::WP_ASYNC };
    let always = feature::PROCESS | if policies.in_thread { feature::SIGBUS } else { 0 };
    // EVENT_FORK needs a privilege that the rest does not: without it, a fork is only seen by its hooks.
    let (space, fork_events) = match of_parent {
        Some(uffd) => (Space::open_over(adoption, uffd, always | fork, slots, slot_bytes), true),
        None => match open(always | fork | tracks) {
            Err(error) if fork != 0 && error.raw_os_error() == Some(1) => (open(always), false),
            Err(error) if tracks != 0 && error.raw_os_error() == Some(22) => (open(always), false),
            result => (result, fork != 0),
        },
    };
    let space = space.map_err(|error| space_error(&error))?;
    let mut first = 0;
    for (ranked, slots) in &plan {
        if let Place::Node(node) = ranked.zone.place {
            let bound = space.bind(first..first + slots, node);
            bound.map_err(|errno| StartError::ZoneNode(Errno(errno.raw_os_error())))?;
        }
        first += slots;
    }
    let limit = store_most(config.budget);
    let file = (config.file_limit > Bytes::ZERO)
        .then(|| FileConfig { directory: config.store_directory.clone(), limit: config.file_limit });
    let remote = config.remote.clone().map(|address| RemoteConfig {
        address,
        limit: config.remote_limit,
        expiry: REMOTE_EXPIRY,
    });
    let store = TieredStore::open(StoreConfig { base: config.base_page, memory_limit: limit, file, remote })
        .map_err(|error| store_error(&error))?
        .releasing_by(policies.release, Bytes::new(QUEUED_BUDGETS * config.budget.get()));
    let (budget, base) = (config.budget, config.base_page);
    let mut engine = Engine::new(
        space,
        Zones::new(plan, config.zone_policy),
        (huge, policies.clearing),
        store,
        counters,
        budget,
        base,
        handlers,
        fork_events,
        stop_hook,
    );
    engine.around = Around::new(base, policies.fault_around);
    Ok(engine)
}

fn space_error(error: &io::Error) -> StartError {
    let errno = Errno::from(error);
    match errno.0 {
        12 => StartError::AddressSpace(errno),
        22 => StartError::MoveMissing,
        23 | 24 => StartError::DescriptorLimit(errno),
        _ => StartError::Userfaultfd(errno),
    }
}

fn store_error(error: &OpenError) -> StartError {
    use pagoda_linux::direct_file::DirectFileError;
    match error {
        OpenError::MemoryLimit { .. } => StartError::BudgetBelowMinimum,
        OpenError::FileLimit { .. } => StartError::StoreDirectory(Errno(27)),
        OpenError::Reserve { source, .. } => StartError::AddressSpace(Errno::from(source)),
        OpenError::File(DirectFileError::Create { source, .. }) => {
            StartError::StoreDirectory(Errno::from(source))
        }
        OpenError::File(DirectFileError::InMemory { .. }) => StartError::StoreDirectoryInMemory,
        OpenError::File(DirectFileError::NoDirectIo { .. }) => StartError::StoreDirectIo(Errno(22)),
        OpenError::Remote(RemoteOpenError::Unusable(source)) => {
            StartError::RemoteStore(Errno(source.raw_errno()))
        }
        OpenError::Remote(RemoteOpenError::Limit { .. }) => StartError::RemoteStore(Errno(27)),
        OpenError::Remote(RemoteOpenError::Evicts | RemoteOpenError::Cluster) => StartError::RemoteStoreUnfit,
    }
}

/// The engine of a whole process, for the preload library.
pub struct ProcessEngine {
    engine: Arc<Engine>,
}

impl ProcessEngine {
    /// Makes the engine, on the calling thread's descriptors: call it on a raw thread with a table of its own. `layout` was measured
    /// on a thread of the program. The tables are made for the whole budget of `config`, which the process may come to have; what
    /// it has now is what `keeper` says. `is_child`: it was forked, and shares memory. `of_parent`: the descriptor that its
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
        let engine = assemble(config, counters, Mode::Full, true, adoption, of_parent, policies, stop_hook)?;
        engine.set_budget(keeper.share());
        engine.has_forked.store(is_child, Ordering::Release);
        let proc_error = |error: io::Error| StartError::Proc(Errno::from(&error));
        let watcher = Watcher::new(layout, keeper).map_err(proc_error)?;
        let count = StatmReader::new().map_err(proc_error)?;
        Ok(PreparedEngine { engine: Arc::new(engine), watcher, count })
    }

    /// A thread is about to fork. False if the kernel does not tell of forks: then everything has to be released
    /// before.
    #[must_use]
    pub fn announce_fork(&self) -> bool {
        self.engine.forks_announced.fetch_add(1, Ordering::SeqCst);
        self.engine.fork_events
    }

    /// What a child has to be given, and will hold until its own engine has evicted it.
    #[must_use]
    pub fn out_bytes(&self) -> Bytes {
        self.engine.out_bytes()
    }

    /// Whether a child takes that over as it is stored.
    #[must_use]
    pub fn hands_over(&self) -> bool {
        self.engine.hands_over()
    }

    /// Brings everything back, ends the management, and returns when that is done: before a fork.
    pub fn release(&self) {
        self.engine.release_requested.store(true, Ordering::Release);
        while !self.engine.release_done.load(Ordering::Acquire) {
            pagoda_linux::thread::sleep_us(200);
        }
    }

    /// The pins; see [`Pins`](crate::pins::Pins).
    #[must_use]
    pub fn pins(&self) -> &crate::pins::Pins {
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
}

impl PreparedEngine {
    /// Takes all that this process lacks from its parent, whose offer it has accepted. Blocks until the parent has sent it.
    ///
    /// # Errors
    /// The parent is gone, or there is no room: this process can't go on.
    pub fn take_over(&mut self, stream: &Stream) -> io::Result<()> {
        let mut present = PagemapScanner::new()?;
        self.engine.take_over(stream, &mut present, &mut Scratch::new(self.engine.base))
    }

    /// Starts the threads. The watcher runs on the calling thread afterwards, by [`ProcessWatcher::run`].
    ///
    /// # Errors
    /// [`StartError::Threads`].
    pub fn start(self) -> Result<(ProcessEngine, ProcessWatcher), StartError> {
        let Self { engine, watcher, count } = self;
        let thread_error = |error: io::Error| StartError::Threads(Errno::from(&error));
        for id in 0..handler_count() {
            let engine = Arc::clone(&engine);
            let mut scratch = Scratch::new(engine.base);
            let body = Box::new(move || engine.handle(id, &mut scratch));
            spawn_raw(c"pagoda-handler", Files::Shared, body).map_err(thread_error)?;
        }
        let reclaimer = Arc::clone(&engine);
        let mut scratch = Scratch::new(engine.base);
        let body = Box::new(move || reclaimer.reclaim(Some(&count), &mut scratch));
        spawn_raw(c"pagoda-reclaim", Files::Shared, body).map_err(thread_error)?;
        for shard in 0..engine.store.releases().shards() {
            let engine = Arc::clone(&engine);
            let body = Box::new(move || engine.work_on_releases(shard));
            spawn_raw(c"pagoda-release", Files::Shared, body).map_err(thread_error)?;
        }
        let keeper = Arc::clone(&engine);
        let body = Box::new(move || keeper.store.keep(&keeper.quit_handlers));
        spawn_raw(c"pagoda-keep", Files::Shared, body).map_err(thread_error)?;
        engine.counters.set(crate::counters::Counter::Status, crate::counters::Status::Managed as u64);
        Ok((ProcessEngine { engine: Arc::clone(&engine) }, ProcessWatcher { engine, watcher }))
    }
}

/// The watcher of a process's engine, ready to run.
pub struct ProcessWatcher {
    engine: Arc<Engine>,
    watcher: Watcher,
}

impl ProcessWatcher {
    /// Watches for good.
    pub fn run(mut self) {
        self.engine.watch(&mut self.watcher);
    }
}

/// What a library's manager is made with; see [`Manager::builder`].
#[derive(Clone, Debug)]
pub struct ManagerBuilder {
    config: Config,
    mode: Mode,
    policies: Policies,
}

impl ManagerBuilder {
    /// All the memory that the manager's regions, frames and compressed pages may take: 256 MiB if it is not said.
    #[must_use]
    pub fn budget(mut self, budget: Bytes) -> Self {
        self.config.budget = budget;
        self
    }
    /// Divides the budget among zones, memory of several kinds: adds one of `bytes`, called `name` (up to 16 small letters, digits
    /// and hyphens). The budget is what all zones have together then, whatever else is said of it. Frames are taken from local
    /// zones in turns, in proportion to their sizes, and pages are moved out of the one that is short. The frames of a zone on a
    /// node are from that node. There are at most [`ZONES_MAX`](crate::zones::ZONES_MAX), and no huge frames with several.
    #[must_use]
    pub fn zone(mut self, name: &str, bytes: Bytes, place: Place) -> Self {
        self.config.zones.push(ZoneConfig { name: name.to_owned(), bytes, place });
        self
    }
    /// How zones share allocations: by [`ZonePolicy::Fair`] if it is not said.
    #[must_use]
    pub fn zone_policy(mut self, policy: ZonePolicy) -> Self {
        self.config.zone_policy = policy;
        self
    }
    /// The unit of management: 64 KiB if it is not said.
    #[must_use]
    pub fn base_page(mut self, base_page: BasePage) -> Self {
        self.config.base_page = base_page;
        self
    }
    /// Spills what does not fit the compressed store into an unlinked file of at most `limit` in `directory`, which must
    /// be on a disk. Without it nothing is spilled.
    #[must_use]
    pub fn spill_to(mut self, directory: impl Into<PathBuf>, limit: Bytes) -> Self {
        self.config.store_directory = directory.into();
        self.config.file_limit = limit;
        self
    }
    /// Keeps what neither memory nor the file takes at a Redis or Valkey server, at most `limit` bytes of it (the server
    /// adds some 100 bytes to every page). It has to keep what it is given: without a memory limit, or with the policy
    /// `noeviction`. What a manager that ended without order had there expires after two minutes.
    ///
    /// A page that only the server has and that can't be fetched within 10 s ends the process, as does one that the server
    /// has lost, or that comes back other than it was stored.
    #[must_use]
    pub fn remote_store(mut self, address: RemoteAddress, limit: Bytes) -> Self {
        self.config.remote = Some(address);
        self.config.remote_limit = limit;
        self
    }
    /// Serves faults of the program only, which needs no privilege on stock kernels. The consequence: **a system call
    /// that is handed an address in a region whose page is not present fails with `EFAULT`**. Touch a buffer before a
    /// `read` into it, or copy through [`Region::read_at`](crate::region::Region::read_at), which does.
    #[must_use]
    pub fn user_mode_only(mut self, yes: bool) -> Self {
        self.mode = if yes { Mode::UserOnly } else { Mode::Full };
        self
    }
    /// Serves each fault in the thread that has it, in a handler of SIGBUS, and not by a thread of the manager: nobody is woken, and
    /// a page from the compressed store is there in a fraction of the time. For buffer pools, heaps and sandboxes whose owner knows
    /// who touches them. Faults of system calls are not served, as with [`user_mode_only`](Self::user_mode_only), which needs no
    /// privilege either. What the program owes:
    ///
    /// - SIGBUS is the library's from now on. A handler that was there before is called for what is not managed; one that is
    ///   installed later has to call the one it replaced. No thread that touches a region blocks SIGBUS.
    /// - Each thread that touches a region has 64 KiB of its stack left, and its stack is not in a region. Nor does the program's
    ///   allocator hand out regions' memory.
    /// - No handler of a signal touches a region.
    #[must_use]
    pub fn serve_in_thread(mut self, yes: bool) -> Self {
        self.policies.in_thread = yes;
        self
    }
    /// Whether who touches memory for the first time and goes on upwards gets up to 2 MiB with one fault; yes, if it is not said. Twice as much with each
    /// fault of a stream, one base page after any other. It never goes beyond a region or where something is, nor is anything
    /// filled so when less than 8 MiB are left above the high watermark. A stream that ends leaves at most as much filled and
    /// untouched as it was long. It does not matter with a base page of 2 MiB.
    #[must_use]
    pub fn fault_around(mut self, yes: bool) -> Self {
        self.policies.fault_around = yes;
        self
    }
    /// How what a closed region had in the store is released: by [`ReleasePolicy::Background`] if it is not said.
    #[must_use]
    pub fn release(mut self, policy: ReleasePolicy) -> Self {
        self.policies.release = policy;
        self
    }
    /// The order in which a huge frame that was used before is cleared within a fault:
    /// [`Order::Streaming`](pagoda_core::clear::Order::Streaming) if it is not said. It matters with a base page of 2 MiB only.
    #[must_use]
    pub fn clear_order(mut self, order: Order) -> Self {
        self.policies.clearing.order = order;
        self
    }
    /// How much of one processor may be spent to clear huge frames before anybody asks for them, in percent: 10 if it is not
    /// said, 0 for none. At most an eighth of the budget, and 64 MiB, are kept ready. It matters with a base page of 2 MiB
    /// only, and nothing is cleared ahead before the first fault that got a huge frame.
    #[must_use]
    pub fn clear_ahead(mut self, percent: u32) -> Self {
        self.policies.clearing.ahead_percent = percent.min(100);
        self
    }
    /// Makes the manager and starts its threads.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn build(mut self) -> Result<Manager, StartError> {
        let zones = &self.config.zones;
        if !zones.is_empty() {
            let sum = zones.iter().try_fold(0u64, |sum, zone| sum.checked_add(zone.bytes.get()));
            self.config.budget = Bytes::new(sum.ok_or(StartError::ZonesUnfit)?);
        }
        let counters =
            Arc::new(Counters::private().map_err(|error| StartError::AddressSpace(Errno::from(&error)))?);
        let adoption = pagoda_linux::region_memory::own_regions();
        // A library's threads use the program's allocator, whose locks a thread that forks holds while it waits for us: a
        // child gets none of the regions instead.
        let mode = if self.policies.in_thread { Mode::UserOnly } else { self.mode };
        let engine = Arc::new(assemble(
            &self.config,
            counters,
            mode,
            false,
            &adoption,
            None,
            self.policies,
            report_and_abort,
        )?);
        let registration = self.policies.in_thread.then(|| {
            Registration::new(Arc::new(InThread::new(Arc::clone(&engine))))
                .map_err(|error| StartError::FaultSignal(Errno::from(&error)))
        });
        let registration = registration.transpose()?;
        let shared =
            Arc::new(Shared { engine, threads: Mutex::new(Vec::new()), _registration: registration });
        let base = self.config.base_page;
        // Without faults there are only events, whose order is one anyway.
        let handlers = if self.policies.in_thread { 1 } else { handler_count() };
        for id in 0..handlers {
            shared.spawn("pagoda-handler", base, move |engine, scratch| engine.handle(id, scratch))?;
        }
        shared.spawn(RECLAIMER, base, |engine, scratch| engine.reclaim(None, scratch))?;
        for shard in 0..shared.engine.store.releases().shards() {
            shared.spawn("pagoda-release", base, move |engine, _| engine.work_on_releases(shard))?;
        }
        if shared.engine.huge.is_on() && self.policies.clearing.ahead_percent > 0 {
            shared.spawn("pagoda-clear", base, |engine, _| engine.clear_ahead())?;
        }
        shared.spawn("pagoda-keep", base, |engine, _| engine.store.keep(&engine.quit_handlers))?;
        Ok(Manager { shared })
    }
}

fn report_and_abort(reason: StopReason) -> ! {
    eprintln!("pagoda: {reason}");
    std::process::abort()
}

/// An engine with the threads that run it; the threads end with the last owner.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    /// Where faults are served in their own threads.
    _registration: Option<Registration>,
}

impl Shared {
    fn spawn(
        &self,
        name: &str,
        base: BasePage,
        body: impl FnOnce(&Engine, &mut Scratch) + Send + 'static,
    ) -> Result<(), StartError> {
        let engine = Arc::clone(&self.engine);
        let run = move || {
            pagoda_linux::thread::block_signals_for_good();
            body(&engine, &mut Scratch::new(base));
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|error| StartError::Threads(Errno::from(&error)))?;
        self.threads.lock().expect("nothing panics with this lock held").push(thread);
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.engine.quit.store(true, Ordering::Release);
        self.engine.bell.ring();
        self.engine.clear_bell.ring();
        let mut threads =
            std::mem::take(&mut *self.threads.lock().expect("nothing panics with this lock held"));
        // The reclaimer may wait for a handler, so that those end when it has. A thread that panicked has ended the process
        // already.
        let is_reclaimer = |thread: &std::thread::JoinHandle<()>| thread.thread().name() == Some(RECLAIMER);
        let reclaimer = threads.iter().position(is_reclaimer).map(|at| threads.swap_remove(at).join());
        self.engine.quit_handlers.store(true, Ordering::Release);
        self.engine.end_workers();
        drop(reclaimer);
        for thread in threads {
            let _ = thread.join();
        }
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
/// region.write_at(200 << 20, b"far beyond the budget, and not lost");
/// let mut back = [0; 35];
/// region.read_at(200 << 20, &mut back);
/// assert_eq!(&back, b"far beyond the budget, and not lost");
/// assert!(manager.stats().resident_bytes <= 64 << 20);
/// region.close();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Manager {
    shared: Arc<Shared>,
}

impl Manager {
    /// Begins a manager.
    #[must_use]
    pub fn builder() -> ManagerBuilder {
        let config = Config {
            budget: Bytes::mib(256),
            base_page: BasePage::default(),
            counters: None,
            store_directory: PathBuf::new(),
            file_limit: Bytes::ZERO,
            best_effort: false,
            remote: None,
            remote_limit: Bytes::ZERO,
            zones: Vec::new(),
            zone_policy: ZonePolicy::default(),
        };
        let policies = Policies { fault_around: true, ..Policies::default() };
        ManagerBuilder { config, mode: Mode::Full, policies }
    }

    /// Begins a region of `len`, rounded up to whole base pages. It reads as zero and takes no memory yet.
    #[must_use]
    pub fn region(&self, len: Bytes) -> RegionBuilder {
        RegionBuilder::new(Arc::clone(&self.shared), len)
    }

    /// Takes memory that somebody else mapped under management, with what is in it. Dropping the region brings everything
    /// back and leaves the mapping to its owner. Making a [`ForeignMemory`](crate::region::ForeignMemory) is unsafe,
    /// and says what its owner vouches for.
    ///
    /// # Errors
    /// See [`RegionError`](crate::region::RegionError): memory of which anything is managed already is refused.
    pub fn adopt(
        &self,
        memory: crate::region::ForeignMemory,
    ) -> Result<crate::region::Region, crate::region::RegionError> {
        crate::region::Region::adopt(Arc::clone(&self.shared), memory)
    }

    /// What each zone has now and has done so far, by name, in the order in which they were named.
    /// Nothing unless there are several.
    #[must_use]
    pub fn zones(&self) -> Vec<(String, ZoneStats)> {
        self.shared.engine.zone.names().into_iter().zip(ZoneStats::all(&self.stats())).collect()
    }

    /// Returns when everything that closed regions had in the store is freed, and frees it itself as far as no worker has
    /// begun. What is closed meanwhile is waited for, too. Blocks as long as that takes: about a millisecond for 100 MiB.
    pub fn flush_releases(&self) {
        self.shared.engine.store.flush_releases();
    }

    #[cfg(any(test, feature = "migrate"))]
    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.shared.engine)
    }

    /// What the manager has done and holds now.
    #[must_use]
    pub fn stats(&self) -> Snapshot {
        self.shared.engine.publish_library_gauges();
        self.shared.engine.counters.snapshot()
    }
}

/// Whether this machine lets this process make a library's manager in user mode: userfaultfd with `UFFDIO_MOVE`.
#[must_use]
pub fn userfaultfd_allows_managers() -> bool {
    pagoda_linux::uffd::Uffd::open(Mode::UserOnly, feature::PROCESS).is_ok()
}
