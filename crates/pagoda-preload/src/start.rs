//! Joining the tree of `pagoda run` before a program's `main`, and starting an engine in it when it grows.
//!
//! Every program below `pagoda run` loads this library. Its constructor makes the process a member of the tree and starts
//! one thread, which watches how much the process holds. Most processes never hold much, and that is all they pay;
//! in one that grows the same thread starts the engine and becomes its watcher.
//!
//! What can't be managed is refused before the program that the user named runs: whether an engine could start is tried
//! in its constructor, and a failure ends it with status 125, or lets it run unmanaged where the user said so. A
//! process below it that can't be managed is no reason to end it: it runs unmanaged, and is counted and told.
//! This module must never let a program run on half managed.

use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use pagoda::config::Config;
use pagoda::counters::{Counter, Counters, Status};
use pagoda::error::{StartError, StopReason};
use pagoda::manager::ProcessEngine;
use pagoda::pins::Pinner;
use pagoda::tree::{Member, Tree};
use pagoda_core::shares;
use pagoda_core::size::Bytes;
use pagoda_linux::doorbell::Doorbell;
use pagoda_linux::own_memory::{declare_library_data, forget_what_parents_have};
use pagoda_linux::range::PageRange;
use pagoda_linux::space::Adoption;
use pagoda_linux::statm::AnonReader;
use pagoda_linux::tcb::ThreadLayout;
use pagoda_linux::thread::{
    Files, current_id, disable_huge_pages, exit_process, now_ns, sleep_us, spawn_raw, yield_now,
};
use pagoda_linux::touch::touch;

/// Pagoda's own failures, as for env(1) and nohup(1).
const OWN_FAILURE: u8 = 125;

/// From so much on a process has an engine: the floor of a share, or an eighth of a small budget, of which several processes
/// without one would take the whole. Below 4 MiB an engine's threads and tables would cost more than they save.
fn engine_from(budget: Bytes) -> Bytes {
    Bytes::new(budget.get() / 8).clamp(Bytes::mib(4), shares::FLOOR)
}

/// The time between two looks at a process that grows: at 1 GiB/s it takes 2 MiB meanwhile.
const LOOK_LEAST_US: u32 = 2_000;

/// The longest time between two looks: a process that begins to grow at 1 GiB/s right after one is found with
/// [`engine_from`] and 48 MiB more, so within 64 MiB and what the least budget of all leaves for the engine's start.
/// Twenty looks a second cost a twentieth of a percent of a processor.
const LOOK_MOST_US: u32 = 48_000;

/// Growth between two looks below which nothing happens.
const GROWTH_BYTES: u64 = 64 << 10;

/// The engine of this process, for good; null as long as there is none.
static ENGINE: AtomicPtr<ProcessEngine> = AtomicPtr::new(std::ptr::null_mut());

/// The process that [`ENGINE`] is of, or 0 if it is not managed: a child that was made without the C library has the
/// pointer, but not what it points to.
static ACTIVE: AtomicU32 = AtomicU32::new(0);

/// The tree, the configuration's text and how threads are laid out: what a child needs to begin anew. In this library's own
/// data, which a child has, too.
static TREE: OnceLock<Tree> = OnceLock::new();
static CONFIG: OnceLock<ConfigText> = OnceLock::new();
static LAYOUT: OnceLock<Option<ThreadLayout>> = OnceLock::new();

/// The longest configuration: two paths, escaped.
const CONFIG_BYTES: usize = 16 << 10;

struct ConfigText {
    bytes: [u8; CONFIG_BYTES],
    len: usize,
}

/// Whether this process was forked, and shares memory with another.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether the engine of the thread that forks gives the child what it lacks.
static GIVEN: AtomicBool = AtomicBool::new(false);

/// The engine, if this process is managed.
pub fn engine() -> Option<&'static ProcessEngine> {
    let active = ACTIVE.load(Ordering::Acquire);
    if active == 0 || active != std::process::id() {
        return None;
    }
    // SAFETY: what is there was leaked, in this process.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// Ends the use of the engine: everything is back.
