//! The engine and the tree of this process, as the hooks find them.
//!
//! Only `start` changes them. A child that was made by a raw system call has this memory, too, and
//! none of the threads: each answer is compared with the number of the process. This module must
//! never hand out another process's engine.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use pagoda::error::StopReason;
use pagoda::process::ProcessEngine;
use pagoda::tree::Tree;
use pagoda_linux::process::thread::exit_process;

/// Pagoda's own failures, as for env(1) and nohup(1).
pub const OWN_FAILURE: u8 = 125;

/// The engine of this process, for good; null as long as there is none.
static ENGINE: AtomicPtr<ProcessEngine> = AtomicPtr::new(std::ptr::null_mut());

/// The process that [`ENGINE`] is of, or 0 if it is not managed: a child that was made without the
/// C library has the pointer, but not its target.
static ACTIVE: AtomicU32 = AtomicU32::new(0);

/// The tree, which a child needs to begin anew. In this library's own data, which a child has, too.
static TREE: OnceLock<Tree> = OnceLock::new();

/// The process that is watched; 0 before the first.
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// The engine, if this process is managed.
pub fn engine() -> Option<&'static ProcessEngine> {
    let active = ACTIVE.load(Ordering::Acquire);
    if active == 0 || active != std::process::id() {
        return None;
    }
    // SAFETY: the engine was leaked, in this process.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// The tree that this process is in, if it is in one.
pub fn tree() -> Option<&'static Tree> {
    TREE.get()
}

/// Whether this process has memory of Pagoda's own: not a child that was forked by a raw system
/// call.
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Acquire) == std::process::id()
}

/// Names the tree, once: before the process is watched.
pub fn join(tree: Tree) {
    let _ = TREE.set(tree);
}

/// This process has memory of Pagoda's own from here on.
pub fn set_watched() {
    WATCHED.store(std::process::id(), Ordering::Release);
}

/// This process is managed by `engine` from here on, for good.
pub fn activate(engine: ProcessEngine) {
    ENGINE.store(Box::into_raw(Box::new(engine)), Ordering::Release);
    ACTIVE.store(std::process::id(), Ordering::Release);
}

/// Ends the use of the engine: everything is swapped in.
pub fn deactivate() {
    ACTIVE.store(0, Ordering::Release);
}

/// In a child: the engine is its parent's.
pub fn forget() {
    ACTIVE.store(0, Ordering::Release);
    ENGINE.store(std::ptr::null_mut(), Ordering::Release);
}

/// Fail stop: the reason is in the tree file, where `pagoda run` reads it.
pub fn end(_: StopReason) -> ! {
    exit_process(OWN_FAILURE)
}

/// Ends this process, and leaves the reason where there is an engine to leave it.
pub fn stop(reason: StopReason) -> ! {
    engine().map_or_else(|| end(reason), |engine| engine.stop(reason))
}
