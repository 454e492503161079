//! Making an engine out of its parts: descriptors, zones, store and tables, by a configuration.
//!
//! This module must never start a thread: its callers do that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pagoda_core::budget::store_most;
use pagoda_core::budget::watermark::Watermarks;
use pagoda_core::page::BasePage;
use pagoda_core::release::ReleasePolicy;
use pagoda_core::size::Bytes;
use pagoda_core::zone::reclaim::ZoneReclaim;
use pagoda_linux::arena::{Adoption, ArenaSizes, Descriptor, Space};
use pagoda_linux::mem::occupancy::Occupancy;
use pagoda_linux::process::affinity;
use pagoda_linux::procfs::pagemap::{PagemapScanner, ScanMethod};
use pagoda_linux::uffd::{Mode, Uffd, feature};

use crate::config::Config;
use crate::engine::{Engine, StopHook};
use crate::error::{Errno, StartError};
use crate::frames::huge_pool::HugePool;
use crate::frames::zone_config::ZONE_LEAST;
use crate::frames::zones::{self, Place, Zones};
use crate::state::clears::Clearing;
use crate::state::touch_streams::Around;
use crate::stats::counters::{Counter, Counters};
use crate::store::{FileConfig, OpenError, RemoteConfig, RemoteOpenError, StoreConfig, TieredStore};
use crate::table::entry_bytes;

/// Threads that serve faults: one more than a blocking fetch can occupy, no more than processors
/// help.
pub(crate) fn handler_count() -> usize {
    // The standard library would ask the C library, whose answer is the program's in a preloaded
    // one.
    let processors = affinity::of_thread(0).map_or(1, |own| own.count() as usize);
    processors.clamp(2, crate::state::pending::HANDLERS_MAX)
}

/// The most stored bytes of closed owners that are not freed yet, before compression, in budgets:
/// what the store's share of the budget holds at 4:1, and some more for spilled pages. It takes no
/// memory beyond the store's own limit.
const QUEUED_BUDGETS: u64 = 4;

/// How long a remote store keeps pages that are not renewed, where nothing deletes them for an
/// engine that was killed: a host that is cut off, or a process that is stopped, for so long has
/// lost its pages there.
const REMOTE_EXPIRY: Duration = Duration::from_secs(120);

/// Choices of a library's user, which are fixed for a managed process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policies {
    pub(crate) release: ReleasePolicy,
    /// Owners that have to close at once for `background` to hand anything over, less one.
    pub(crate) release_gate_more: u32,
    pub(crate) clearing: Clearing,
    /// Faults are served in the thread that has them.
    pub(crate) in_thread: bool,
    /// First touches bring as much of a base page as is touched densely.
    pub(crate) by_density: bool,
    /// Pages stay in the zones that they came to, hot or cold.
    pub(crate) no_tiering: bool,
    /// Whether zones are reclaimed each by itself.
    pub(crate) zone_reclaim: ZoneReclaim,
    /// A stream of first touches gets more than the faulting page.
    pub(crate) fault_around: bool,
    /// The kernel tells of faults by their pages, as one before Linux 5.18 does.
    #[cfg(test)]
    pub(crate) masked_addresses: bool,
}

/// The owner of an engine's memory.
pub(crate) enum Owner {
    /// Regions of a library, whose faults come by the mode.
    Library(Mode),
    /// A whole process, which may fork; with the descriptor that its parent offers to it, if it
    /// does.
    Process(Option<Uffd>),
}