fn deactivate() {
    ACTIVE.store(0, Ordering::Release);
}

#[used]
// SAFETY: the section holds pointers to functions that the dynamic linker calls once, before `main`, with the C
// library ready.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    crate::hooks::resolve();
    let Some(text) = std::env::var_os("PAGODA_CONFIG") else { return };
    let text = text.as_bytes();
    let config = match Config::from_env(text) {
        Ok(config) if text.len() <= CONFIG_BYTES => config,
        // Without a configuration there is no tree file to say so in.
        _ => exit_process(OWN_FAILURE),
    };
    let Some(path) = &config.counters else { return };
    // A process whose `pagoda run` has ended finds no file, and needs none.
    let Ok(tree) = Tree::open(path) else { return };
    let mut bytes = [0; CONFIG_BYTES];
    bytes[..text.len()].copy_from_slice(text);
    let _ = CONFIG.set(ConfigText { bytes, len: text.len() });
    let _ = TREE.set(tree);
    // Both have to be done on a thread of the program, and the first before others are there: the engine starts on a raw
    // one.
    let _ = LAYOUT.set(ThreadLayout::of_current_thread());
    declare_library_data();
    disable_huge_pages();
    // Handlers that run before a fork do so last one first.
    // SAFETY: all are functions that live as long as the process: this library is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    let Some(member) = tree.join() else { return };
    let first = member.is_first();
    begin(config, member);
    if first {
        // What the user named is managed from its first instruction on, or refused before. Bounded by what starting takes:
        // mappings, a file, threads.
        while member.counters().get(Counter::Status) == Status::Small as u64 {
            sleep_us(50);
        }
        let _ = crate::hooks::pin_current_thread();
    }
}

/// Makes this process a member that is watched, and managed when it is worth it; the first of a tree at once.
fn begin(config: Config, member: Member) {
    let counters = member.counters();
    crate::alloc::say_exhaustion_in(member.counters());
    counters.set(Counter::BudgetBytes, config.budget.get());
    counters.set(Counter::BasePageBytes, config.base_page.bytes() as u64);
    counters.set(Counter::LastLookNs, now_ns());
    counters.set(Counter::Status, Status::Small as u64);
    let config = Arc::new(config);
    let shared = Arc::clone(&config);
    if let Err(error) = spawn_raw(c"pagoda-watch", Files::Own, Box::new(move || watch(&shared, member))) {
        fail(&config, &member, StartError::Threads((&error).into()));
    }
}

/// Says that there will be no engine, and ends the process if nobody wants it without.
fn fail(config: &Config, member: &Member, error: StartError) {
    let counters = member.counters();
    counters.set(Counter::ErrorErrno, error.errno().0 as u64);
    counters.set(Counter::ErrorCode, error.code());
    counters.set(Counter::Status, Status::Failed as u64);
    if !member.is_first() {
        counters.add(Counter::ChildrenUnmanaged, 1);
    } else if !config.best_effort {
        exit_process(OWN_FAILURE);
    }
}

/// The first raw thread, with a descriptor table of its own: watches the process while it is small, then opens
/// everything, starts the other threads, and becomes the engine's watcher.
fn watch(config: &Config, member: Member) {
    let mut count = match AnonReader::new() {
        Ok(count) => count,
        Err(error) => return fail(config, &member, StartError::Proc((&error).into())),
    };
    let held = if member.is_first() && !IS_CHILD.load(Ordering::Acquire) {
        Bytes::ZERO
    } else {
        let from = engine_from(member.tree().budget());
        watch_while(&mut count, &member, |anon| anon < from)
    };
    if let Err(error) = manage(config, member, held) {
        fail(config, &member, error);
        watch_while(&mut count, &member, |_| true);
    }
}

