//! Joining the tree of `pagoda run` before a program's `main`, and starting an engine in it when it
//! grows.
//!
//! Every program below `pagoda run` loads this library. Its constructor starts one thread, which
//! makes the process a member of the tree when it has lived for a moment, and watches its memory.
//! Most processes never hold much, and that is all they pay; in one that grows the same thread
//! starts the engine and becomes its watcher.
//!
//! A program that can't be managed is refused before it runs, if the user named it: whether an
//! engine could start is tried in its constructor, and a failure ends it with status 125, or lets
//! it run unmanaged where the user said so. A process below it that can't be managed is not ended:
//! it runs unmanaged, and is counted and reported. This module must never let a program run half
//! managed.

use std::ffi::{CStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use pagoda::config::Config;
use pagoda::error::{Errno, StartError, StopReason};
use pagoda::process::ProcessEngine;
use pagoda::stats::counters::{Counter, Counters, Status};
use pagoda::tree::{Member, Tree};
use pagoda_core::budget::{self, shares};
use pagoda_core::size::Bytes;
use pagoda_core::time::poll_interval::{SLEEP_GROWING_US, watch_interval_of_small_us};
use pagoda_linux::arena::Adoption;
use pagoda_linux::mem::own_memory::{declare_library_data, forget_what_parents_have};
use pagoda_linux::mem::reserved;
use pagoda_linux::mem::transparent_huge;
use pagoda_linux::mem::unforked;
use pagoda_linux::process::affinity::{self, Processors};
use pagoda_linux::process::doorbell::{Answer, Doorbell, leave};
use pagoda_linux::process::image_mark;
use pagoda_linux::process::last_thread::{LastThread, forget_raw_threads};
use pagoda_linux::process::offer::{Offer, Taken};
use pagoda_linux::process::rights::{self, RightsReader};
use pagoda_linux::process::spare_descriptor;
use pagoda_linux::process::tcb::ThreadLayout;
use pagoda_linux::process::thread::{
    exit_process, leave_files, now_ns, sleep_us, sleep_while_zero, spawn_raw, wake,
};
use pagoda_linux::process::valgrind::is_in_valgrind;
use pagoda_linux::procfs::proportional::AnonReader;
use pagoda_linux::procfs::statm::StatmReader;

use crate::alone;
use crate::c_library::{is_defined, is_glibc};
use crate::config_text::ConfigText;
use crate::current::{self, OWN_FAILURE};
use crate::end;
use crate::hooks::{core_dump, fork, give_way, limits, mutexes, real, threads};

/// Growth between two looks below which nothing happens.
const GROWTH_BYTES: u64 = 64 << 10;

/// The configuration's text with the password of its remote store, and the layout of threads: a
/// child needs them to begin anew. In this library's own data, which a child has, too.
static CONFIG: ConfigText = ConfigText::new();
static LAYOUT: OnceLock<Option<ThreadLayout>> = OnceLock::new();

/// Whether this process was forked, and shares memory with another.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Not 0 once this process needs an engine however small it is; its watcher sleeps on it.
pub static WANTED: AtomicU32 = AtomicU32::new(0);

/// Whether starting an engine has failed.
pub static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// How long a thread waits for an engine that it wants.
const ENGINE_WAIT_NS: u64 = 2_000_000_000;

/// Starts an engine in a watched process of any size, and waits for it, for two seconds at most:
/// later it could not open the files that it needs.
pub fn begin_engine_now() {
    if give_way::is_shared() {
        return;
    }
    WANTED.store(1, Ordering::Release);
    wake(&WANTED);
    let until = now_ns() + ENGINE_WAIT_NS;
    while current::engine().is_none() && !HAS_FAILED.load(Ordering::Acquire) && now_ns() < until {
        sleep_us(100);
    }
}

/// Whether a child has all the memory that its parent offered, or an engine that has it.
static HAS_ALL: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the section holds pointers to functions that the dynamic linker calls once, before
// `main`, with the C library ready.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const Text, *const Text) = construct;

/// A C string; null behind the last one.
type Text = *const c_char;

extern "C" fn construct(_: c_int, _: *const Text, environment: *const Text) {
    real::resolve();
    // Another C library passes nothing to constructors, and has other control blocks. In an
    // emulation there is no engine: its threads would be the emulated program's.
    if !is_glibc() || is_in_valgrind() {
        return;
    }
    // SAFETY: glibc passes the environment, which no other thread changes before `main`.
    let Some(text) = (unsafe { configuration(environment) }) else { return };
    // Nothing of a panic is printed: the thread may have other descriptors than the program.
    std::panic::set_hook(Box::new(|_| current::stop(StopReason::EngineBroken)));
    // Without a configuration there is no tree file to say so in.
    let Ok(mut config) = Config::from_env(text) else { exit_process(OWN_FAILURE) };
    let Some(path) = config.counters.clone() else { return };
    // A process whose `pagoda run` has ended finds no file, and needs none.
    let Ok(tree) = Tree::open(&path) else { return };
    config.keep_password();
    if !CONFIG.keep(config.to_env().as_bytes()) {
        exit_process(OWN_FAILURE);
    }
    if !config.is_address_limited {
        limits::allow(config.budget);
    }
    current::join(tree);
    if config.core {
        core_dump::turn_on();
    }
    // Both have to be done on a thread of the program, and the first before others are there: the
    // engine starts on a raw one.
    let _ = LAYOUT.set(ThreadLayout::of_current_thread());
    declare_library_data();
    if !transparent_huge::are_split_right() {
        transparent_huge::forbid();
    }
    fork::register();
    image_mark::set();
    if !tree.may_be_first() {
        return begin(tree, Start::WhenGrown);
    }
    let Some(member) = tree.join() else { return };
    if !member.is_first() {
        return begin(tree, Start::WhenGrown);
    }
    end::remember(member, &path);
    // Its children inherit the answer.
    let _ = affinity::online();
    EXPECTS_SHADOW_MEMORY.store(is_defined(c"__msan_init"), Ordering::Release);
    let counters = member.counters();
    // Before the thread that changes it: the loop below waits for that.
    counters.set(Counter::Status, Status::Small as u64);
    begin(tree, Start::AtOnce(member));
    // The program that the user named is managed from its first instruction on, or refused before.
    // Bounded by the time to start: mappings, a file, threads.
    while counters.get(Counter::Status) == Status::Small as u64 {
        sleep_us(50);
    }
    let _ = threads::pin_current();
}

/// The configuration that `pagoda run` left in the environment.
///
/// # Safety
/// It is a list of C strings, which stay as they are.
unsafe fn configuration(mut environment: *const Text) -> Option<&'static [u8]> {
    loop {
        // SAFETY: the list ends with a null.
        let entry = unsafe { environment.read() };
        if entry.is_null() {
            return None;
        }
        // SAFETY: the caller passes C strings.
        if let Some(text) = unsafe { CStr::from_ptr(entry) }.to_bytes().strip_prefix(b"PAGODA_CONFIG=") {
            return Some(text);
        }
        // SAFETY: this was not the end.
        environment = unsafe { environment.add(1) };
    }
}

