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
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use pagoda::config::Config;
use pagoda::counters::{Counter, Counters, Status};
use pagoda::error::{Errno, StartError, StopReason};
use pagoda::manager::ProcessEngine;
use pagoda::pins::Pinner;
use pagoda::tree::{Member, Tree};
use pagoda_core::shares;
use pagoda_core::size::Bytes;
use pagoda_linux::own_memory::declare_library_data;
use pagoda_linux::range::PageRange;
use pagoda_linux::space::Adoption;
use pagoda_linux::statm::StatmReader;
use pagoda_linux::tcb::ThreadLayout;
use pagoda_linux::thread::{
    Files, current_id, disable_huge_pages, exit_process, now_ns, sleep_us, spawn_raw, yield_now,
};
use pagoda_linux::touch::touch;
use pagoda_linux::uffd::{Mode, Uffd, feature};

/// Pagoda's own failures, as for env(1) and nohup(1).
const OWN_FAILURE: u8 = 125;

/// From so much on a process has an engine. It is the least share that a member of a tree ever has: with less there
/// would be nothing to move out, and an engine's threads and tables would cost more than they save.
const ENGINE_FROM: Bytes = shares::FLOOR;

/// The time between two looks at a process that grows: at 1 GiB/s it takes 2 MiB meanwhile.
const LOOK_LEAST_US: u32 = 2_000;

/// The longest time between two looks: a process that begins to grow at 1 GiB/s right after one is found with
/// [`ENGINE_FROM`] and 48 MiB more, so within 64 MiB and what the least budget of all leaves for the engine's start.
/// Twenty looks a second cost a twentieth of a percent of a processor.
const LOOK_MOST_US: u32 = 48_000;

/// Growth between two looks below which nothing happens.
const GROWTH_BYTES: u64 = 64 << 10;

static ENGINE: OnceLock<ProcessEngine> = OnceLock::new();

/// Whether this process is managed. Cleared for good in a forked child and once everything was brought back.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The tree, for what happens at a fork. In this library's own data, which a child has too.
static TREE: OnceLock<Tree> = OnceLock::new();

/// The engine, if this process is managed.
pub fn engine() -> Option<&'static ProcessEngine> {
    if ACTIVE.load(Ordering::Acquire) { ENGINE.get() } else { None }
}

/// Ends the use of the engine: in a child that has none, or when everything is back.
pub fn deactivate() {
    ACTIVE.store(false, Ordering::Release);
}

#[used]
// SAFETY: the section holds pointers to functions that the dynamic linker calls once, before `main`, with the C
// library ready.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    crate::hooks::resolve();
    let Some(text) = std::env::var_os("PAGODA_CONFIG") else { return };
    let config = match Config::from_env(text.as_bytes()) {
        Ok(config) => config,
        // Without a configuration there is no tree file to say so in.
        Err(_) => exit_process(OWN_FAILURE),
    };
    let Some(path) = &config.counters else { return };
    // A process whose `pagoda run` has ended finds no file, and needs none.
    let Ok(tree) = Tree::open(path) else { return };
    let Some(member) = tree.join() else { return };
    let counters = member.counters();
    crate::alloc::say_exhaustion_in(Arc::new(member.counters()));
    counters.set(Counter::BudgetBytes, config.budget.get());
    counters.set(Counter::BasePageBytes, config.base_page.bytes() as u64);
    if member.is_first()
        && let Err(error) = can_start()
    {
        return fail(&config, &member, error);
    }
    counters.set(Counter::LastLookNs, now_ns());
    counters.set(Counter::Status, Status::Small as u64);
    declare_library_data();
    disable_huge_pages();
    // Both have to be done on a thread of the program, and the first before others are there: the engine starts on a raw
    // one.
    let layout = ThreadLayout::of_current_thread();
    watch_forks(tree);
    let name = c"pagoda-watch";
    let (config, for_failure) = (Arc::new(config), member);
    let shared = Arc::clone(&config);
    if let Err(error) = spawn_raw(name, Files::Own, Box::new(move || watch(&shared, member, layout))) {
        fail(&config, &for_failure, StartError::Threads((&error).into()));
    }
}