/// Looks at the process as long as `go_on` says so of what it holds.
fn watch_while(count: &mut AnonReader, member: &Member, go_on: impl Fn(Bytes) -> bool) -> Bytes {
    let counters = member.counters();
    let shared = IS_CHILD.load(Ordering::Acquire);
    let (mut before, mut sleep) = (0, LOOK_LEAST_US);
    loop {
        // The count of before will do if this once it can't be read.
        let anon = count.read(shared).map_or(before, |(resident, others)| (resident - others) as u64);
        counters.set(Counter::LastLookNs, now_ns());
        member.hold_unlimited(anon);
        if !go_on(Bytes::new(anon)) {
            return Bytes::new(anon);
        }
        sleep = if anon > before + GROWTH_BYTES { LOOK_LEAST_US } else { (sleep * 2).min(LOOK_MOST_US) };
        before = anon;
        sleep_us(sleep);
    }
}

/// Starts the engine and watches for good. Returns only if there is none.
fn manage(config: &Config, member: Member, held: Bytes) -> Result<(), StartError> {
    // SAFETY: `pagoda run` was asked to have this program's memory managed. What is adopted is private anonymous memory
    // by the kernel's own list, without this library's mappings, so that nothing that serves faults is among it.
    let adoption = unsafe { Adoption::assume() };
    let (keeper, _share) = member.manage(held);
    let counters: Arc<Counters> = Arc::new(member.counters());
    let layout = LAYOUT.get().copied().flatten();
    let is_child = IS_CHILD.load(Ordering::Acquire);
    let (engine, watcher) =
        ProcessEngine::start(config, keeper, is_child, counters, &adoption, layout, stop)?;
    ENGINE.store(Box::into_raw(Box::new(engine)), Ordering::Release);
    ACTIVE.store(std::process::id(), Ordering::Release);
    // Nothing is taken out before every fork that does not know of the engine is over.
    fence(Ordering::SeqCst);
    while FORKING.iter().any(|thread| thread.load(Ordering::SeqCst) != 0) {
        sleep_us(50);
    }
    for address in
        early_mutexes().iter().map(|place| place.load(Ordering::SeqCst)).filter(|address| *address != 0)
    {
        if !pin_in_engine(address) {
            stop(StopReason::EngineBroken);
        }
    }
    watcher.run();
    Ok(())
}

/// The robust mutexes that were made before there was an engine to pin them: their addresses, 0 for a free place.
static EARLY_MUTEXES: [AtomicUsize; EARLY_MUTEXES_BOUND] =
    [const { AtomicUsize::new(0) }; EARLY_MUTEXES_BOUND];

/// A program that makes more before it holds 16 MiB gets an error from pthread_mutex_init(3).
const EARLY_MUTEXES_BOUND: usize = 1024;

/// One past the highest place that was ever used: most programs make none, and destroy many of other kinds.
static EARLY_MUTEXES_USED: AtomicUsize = AtomicUsize::new(0);

fn early_mutexes() -> &'static [AtomicUsize] {
    &EARLY_MUTEXES[..EARLY_MUTEXES_USED.load(Ordering::SeqCst)]
}