/// Makes an engine, without its threads.
pub(crate) fn assemble(
    config: &Config,
    counters: Arc<Counters>,
    owner: Owner,
    adoption: &Adoption,
    policies: Policies,
    stop_hook: StopHook,
) -> Result<Engine, StartError> {
    let handlers = handler_count() as u32;
    let serves_forks = matches!(owner, Owner::Process(_));
    if config.budget < Watermarks::least_budget(config.base_page, handlers) {
        return Err(StartError::BudgetBelowMinimum);
    }
    let plan = plan_zones(config, handlers)?;
    // Without PAGEMAP_SCAN a huge page could not be told from base pages, and the kernel would
    // split each as it leaves.
    let tells = || PagemapScanner::new().is_ok_and(|scanner| scanner.method() == ScanMethod::Scan);
    // With several zones nothing is filled ahead of a fault: windows are the kernel's memory. A
    // region with a base page of 2 MiB has huge frames all the same, for which the addresses cost
    // nothing.
    let ahead = policies.fault_around && plan.len() == 1 && tells();
    // A program's own huge pages would have to be split: it has none.
    let huge_slots = |ranked: &zones::Ranked| match serves_forks {
        true => 0,
        false => crate::clear::huge_state::slots(ranked.zone.bytes),
    };
    let huge = HugePool::new(plan.iter().map(|(ranked, _)| huge_slots(ranked)));
    let (space, fork_events) = open_space(config, owner, adoption, policies, &plan, &huge)?;
    bind_zones(&space, &plan, &huge)?;
    let (budget, base) = (config.budget, config.base_page);
    counters.set(Counter::BudgetBytes, budget.get());
    counters.set(Counter::BasePageBytes, base.bytes() as u64);
    let mut engine = Engine::new(
        space,
        Zones::new(plan, config.zone_policy, handlers as usize, !policies.no_tiering)
            .with_reclaim(policies.zone_reclaim),
        (huge, policies.clearing),
        open_store(config, policies)?,
        counters,
        (budget, base),
        handlers,
        fork_events,
        stop_hook,
    );
    engine.is_library = !serves_forks;
    engine.by_density = policies.by_density && (BasePage::K16..=BasePage::K64).contains(&base);
    engine.comes_whole = ahead;
    engine.around = Around::new(base, policies.fault_around);
    engine.fetches_ahead = config.fetch_ahead;
    engine.give_up_ns = config.give_up.as_nanos().min(u64::MAX.into()) as u64;
    Ok(engine)
}

/// The zones in the order of their slots, and how many slots each has.
fn plan_zones(config: &Config, handlers: u32) -> Result<Vec<zones::Plan>, StartError> {
    let slot_bytes = entry_bytes(config.base_page);
    let least = Watermarks::least_share(config.base_page, handlers).max(ZONE_LEAST);
    let zones = zones::in_order(&config.zones, config.budget, least, pagoda_linux::mem::node::current());
    let zones = zones.map_err(|zones::Unfit| StartError::ZonesUnfit)?;
    let plan = zones.into_iter().map(|ranked| {
        // Frames never hold more than the budget; as many addresses again keep runs of empty slots
        // at hand.
        let slots = (2 * ranked.zone.bytes.as_usize()).next_multiple_of(2 << 20) / slot_bytes;
        let slots = u32::try_from(slots).map_err(|_| StartError::AddressSpace(Errno::NONE))?;
        Ok((ranked, slots))
    });
    plan.collect()
}

/// The descriptor with its arenas, and whether the kernel tells of forks by it.
fn open_space(
    config: &Config,
    owner: Owner,
    adoption: &Adoption,
    policies: Policies,
    plan: &[zones::Plan],
    huge: &HugePool,
) -> Result<(Space, bool), StartError> {
    let serves_forks = matches!(owner, Owner::Process(_));
    let slots = plan.iter().try_fold(0u32, |sum, (_, slots)| sum.checked_add(*slots));
    let slots = slots.ok_or(StartError::AddressSpace(Errno::NONE))?;
    let descriptor = match owner {
        Owner::Library(mode) => Descriptor::Fresh(mode),
        Owner::Process(of_parent) => of_parent.map_or(Descriptor::Fresh(Mode::Full), Descriptor::Inherited),
    };
    let arenas = ArenaSizes { slots, slot_bytes: entry_bytes(config.base_page), huge_slots: huge.slots() };
    let open = |descriptor, features| {
        let occupancy = Occupancy::open().map_err(|error| occupancy_error(&error))?;
        Ok(Space::open(adoption, descriptor, features, arenas, occupancy))
    };
    // A streak of one thread's faults is seen in a program alone.
    let fork = if serves_forks { feature::EVENT_FORK } else { 0 };
    let thread = if serves_forks { feature::THREAD_ID } else { 0 };
    // A library's regions can be sent elsewhere, for which writes have to be seen; it does without
    // where the kernel can't tell.
    let tracks = if serves_forks { 0 } else { feature::WP_ASYNC };
    let exact = feature::EXACT_ADDRESS;
    #[cfg(test)]
    let exact = if policies.masked_addresses { 0 } else { exact };
    let always = feature::PROCESS | exact | thread | if policies.in_thread { feature::SIGBUS } else { 0 };
    // EVENT_FORK needs a privilege that the rest does not: without it, a fork is only seen by its
    // hooks.
    let (space, fork_events) = match descriptor {
        Descriptor::Inherited(_) => (open(descriptor, always | fork)?, true),
        Descriptor::Fresh(mode) => match open(Descriptor::Fresh(mode), always | fork | tracks)? {
            Err(error) if fork != 0 && error.raw_os_error() == Some(1) => {
                (open(Descriptor::Fresh(mode), always)?, false)
            }
            Err(error) if tracks != 0 && error.raw_os_error() == Some(22) => {
                (open(Descriptor::Fresh(mode), always)?, false)
            }
            result => (result, fork != 0),
        },
    };
    Ok((space.map_err(|error| space_error(&error))?, fork_events))
}

