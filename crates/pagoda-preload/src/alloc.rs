//! The heap of the engine inside an unmodified program: over mappings of our own, which are never
//! managed.
//!
//! Small blocks come from `talc` under one lock; large ones are parts of the engine's room, or
//! mappings of their own, so that zeroed tables cost nothing until they are written. The program's
//! own allocator is never called.
//! The lock is held for moments, by threads of the engine and by the program's threads inside our
//! hooks; its holder touches nothing but this heap.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use pagoda::error::StopReason;
use pagoda::stats::counters::{Counter, Counters, Status};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::own_memory::OwnMapping;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::exit_process;
use talc::{OomHandler, Span, Talc};

use crate::room::{self, Room};

/// From this size on a block takes whole units of the room: working memory of threads, mostly never
/// written.
const LARGE_BYTES: usize = room::UNIT;

/// The heap's growth step: so large that the list of our own mappings stays short.
const GROWTH_BYTES: usize = 4 << 20;

/// Where it is said that there is no memory for the engine: in this heap itself, for good.
static COUNTERS: AtomicPtr<Counters> = AtomicPtr::new(std::ptr::null_mut());

/// From now on a block that can't be had ends the process with a reason in these counters.
pub fn say_exhaustion_in(counters: Counters) {
    COUNTERS.store(Box::into_raw(Box::new(counters)), Ordering::Release);
}

/// The end of the process, for lack of a block. Null would be an abort without a reason.
fn exhausted() -> *mut u8 {
    // SAFETY: the counters were leaked, and a child forgets them with the heap.
    if let Some(counters) = unsafe { COUNTERS.load(Ordering::Acquire).as_ref() } {
        if counters.get(Counter::ErrorCode) == 0 {
            counters.set(Counter::ErrorErrno, StopReason::EngineMemory.errno().0 as u64);
            counters.set(Counter::ErrorCode, StopReason::EngineMemory.code());
            counters.set(Counter::Status, Status::Failed as u64);
        }
        exit_process(125)
    }
    std::ptr::null_mut()
}

/// The first memory of the heap, in this library's own data: as much as a process without an engine
/// needs, so that a process that lives for a millisecond makes no mapping for it.
struct First(UnsafeCell<[u8; FIRST_BYTES]>);

const FIRST_BYTES: usize = 64 << 10;

// SAFETY: only the heap uses it, which has a lock.
unsafe impl Sync for First {}

static FIRST: First = First(UnsafeCell::new([0; FIRST_BYTES]));

struct Grow {
    has_first: bool,
    room: Room,
}

impl Grow {
    const fn new() -> Self {
        Self { has_first: false, room: Room::new() }
    }
}

impl OomHandler for Grow {
    fn handle_oom(talc: &mut Talc<Self>, layout: Layout) -> Result<(), ()> {
        if !std::mem::replace(&mut talc.oom_handler.has_first, true) {
            // SAFETY: it is there for good, and this heap's alone: no other claims it, and this one
            // once. In a child, whose heap begins anew, nothing of the old one is used any more. If
            // it is too small the heap asks again.
            return unsafe { talc.claim(Span::from_base_size(FIRST.0.get().cast(), FIRST_BYTES)).map(drop) };
        }
        grow(talc, layout.size() + layout.align())
    }
}

/// By at least so much.
fn grow(talc: &mut Talc<Grow>, bytes: usize) -> Result<(), ()> {
    let len = (bytes + 4096).next_multiple_of(GROWTH_BYTES);
    let range = match talc.oom_handler.room.take(len) {
        Some(part) => part,
        None => OwnMapping::reserve(len, 4096, false).map_err(drop)?.leak(),
    };
    let start = std::ptr::with_exposed_provenance_mut::<u8>(range.start());
    // SAFETY: the memory is fresh, ours for good, and used by no one else.
    unsafe { talc.claim(Span::from_base_size(start, range.len())).map(drop) }
}

/// The heap.
pub struct OwnHeap {
    small: UnsafeCell<Mutex<Talc<Grow>>>,
}

// SAFETY: the heap is reached through its lock alone, except by `forget`, whose caller is the only
// thread.
unsafe impl Sync for OwnHeap {}

impl OwnHeap {
    /// An empty heap, which takes its first memory when it is first used.
    pub const fn new() -> Self {
        Self { small: UnsafeCell::new(Mutex::new(Talc::new(Grow::new()))) }
    }

    /// Begins anew with an empty heap, in a child, which did not inherit the blocks.
    ///
    /// # Safety
    /// The calling thread is the only one of the process, and nothing that was allocated is used
    /// any more.
    pub unsafe fn forget(&self) {
        COUNTERS.store(std::ptr::null_mut(), Ordering::Release);
        // SAFETY: there is no other thread. The old value owns no memory that is still mapped, so
        // it is not dropped.
        unsafe { self.small.get().write(Mutex::new(Talc::new(Grow::new()))) };
    }

    /// Takes the memory that an engine with this budget needs, before it starts: later the program
    /// may be at its limit of mappings. False if there is none.
    #[must_use]
    pub fn grow(&self, budget: Bytes) -> bool {
        self.small().lock().is_ok_and(|mut small| {
            small.oom_handler.room.open(budget);
            grow(&mut small, 0).is_ok()
        })
    }

    fn small(&self) -> &Mutex<Talc<Grow>> {
        // SAFETY: `forget` replaces it only while no other thread has this reference.
        unsafe { &*self.small.get() }
    }

    fn is_large(layout: Layout) -> bool {
        layout.size() >= LARGE_BYTES
    }

    fn large(&self, layout: Layout) -> *mut u8 {
        let part = match self.small().lock() {
            Ok(mut small) if layout.align() <= room::UNIT => small.oom_handler.room.take(layout.size()),
            _ => None,
        };
        if let Some(part) = part {
            return std::ptr::with_exposed_provenance_mut(part.start());
        }
        let len = layout.size().next_multiple_of(4096);
        OwnMapping::reserve(len, layout.align().max(4096), false).map_or_else(
            |_| exhausted(),
            |mapping| std::ptr::with_exposed_provenance_mut(mapping.leak().start()),
        )
    }
}

// SAFETY: small blocks are talc's, which keeps the contract under the lock; large ones are memory
// of at least the size and alignment asked for, owned by their block alone. Nothing here unwinds: a
// poisoned lock gives null.
unsafe impl GlobalAlloc for OwnHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Self::is_large(layout) {
            return self.large(layout);
        }
        let Ok(mut small) = self.small().lock() else { return std::ptr::null_mut() };
        // SAFETY: the layout's size is not zero, by this function's own contract.
        unsafe { small.malloc(layout) }.map_or_else(|()| exhausted(), NonNull::as_ptr)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the contract is the same.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && !Self::is_large(layout) {
            // SAFETY: the block has this size. A large one is a fresh mapping, zero already.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if Self::is_large(layout) {
            let start = block.expose_provenance();
            // SAFETY: its owner gives the block up now.
            let give_back = |mut small: MutexGuard<'_, Talc<Grow>>| unsafe {
                small.oom_handler.room.give_back(start, layout.size())
            };
            if !self.small().lock().is_ok_and(give_back) {
                let range = PageRange::at(start, layout.size().next_multiple_of(4096));
                // SAFETY: `large` leaked exactly this mapping for this block, which its owner gives
                // up now.
                drop(unsafe { OwnMapping::retake(range) });
            }
            return;
        }
        if let (Ok(mut small), Some(block)) = (self.small().lock(), NonNull::new(block)) {
            // SAFETY: the block came from `malloc` with this layout.
            unsafe { small.free(block, layout) };
        }
    }
}