/// Pins the robust mutex at `address`, or remembers it for the engine to come. False if there are too many.
pub fn pin_mutex(address: usize) -> bool {
    if TREE.get().is_some() {
        let known = early_mutexes().iter().any(|place| place.load(Ordering::SeqCst) == address);
        let enter = |place: &AtomicUsize| {
            place.compare_exchange(0, address, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        if !known {
            match EARLY_MUTEXES.iter().position(enter) {
                Some(place) => drop(EARLY_MUTEXES_USED.fetch_max(place + 1, Ordering::SeqCst)),
                // With an engine it is pinned there all the same.
                None if engine().is_none() => return false,
                None => {}
            }
        }
        fence(Ordering::SeqCst);
    }
    // Either we see the engine here, or whoever started it sees the mutex.
    pin_in_engine(address)
}

/// True also where there is no engine.
fn pin_in_engine(address: usize) -> bool {
    let Some(engine) = engine() else { return true };
    let Some(range) = PageRange::covering(address, address + size_of::<libc::pthread_mutex_t>()) else {
        return true;
    };
    let pinned = engine.pins().pin(Pinner::Mutex(address), range);
    touch(range);
    pinned
}

/// The mutex at `address` is destroyed.
pub fn unpin_mutex(address: usize) {
    for place in early_mutexes() {
        let _ = place.compare_exchange(address, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
    if let Some(engine) = engine() {
        engine.pins().unpin(Pinner::Mutex(address));
    }
}

/// Fail stop: the reason is in the tree file, where `pagoda run` reads it.
fn stop(_: StopReason) -> ! {
    exit_process(OWN_FAILURE)
}

/// The threads that are within fork(2) and found no engine before it.
static FORKING: [AtomicU32; FORKING_BOUND] = [const { AtomicU32::new(0) }; FORKING_BOUND];

/// More threads than ever fork at once; beyond it one waits.
const FORKING_BOUND: usize = 64;

/// Before a fork: the engine is told, so that the child gets what it lacks; where the kernel does not tell of forks,
/// everything is brought back first. A fork that finds no engine keeps one from beginning meanwhile.
pub extern "C" fn before_fork() {
    let own = current_id();
    let enter =
        |thread: &AtomicU32| thread.compare_exchange(0, own, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if engine().is_none() {
        while !FORKING.iter().any(enter) {
            yield_now();
        }
        fence(Ordering::SeqCst);
    }
    // Either we see the engine here, or whoever started it sees us.
    let Some(engine) = engine() else { return };
    leave_forking();
    if engine.out_bytes() > FORK_SLACK {
        wait_for_room();
    }
    if engine.announce_fork() {
        GIVEN.store(true, Ordering::Release);
    } else {
        engine.release();
        deactivate();
    }
}

/// A child holds all that its parent had out until its own engine has evicted it. So that several forks in a row don't add
/// up, each waits until the tree is back within its budget: not longer than there is progress, and a second at most.
fn wait_for_room() {
    let Some(tree) = TREE.get() else { return };
    let begin = now_ns();
    let (mut least, mut least_ns) = (Bytes::new(u64::MAX), begin);
    loop {
        let (claimed, now) = (tree.claimed(), now_ns());
        if claimed < least {
            (least, least_ns) = (claimed, now);
        }
        let given_up = now - least_ns > FORK_PROGRESS_NS || now - begin > FORK_PATIENCE_NS;
        if claimed <= tree.budget().saturating_add(FORK_SLACK) || given_up {
            return;
        }
        sleep_us(1000);
    }
}

/// By how much the budget may be exceeded when a process forks, and what is out of one that needs not wait.
const FORK_SLACK: Bytes = Bytes::mib(16);

/// How long a fork waits while the tree's claims don't fall: some looks of the others.
const FORK_PROGRESS_NS: u64 = 40_000_000;

/// How long it waits in all.
const FORK_PATIENCE_NS: u64 = 1_000_000_000;

/// After a fork, in the parent.
pub extern "C" fn after_fork() {
    leave_forking();
}

fn leave_forking() {
    let own = current_id();
    if let Some(thread) = FORKING.iter().find(|thread| thread.load(Ordering::SeqCst) == own) {
        thread.store(0, Ordering::SeqCst);
    }
}

/// In a child, on its one thread: waits until it has all its memory, forgets what was its parent's, and begins anew.
pub extern "C" fn in_child() {
    for thread in &FORKING {
        thread.store(0, Ordering::SeqCst);
    }
    ACTIVE.store(0, Ordering::Release);
    ENGINE.store(std::ptr::null_mut(), Ordering::Release);
    IS_CHILD.store(true, Ordering::Release);
    let answered = !GIVEN.swap(false, Ordering::AcqRel) || Doorbell::wait_for_parent();
    crate::hooks::forget_starts();
    forget_what_parents_have();
    // SAFETY: a child has one thread, and this library uses nothing that it had allocated: the engine is the parent's.
    unsafe { crate::HEAP.forget() };
    if !answered {
        // Its parent died before it had its memory: what is missing would read as zeroes.
        exit_process(OWN_FAILURE);
    }
    let (Some(tree), Some(text)) = (TREE.get(), CONFIG.get()) else { return };
    let (Some(member), Ok(config)) = (tree.join(), Config::from_env(&text.bytes[..text.len])) else { return };
    begin(config, member);
}
