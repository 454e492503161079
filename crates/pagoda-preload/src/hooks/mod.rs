//! The functions of the C library that this library stands in for, and the engine's part of each.
//!
//! Every hook calls the real function with the same arguments and returns its result. In a process
//! that is not managed (a child, a program that runs unmanaged) it does nothing else.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pagoda::error::StopReason;
use pagoda::process::ProcessEngine;
use pagoda::state::pins::Pinner;
use pagoda_linux::mem::guards;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::unforked;
use pagoda_linux::process::thread::{current_id, exit_process};

use crate::fork::{after_fork, before_fork, before_wipe_on_fork, in_child};
use crate::mutexes::{pin_mutex, unpin_mutex};
use crate::start::{engine, stop};

type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type PthreadCreate =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;
type MutexInit = unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;
type MutexDestroy = unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> c_int;
type GetRobust = unsafe extern "C" fn(*const libc::pthread_mutexattr_t, *mut c_int) -> c_int;
type RawFork = unsafe extern "C" fn() -> libc::pid_t;
type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// The real functions: found once, before the program can call a hook on purpose.
static REAL: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];
const NAMES: [&CStr; 53] = [
    c"pthread_create",
    c"pthread_mutex_init",
    c"pthread_mutex_destroy",
    c"_Fork",
    c"madvise",
    c"vmsplice",
    c"setsockopt",
    c"mlockall",
    c"setuid",
    c"seteuid",
    c"setreuid",
    c"setresuid",
    c"setgid",
    c"setegid",
    c"setregid",
    c"setresgid",
    c"capset",
    c"clone",
    c"ioctl",
    c"__libc_start_main",
    c"__lsan_do_leak_check",
    c"__lsan_do_recoverable_leak_check",
    c"setgroups",
    c"initgroups",
    // These have no hook: program threads call them.
    c"pthread_mutexattr_getrobust",
    c"__errno_location",
    c"__register_atfork",
    c"__cxa_atexit",
    // Of `limits`.
    c"setrlimit",
    c"setrlimit64",
    c"getrlimit",
    c"getrlimit64",
    c"prlimit",
    c"prlimit64",
    // Of `processors`.
    c"sched_getaffinity",
    c"sched_setaffinity",
    c"pthread_getaffinity_np",
    c"pthread_setaffinity_np",
    c"get_nprocs",
    c"sysconf",
    c"vfork",
    c"posix_spawn",
    c"posix_spawnp",
    c"system",
    c"popen",
    c"execve",
    c"execv",
    c"execvp",
    c"execvpe",
    c"execl",
    c"execlp",
    c"execle",
    c"fexecve",
];