/// Binds the slots of each zone to its node.
fn bind_zones(space: &Space, plan: &[zones::Plan], huge: &HugePool) -> Result<(), StartError> {
    let mut first = 0;
    for (zone, (ranked, slots)) in plan.iter().enumerate() {
        if let Place::Node(node) = ranked.zone.place {
            let bound = space.bind(first..first + slots, node);
            let bound = bound.and_then(|()| space.bind_huge(huge.slots_of(zone), node));
            bound.map_err(|errno| StartError::ZoneNode(Errno(errno.raw_os_error())))?;
        }
        first += slots;
    }
    Ok(())
}

fn open_store(config: &Config, policies: Policies) -> Result<TieredStore, StartError> {
    let file = (config.file_limit > Bytes::ZERO).then(|| FileConfig {
        directory: config.store_directory.clone(),
        limit: config.file_limit,
        io_uring: config.io_uring,
    });
    let remote = config.remote_with_password().map_err(|error| StartError::RemoteStore((&error).into()))?;
    let remote =
        remote.map(|address| RemoteConfig { address, limit: config.remote_limit, expiry: REMOTE_EXPIRY });
    let memory_limit = store_most(config.budget);
    let store = TieredStore::open(StoreConfig { base: config.base_page, memory_limit, file, remote });
    let queued = Bytes::new(QUEUED_BUDGETS * config.budget.get());
    Ok(store.map_err(|error| store_error(&error))?.releasing_by(
        policies.release,
        queued,
        1 + policies.release_gate_more,
    ))
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

fn occupancy_error(error: &io::Error) -> StartError {
    let errno = Errno::from(error);
    if matches!(errno.0, 23 | 24) { StartError::DescriptorLimit(errno) } else { StartError::Proc(errno) }
}

fn store_error(error: &OpenError) -> StartError {
    use pagoda_linux::io::direct_file::DirectFileError;
    match error {
        OpenError::MemoryLimit { .. } => StartError::BudgetBelowMinimum,
        OpenError::FileLimit { .. } => StartError::StoreDirectory(Errno(27)),
        OpenError::Reserve { source, .. } => StartError::AddressSpace(Errno::from(source)),
        OpenError::Random { source } => StartError::RandomNumbers(Errno::from(source)),
        OpenError::File(DirectFileError::Create { source, .. }) => {
            StartError::StoreDirectory(Errno::from(source))
        }
        OpenError::File(DirectFileError::InMemory { .. }) => StartError::StoreDirectoryInMemory,
        OpenError::File(DirectFileError::NoDirectIo { .. }) => StartError::StoreDirectIo(Errno(22)),
        OpenError::Remote(RemoteOpenError::Unusable(source)) => {
            StartError::RemoteStore(Errno(source.raw_errno()))
        }
        OpenError::Remote(RemoteOpenError::Limit { .. }) => StartError::RemoteStore(Errno(27)),
        OpenError::Remote(RemoteOpenError::LeftOut) => StartError::RemoteStore(Errno(95)),
        OpenError::Remote(RemoteOpenError::Evicts | RemoteOpenError::ClusterDatabase) => {
            StartError::RemoteStoreUnfit
        }
    }
}

/// An engine of which only the test's thread does anything. In place of the process, that ends.
#[cfg(test)]
pub(crate) fn without_threads(budget: Bytes) -> Engine {
    fn told(reason: crate::error::StopReason) -> ! {
        std::panic::panic_any(reason)
    }
    let config = Config { budget, base_page: BasePage::K64, ..Config::library() };
    let counters = Arc::new(Counters::private().expect("memory"));
    let regions = pagoda_linux::mem::region_memory::own_regions();
    let owner = Owner::Library(Mode::UserOnly);
    assemble(&config, counters, owner, &regions, Policies::default(), told).expect("an engine")
}
