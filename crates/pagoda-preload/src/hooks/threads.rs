//! The hook of pthread_create(3): each thread of the program pins what the kernel reads of it.
//!
//! This module must never leave a frame of its own on a thread's stack, which others unwind.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use pagoda::error::StopReason;
use pagoda::state::pins::Pinner;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::touch::touch;
use pagoda_linux::process::thread::{current_id, yield_now};

use super::real::{place, required};
use crate::current::{engine, stop};

type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type PthreadCreate =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// How much of a thread's control block the kernel may read or write: glibc's `struct pthread` has
/// under 2,560 bytes on x86_64, from the thread pointer upwards: 2,304 since 2.35, of which the
/// kernel's part ends well before.
const CONTROL_BLOCK_BYTES: usize = 2304;

/// The address of the calling thread's control block, which begins with it.
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: it reads the thread's own first word.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    };
    pointer
}

/// Pins the calling thread's control block, for as long as the thread lives. False if there are too
/// many pins.
pub fn pin_current() -> bool {
    let Some(engine) = engine() else { return true };
    let thread_pointer = thread_pointer();
    let end = thread_pointer + CONTROL_BLOCK_BYTES - 1;
    let Some(range) = PageRange::covering(thread_pointer, end) else { return true };
    if !engine.pins().pin(Pinner::Thread(current_id()), range) {
        return false;
    }
    touch(range);
    true
}

/// The start functions of threads that are being started: 0 is a free place, 1 one that is being
/// written. Not on any heap: the starting thread's stack is managed memory, and a thread that runs
/// on it may hold no lock of the engine.
static BEGIN: [(AtomicUsize, AtomicUsize); BEGIN_BOUND] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; BEGIN_BOUND];

/// Threads that are between their creation and their first instruction. Beyond it a creator waits.
const BEGIN_BOUND: usize = 256;

fn remember(start: Start, argument: *mut c_void) -> usize {
    loop {
        for (place, (begin, passed)) in BEGIN.iter().enumerate() {
            if begin.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                passed.store(argument.expose_provenance(), Ordering::Release);
                begin.store(start as usize, Ordering::Release);
                return place;
            }
        }
        yield_now();
    }
}

fn recall(place: usize) -> (Start, *mut c_void) {
    let (begin, passed) = &BEGIN[place];
    let argument = std::ptr::with_exposed_provenance_mut(passed.load(Ordering::Acquire));
    let start = begin.swap(0, Ordering::AcqRel);
    // SAFETY: `remember` put a function of this type there, and the place is recalled once.
    (unsafe { std::mem::transmute::<usize, Start>(start) }, argument)
}

/// The start function of a new thread, and its argument. In the two registers of the C calling
/// convention for such a pair.
#[repr(C)]
struct Begun {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn prepare_to_begin(place: *mut c_void) -> Begun {
    let (start, argument) = recall(place.addr());
    if !pin_current() {
        // Going on would risk a hang at this one's end.
        stop(StopReason::PinsFull);
    }
    Begun { start, argument }
}

/// The first function of each thread of the program. It jumps to the program's own when it is done,
/// so that no frame of ours is below that: pthread_exit(3) and pthread_cancel(3) unwind a thread's
/// whole stack, and this library can't be unwound.
///
/// # Safety
/// `place` came from [`remember`], and is used once.
#[unsafe(naked)]
unsafe extern "C" fn begin(place: *mut c_void) -> *mut c_void {
    core::arch::naked_asm!(
        // The stack is aligned for a call one word further down.
        "push rax",
        "call {prepare}",
        "pop rcx",
        "mov rdi, rdx",
        "jmp rax",
        prepare = sym prepare_to_begin,
    )
}

/// As pthread_create(3).
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let real = required(const { place("pthread_create") });
    // SAFETY: `real` found the function of this name behind this library, which has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, PthreadCreate>(real) };
    // Also without an engine: one that starts before the thread's first instruction has not seen
    // it.
    let place = remember(start, argument);
    // The new thread inherits this one's processors.
    let entered = engine().inspect(|engine| engine.enter_call());
    // SAFETY: the caller's arguments, but for the start function, which calls theirs.
    let result = unsafe { real(thread, attributes, begin, std::ptr::without_provenance_mut(place)) };
    if let Some(engine) = entered {
        engine.leave_call();
    }
    if result != 0 {
        // No thread was made: the place is ours to free.
        recall(place);
    }
    result
}

/// In a child: forgets the threads that others were starting in the parent.
pub fn forget_starts() {
    for (begin, _) in &BEGIN {
        // Most are free, and a page that is not written is not copied.
        if begin.load(Ordering::Acquire) != 0 {
            begin.store(0, Ordering::Release);
        }
    }
}