/// The place of a function in [`NAMES`]. The compiler finds it: a wrong place would have a hook
/// call another function.
pub const fn place(name: &str) -> usize {
    let mut at = 0;
    while at < NAMES.len() {
        if is_same(NAMES[at].to_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    panic!("the list of hooks lacks this name")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// How much of a thread's control block the kernel may read or write: glibc's `struct pthread` has
/// under 2,560 bytes on x86_64, from the thread pointer upwards: 2,304 since 2.35, of which the
/// kernel's part ends well before.
const CONTROL_BLOCK_BYTES: usize = 2304;

/// Finds the real functions.
pub fn resolve() {
    for i in 0..NAMES.len() {
        real(i);
    }
}

/// The real function of that place in [`NAMES`]; null if there is none.
pub fn real(i: usize) -> *mut c_void {
    let known = REAL[i].load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = crate::c_library::next(NAMES[i]);
    REAL[i].store(found, Ordering::Release);
    found
}

/// The real function of that place, which this library can't do without.
pub fn required(i: usize) -> *mut c_void {
    let real = real(i);
    if real.is_null() {
        exit_process(125);
    }
    real
}

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
pub fn pin_current_thread() -> bool {
    let Some(engine) = engine() else { return true };
    let thread_pointer = thread_pointer();
    let end = thread_pointer + CONTROL_BLOCK_BYTES - 1;
    let Some(range) = PageRange::covering(thread_pointer, end) else { return true };
    if !engine.pins().pin(Pinner::Thread(current_id()), range) {
        return false;
    }
    for address in [thread_pointer, end] {
        // SAFETY: both bytes are of this thread's own control block, or of the page that its end
        // lies in. Reading swaps the page in if it was evicted before it was pinned.
        unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
    }
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
        pagoda_linux::process::thread::yield_now();
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
    if !pin_current_thread() {
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
    let real = real(const { place("pthread_create") });
    if real.is_null() {
        exit_process(125);
    }
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

/// As pthread_mutex_init(3).
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    let real = real(const { place("pthread_mutex_init") });
    if real.is_null() {
        exit_process(125);
    }
    // SAFETY: as in `pthread_create`.
    let result = unsafe { std::mem::transmute::<*mut c_void, MutexInit>(real)(mutex, attributes) };
    // SAFETY: the caller vouches for the attributes, if there are any.
    if result == 0 && unsafe { is_robust(attributes) } && !pin_mutex(mutex.addr()) {
        return libc::EAGAIN;
    }
    result
}

/// # Safety
/// The attributes are null or valid.
unsafe fn is_robust(attributes: *const libc::pthread_mutexattr_t) -> bool {
    let get = real(const { place("pthread_mutexattr_getrobust") });
    if attributes.is_null() || get.is_null() {
        return false;
    }
    let mut robust = 0;
    // SAFETY: the function has this type, and writes an int.
    let got = unsafe { std::mem::transmute::<*mut c_void, GetRobust>(get)(attributes, &raw mut robust) };
    got == 0 && robust == libc::PTHREAD_MUTEX_ROBUST
}

/// As pthread_mutex_destroy(3).
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut libc::pthread_mutex_t) -> c_int {
    let real = real(const { place("pthread_mutex_destroy") });
    if real.is_null() {
        exit_process(125);
    }
    // SAFETY: as in `pthread_create`.
    let result = unsafe { std::mem::transmute::<*mut c_void, MutexDestroy>(real)(mutex) };
    if result == 0 {
        unpin_mutex(mutex.addr());
    }
    result
}

/// As _Fork(3), which runs no atfork handlers.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    before_fork();
    let real = real(const { place("_Fork") });
    if real.is_null() {
        exit_process(125);
    }
    // SAFETY: as in `pthread_create`.
    let child = unsafe { std::mem::transmute::<*mut c_void, RawFork>(real)() };
    if child == 0 {
        in_child();
    } else {
        after_fork();
    }
    child
}

/// As madvise(2), except that memory that the kernel may free later (`MADV_FREE`) is freed at once
/// in a managed process.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    match advice {
        libc::MADV_WIPEONFORK => before_wipe_on_fork(),
        libc::MADV_DONTFORK => unforked::asks(),
        _ => {}
    }
    let real = real(const { place("madvise") });
    if real.is_null() {
        exit_process(125);
    }
    // SAFETY: as in `pthread_create`.
    let real = unsafe { std::mem::transmute::<*mut c_void, Madvise>(real) };
    // SAFETY: the caller's arguments.
    let result = unsafe { real(address, length, advice) };
    if advice == libc::MADV_DONTFORK {
        unforked::has_asked();
    }
    let is_to_be_told = matches!(advice, libc::MADV_FREE | guards::INSTALL);
    // Memory that is registered later is scanned then: present pages count as content.
    if result != 0 || !is_to_be_told || !engine().is_some_and(ProcessEngine::has_registered) {
        return result;
    }
    // Only after the kernel has taken the advice: where it refuses, everything stays. Memory that
    // it may free later is freed at once, because a later write there would not be known as
    // content, and never be evicted. And a guard sends no event. SAFETY: the content of the range
    // is worth nothing any more.
    unsafe { real(address, length, libc::MADV_DONTNEED) };
    if advice != guards::INSTALL {
        return 0;
    }
    // Once more: a thread that filled around it meanwhile may have looked before it was there.
    // SAFETY: the caller's arguments.
    unsafe { real(address, length, advice) }
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
