//! Starting the engine in the process that `pagoda run` made, before its `main`.
//!
//! Only the process that claims the counters file is managed; its children load this library too and stay as they are.
//! If the engine can't start, the process ends with status 125 before any of the program ran, or runs unmanaged where the
//! user said so. This module must never let a program run on half managed.

use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use pagoda::config::Config;
use pagoda::counters::{Counter, Counters, Status};
use pagoda::error::{StartError, StopReason};
use pagoda::manager::ProcessEngine;
use pagoda_linux::own_memory::declare_library_data;
use pagoda_linux::space::Adoption;
use pagoda_linux::tcb::ThreadLayout;
use pagoda_linux::thread::{Files, disable_huge_pages, exit_process, sleep_us, spawn_raw};

/// Pagoda's own failures, as for env(1) and nohup(1).
const OWN_FAILURE: u8 = 125;

static ENGINE: OnceLock<ProcessEngine> = OnceLock::new();

/// Whether this process is managed. Cleared for good in a forked child and once everything was brought back.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// What the starting thread waits for: 0 not yet, 1 managed, 2 failed.
static OUTCOME: AtomicU32 = AtomicU32::new(0);

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
        // Without a configuration there is no counters file to say so in.
        Err(_) => exit_process(OWN_FAILURE),
    };
    let Some(path) = &config.counters else { return };
    // A child of a managed program whose `pagoda run` has ended finds no file, and needs none.
    let Ok(counters) = Counters::open(path) else { return };
    if !counters.claim(u64::from(std::process::id())) {
        counters.add(Counter::ChildrenUnmanaged, 1);
        return;
    }
    // A program that this process replaced by exec may have left its own state there.
    counters.set(Counter::ErrorCode, 0);
    let best_effort = config.best_effort;
    declare_library_data();
    disable_huge_pages();
    let layout = ThreadLayout::of_current_thread();
    let counters = Arc::new(counters);
    let shared = Arc::clone(&counters);
    let body = Box::new(move || run(&config, &shared, layout));
    if let Err(error) = spawn_raw(c"pagoda-watch", Files::Own, body) {
        fail(&counters, StartError::Threads((&error).into()));
    }
    // Bounded by what starting takes: mappings, a file, threads.
    while OUTCOME.load(Ordering::Acquire) == 0 {
        sleep_us(50);
    }
    if OUTCOME.load(Ordering::Acquire) == 1 {
        ACTIVE.store(true, Ordering::Release);
        // The first pin of all: there is room.
        let _ = crate::hooks::pin_current_thread();
        crate::hooks::watch_forks();
    } else if !best_effort {
        exit_process(OWN_FAILURE);
    }
}

fn fail(counters: &Counters, error: StartError) {
    counters.set(Counter::ErrorErrno, error.errno().0 as u64);
    counters.set(Counter::ErrorCode, error.code());
    counters.set(Counter::Status, Status::Failed as u64);
    OUTCOME.store(2, Ordering::Release);
}

/// The first raw thread: opens everything in its own descriptor table, starts the others, and becomes the watcher.
fn run(config: &Config, counters: &Arc<Counters>, layout: Option<ThreadLayout>) {
    // SAFETY: `pagoda run` was asked to have this program's memory managed. What is adopted is private anonymous memory
    // by the kernel's own list, without this library's mappings, so that nothing that serves faults is among it.
    let adoption = unsafe { Adoption::assume() };
    match ProcessEngine::start(config, Arc::clone(counters), &adoption, layout, stop) {
        Ok((engine, watcher)) => {
            // The constructor is called once, so that nobody was faster.
            let _ = ENGINE.set(engine);
            OUTCOME.store(1, Ordering::Release);
            watcher.run();
        }
        Err(error) => fail(counters, error),
    }
}

/// Fail stop: the reason is in the counters file, where `pagoda run` reads it.
fn stop(_: StopReason) -> ! {
    exit_process(OWN_FAILURE)
}