/// When a process gets an engine.
#[derive(Clone, Copy)]
pub enum Start {
    /// The program that the user named: from its first instruction on.
    AtOnce(Member),
    /// A child that is offered its missing pages: if it can take them over.
    TakesOver(Offer),
    /// A member that ended its threads for a call: again, when it has grown.
    Again(Member),
    /// When it has grown. It is a member as soon as it has lived for a moment: most end before, and
    /// pay for nothing but a thread.
    WhenGrown,
}

/// A thread that is started beside the one that starts it, on the same processor. Most processes
/// end before it runs at all. On another processor it would have to be woken twice, for its start
/// and for its end, and on a busy machine each waits for its turn there.
///
/// Only where a process may run everywhere: it gets "everywhere" back. It could not be told
/// whether fewer were its own choice or its group's, which may grow.
#[derive(Clone, Copy)]
struct Beside;

impl Beside {
    /// Holds the calling thread where it is, so that a thread that it starts begins there. None if
    /// it may not run everywhere, or can't be held.
    fn hold() -> Option<Self> {
        let (all, here) = (affinity::of_thread(0).ok()?, affinity::current()?);
        let is_everywhere = all.count() > 1 && affinity::online() == Some(all.count());
        (is_everywhere && affinity::hold(0, &Processors::one(here)).is_ok()).then_some(Self)
    }

    /// Lets the calling thread run everywhere.
    fn let_go(self) {
        let _ = affinity::hold(0, &Processors::ALL);
    }
}

/// Makes this process one that is watched.
pub fn begin(tree: Tree, start: Start) {
    current::set_watched();
    let beside = if let Start::WhenGrown = start { Beside::hold() } else { None };
    let spawned = spawn_raw(c"pagoda-watch", Box::new(move || watch(tree, start, beside)));
    beside.into_iter().for_each(Beside::let_go);
    if let Err(error) = spawned {
        decline(start);
        if let Some((config, member)) = introduce(tree, start) {
            fail(&config, &member, StartError::Threads((&error).into()));
        }
    }
}