/// What an engine needs that the machine may refuse: cheap enough to be tried before every program that is asked for.
fn can_start() -> Result<(), StartError> {
    let open = |features| Uffd::open(Mode::Full, features).map(drop);
    let opened = open(feature::PROCESS | feature::EVENT_FORK).or_else(|_| open(feature::PROCESS));
    opened.map_err(|error| {
        let errno = Errno(error.raw_os_error());
        match errno.0 {
            22 => StartError::MoveMissing,
            23 | 24 => StartError::DescriptorLimit(errno),
            _ => StartError::Userfaultfd(errno),
        }
    })
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
fn watch(config: &Config, member: Member, layout: Option<ThreadLayout>) {
    let count = match StatmReader::new() {
        Ok(count) => count,
        Err(error) => return fail(config, &member, StartError::Proc((&error).into())),
    };
    let held = watch_while(&count, &member, |anon| anon < ENGINE_FROM);
    if let Err(error) = manage(config, member, layout, held) {
        fail(config, &member, error);
        watch_while(&count, &member, |_| true);
    }
}

/// Looks at the process as long as `go_on` says so of what it holds.
fn watch_while(count: &StatmReader, member: &Member, go_on: impl Fn(Bytes) -> bool) -> Bytes {
    let counters = member.counters();
    let (mut before, mut sleep) = (0, LOOK_LEAST_US);
    loop {
        // The count of before will do if this once it can't be read.
        let anon = count.anon_bytes().map_or(before, |anon| anon as u64);
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
fn manage(
    config: &Config,
    member: Member,
    layout: Option<ThreadLayout>,
    held: Bytes,
) -> Result<(), StartError> {
    // SAFETY: `pagoda run` was asked to have this program's memory managed. What is adopted is private anonymous memory
    // by the kernel's own list, without this library's mappings, so that nothing that serves faults is among it.
    let adoption = unsafe { Adoption::assume() };
    let (keeper, _share) = member.manage(held);
    let counters: Arc<Counters> = Arc::new(member.counters());
    let (engine, watcher) = ProcessEngine::start(config, keeper, counters, &adoption, layout, stop)?;
    // This thread alone sets it.
    let _ = ENGINE.set(engine);
    ACTIVE.store(true, Ordering::Release);
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
    if engine().is_none() && TREE.get().is_some() {
        let known = early_mutexes().iter().any(|place| place.load(Ordering::SeqCst) == address);
        let enter = |place: &AtomicUsize| {
            place.compare_exchange(0, address, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        if !known {
            let Some(place) = EARLY_MUTEXES.iter().position(enter) else { return false };
            EARLY_MUTEXES_USED.fetch_max(place + 1, Ordering::SeqCst);
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

fn watch_forks(tree: Tree) {
    let _ = TREE.set(tree);
    crate::hooks::watch_forks();
    // Handlers that run before a fork do so last one first: these come before the hooks that ask for the engine.
    // SAFETY: all are functions that live as long as the process: this library is never unloaded.
    unsafe { libc::pthread_atfork(Some(begin_fork), Some(end_fork), Some(begin_child)) };
}

extern "C" fn begin_fork() {
    let own = current_id();
    let enter =
        |thread: &AtomicU32| thread.compare_exchange(0, own, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if engine().is_some() {
        return;
    }
    while !FORKING.iter().any(enter) {
        yield_now();
    }
    fence(Ordering::SeqCst);
    // Either we see the engine here, or whoever started it sees us.
    if engine().is_some() {
        end_fork();
    }
}

extern "C" fn end_fork() {
    let own = current_id();
    if let Some(thread) = FORKING.iter().find(|thread| thread.load(Ordering::SeqCst) == own) {
        thread.store(0, Ordering::SeqCst);
    }
}

/// A child has no thread of ours: it is a member that nobody watches but `pagoda run`, until it calls exec.
extern "C" fn begin_child() {
    for thread in &FORKING {
        thread.store(0, Ordering::SeqCst);
    }
    if let Some(member) = TREE.get().and_then(Tree::join) {
        member.counters().set(Counter::Status, Status::Unmanaged as u64);
    }
}