/// Makes this process a member, unless it is one, and publishes its description. None if it can't
/// be one.
fn introduce(tree: Tree, start: Start) -> Option<(Config, Member)> {
    let config = CONFIG.config()?;
    let member = match start {
        Start::AtOnce(member) | Start::Again(member) => member,
        Start::TakesOver(_) | Start::WhenGrown => tree.join()?,
    };
    alone::remember(member);
    if HAS_FAILED.load(Ordering::Acquire) {
        // Its engine has ended.
        return Some((config, member));
    }
    let counters = member.counters();
    crate::alloc::say_exhaustion_in(member.counters());
    counters.set(Counter::BudgetBytes, config.budget.get());
    counters.set(Counter::BasePageBytes, config.base_page.bytes() as u64);
    counters.set(Counter::LastLookNs, now_ns());
    counters.set(Counter::Status, Status::Small as u64);
    Some((config, member))
}

/// In a child: has everything copied instead of taking it over, waits for that, and lets the
/// program run.
fn decline(start: Start) {
    let Start::TakesOver(offer) = start else { return };
    offer.refuse();
    if !Doorbell::wait_for_everything() {
        exit_process(OWN_FAILURE);
    }
    HAS_ALL.store(true, Ordering::Release);
}

/// Reports that there will be no engine, and ends the process unless the user allows it to run
/// without one.
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

/// The first raw thread: watches the process while it is small, then opens everything, starts the
/// other threads, and becomes the engine's watcher.
fn watch(tree: Tree, start: Start, beside: Option<Beside>) {
    if let Start::WhenGrown = start {
        sleep_us(SLEEP_GROWING_US);
    }
    beside.into_iter().for_each(Beside::let_go);
    if alone::is_ending() {
        return;
    }
    let left = leave_files().inspect(|()| spare_descriptor::keep_first());
    let Some((config, member)) = introduce(tree, start) else { return decline(start) };
    let config = &config;
    if let Err(error) = left {
        decline(start);
        return fail(config, &member, StartError::Threads((&error).into()));
    }
    if let Start::TakesOver(offer) = start {
        let held = AnonReader::new().and_then(|mut count| count.read(true));
        let held = held.map_or(0, |(resident, others)| (resident - others) as u64);
        // Pages that can't be taken over are copied, for any reason: it is not reported, and there
        // may be an engine later.
        let _ = manage(config, member, Bytes::new(held), Some(offer));
        decline(start);
    }
    let mut count = match AnonReader::new() {
        Ok(count) => count,
        Err(_) if matches!(start, Start::Again(_)) => return,
        Err(error) => return fail(config, &member, StartError::Proc((&error).into())),
    };
    let held = if let Start::AtOnce(_) = start {
        Bytes::ZERO
    } else {
        rights::give_up_until_start();
        let from = shares::engine_from(member.tree().budget());
        let has_ended = HAS_FAILED.load(Ordering::Acquire);
        watch_while(&mut count, &member, |anon| {
            has_ended || give_way::is_shared() || anon < from && WANTED.load(Ordering::Acquire) == 0
        })
    };
    if alone::is_ending() {
        return;
    }
    rights::take_back_for_start();
    if let Err(error) = manage(config, member, held, None) {
        rights::give_up();
        HAS_FAILED.store(true, Ordering::Release);
        fail(config, &member, error);
        watch_while(&mut count, &member, |_| true);
    }
}

/// Looks at the process as long as `go_on` says so of its memory.
fn watch_while(count: &mut AnonReader, member: &Member, go_on: impl Fn(Bytes) -> bool) -> Bytes {
    let counters = member.counters();
    let shared = IS_CHILD.load(Ordering::Acquire);
    let (mut before, mut sleep, mut quiet_us) = (0, SLEEP_GROWING_US, 0u32);
    // Without the files the end of the last thread is not seen; the process is watched all the
    // same.
    let mut last_thread = LastThread::new().ok();
    let mut reader = RightsReader::new().ok();
    loop {
        let changed = reader.as_mut().and_then(RightsReader::look);
        if changed.is_some() {
            // The program may have left the user that an engine needs, which this thread still is.
            WANTED.store(1, Ordering::Release);
        }
        if let Some(last_thread) = &mut last_thread {
            last_thread.end_with_program();
        }
        // The count of before will do if this once it can't be read.
        let anon = count.read(shared).map_or(before, |(resident, others)| (resident - others) as u64);
        counters.set(Counter::LastLookNs, now_ns());
        member.hold_unlimited(anon);
        if alone::is_ending() || !go_on(Bytes::new(anon)) {
            return Bytes::new(anon);
        }
        if let Some(changed) = changed {
            rights::follow_program(changed);
        }
        rights::follow();
        counters.set(Counter::RightsKept, rights::times_kept());
        if anon > before + GROWTH_BYTES {
            (sleep, quiet_us) = (SLEEP_GROWING_US, 0);
        } else {
            quiet_us = quiet_us.saturating_add(sleep);
            sleep = watch_interval_of_small_us(member.tree().budget(), sleep, quiet_us);
        }
        before = anon;
        if HAS_FAILED.load(Ordering::Acquire) || give_way::is_shared() {
            sleep_us(sleep);
        } else {
            sleep_while_zero(&WANTED, sleep);
        }
    }
}

/// Starts the engine and watches for good. Returns only if there is none; a child that has accepted
/// its parent's offer does not.
fn manage(config: &Config, member: Member, held: Bytes, offer: Option<Offer>) -> Result<(), StartError> {
    if !crate::HEAP.grow(config.budget) {
        return Err(StartError::AddressSpace(Errno::NONE));
    }
    // A child takes over from a parent that was managed.
    if offer.is_none() && has_shadow_memory() {
        return Err(StartError::ShadowMemory);
    }
    reserved::keep_spares();
    // SAFETY: `pagoda run` was asked to have this program's memory managed. Adopted memory is
    // private anonymous memory by the kernel's own list, without this library's mappings, so that
    // no memory of a fault handler is among it.
    let adoption = unsafe { Adoption::assume() };
    let (keeper, _share) = member.manage(held);
    let counters: Arc<Counters> = Arc::new(member.counters());
    let layout = LAYOUT.get().copied().flatten();
    let is_child = IS_CHILD.load(Ordering::Acquire);
    let taken = offer.map(Offer::descriptors).transpose();
    let taken = taken.map_err(|error| StartError::DescriptorLimit((&error).into()))?;
    let (uffd, given) = taken.map(|Taken { uffd, stream, lent }| (uffd, (stream, lent))).unzip();
    let mut prepared =
        ProcessEngine::prepare(config, keeper, is_child, counters, &adoption, uffd, layout, current::end)?;
    if let (Some(offer), Some((stream, lent))) = (offer, given) {
        if !offer.accept() {
            return Err(StartError::Userfaultfd(Errno::NONE));
        }
        if let Err(error) = prepared.take_over(stream, lent) {
            // Only a parent that is gone leaves a stream that ends early.
            prepared.stop(match error.kind() {
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
                    StopReason::ParentLost
                }
                _ => StopReason::EngineBroken,
            });
        }
    }
    let (engine, mut watcher) = match prepared.start() {
        Ok(started) => started,
        Err(error) if offer.is_none() => return Err(error),
        // No other engine serves it any more.
        Err(error) => {
            fail(config, &member, error);
            exit_process(OWN_FAILURE);
        }
    };
    current::activate(engine);
    // Nothing is evicted before.
    fork::wait_for_forks();
    if give_way::is_shared()
        && let Some(engine) = current::engine()
    {
        engine.request_release();
    }
    if !mutexes::pin_known(&mut watcher) {
        current::stop(StopReason::PinsFull);
    }
    HAS_ALL.store(true, Ordering::Release);
    watcher.run();
    Ok(())
}

/// Whether the program will reserve the tables of a sanitizer, after the constructors of libraries.
static EXPECTS_SHADOW_MEMORY: AtomicBool = AtomicBool::new(false);

/// Whether a sanitizer's runtime has reserved its tables, or will. All do so before `main`.
fn has_shadow_memory() -> bool {
    if EXPECTS_SHADOW_MEMORY.load(Ordering::Acquire) {
        return true;
    }
    let read = StatmReader::new().and_then(|reader| reader.read());
    read.is_ok_and(|statm| statm.data_bytes as u64 >= budget::DATA_MOST.get())
}

/// Begins anew in a child, which is `ready` as soon as it has all its memory: it forgets its
/// parent's state, and becomes a member of its own.
pub fn begin_in_child(ready: impl FnOnce() -> Answer) {
    current::forget();
    IS_CHILD.store(true, Ordering::Release);
    HAS_ALL.store(false, Ordering::Release);
    let answer = ready();
    threads::forget_starts();
    forget_raw_threads();
    rights::forget_threads();
    unforked::forget_calls();
    give_way::forget_sharers();
    WANTED.store(0, Ordering::Release);
    HAS_FAILED.store(false, Ordering::Release);
    forget_what_parents_have();
    // SAFETY: a child has one thread, and this library uses nothing that the parent's engine had
    // allocated.
    unsafe { crate::HEAP.forget() };
    let start = match answer {
        Answer::Everything => Start::WhenGrown,
        Answer::Offer(offer) => Start::TakesOver(offer),
        // Missing pages would read as zero.
        Answer::Lost => exit_process(OWN_FAILURE),
    };
    let Some(tree) = current::tree() else { return decline(start) };
    begin(*tree, start);
    if let Start::TakesOver(_) = start {
        // Bounded by the size of the parent's stream, and by its and the engine's patience.
        while !HAS_ALL.load(Ordering::Acquire) {
            sleep_us(50);
        }
        leave();
    }
}
