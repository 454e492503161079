//! The calls of a program that are incompatible with an engine: everything is swapped in before,
//! and the process is managed no further. Of memory that the program registers itself only that
//! range is.
//!
//! - A process that shares this one's memory and is no thread of it (`clone` with `CLONE_VM`) may
//!   outlive it, and with it the engine that serves its missing pages.
//! - A leak checker stops all threads of the process, the engine's too, and then reads its memory.
//!   It does so at the end of the program, or when it is called.
//! - Memory is registered with one userfaultfd only. A program gets the range that it
//!   registers itself.
//!
//! This module must never let such a call begin while anything is missing.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::exit_process;

use super::real::{errno, place, real, required};
use crate::current::{deactivate, engine, is_watched};

/// Whether a process shares this one's memory, so that no engine may begin.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Whether no engine may begin in this process any more.
pub fn is_shared() -> bool {
    IS_SHARED.load(Ordering::SeqCst)
}

/// In a child of fork, which shares its memory with none.
pub fn forget_sharers() {
    IS_SHARED.store(false, Ordering::SeqCst);
}

/// Swaps everything in and ends the management. Returns when that is done.
fn give_way() {
    if let Some(engine) = engine() {
        engine.release();
        deactivate();
    }
}

type Clone = unsafe extern "C" fn(
    Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// As clone(2). Its last three arguments are optional; their registers and place on the stack are
/// passed on as they are.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    function: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    let real = required(const { place("clone") });
    if let Some(engine) = engine() {
        engine.let_go_of_processor();
    }
    // A parent of vfork waits until its child has memory of its own.
    let shares = flags & libc::CLONE_VM != 0 && flags & (libc::CLONE_THREAD | libc::CLONE_VFORK) == 0;
    if shares && is_watched() {
        // Either we see the engine here, or the thread that starts it sees this.
        IS_SHARED.store(true, Ordering::SeqCst);
        give_way();
    }
    // SAFETY: `real` found the function of this name behind this library, which has this type; the
    // caller's arguments. A variadic function gets numbers and pointers where one with a fixed list
    // does.
    unsafe {
        std::mem::transmute::<*mut c_void, Clone>(real)(
            function, stack, flags, argument, parent_tid, tls, child_tid,
        )
    }
}

/// `UFFDIO_REGISTER` of linux/userfaultfd.h.
const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// As ioctl(2), but that the program may register memory that is managed.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let real = required(const { place("ioctl") });
    // SAFETY: as in `clone`.
    let real = unsafe { std::mem::transmute::<*mut c_void, Ioctl>(real) };
    // SAFETY: the caller's arguments.
    let result = unsafe { real(descriptor, request, argument) };
    // Of the low word alone: a caller may have it sign-extended.
    let registers = request as u32 == UFFDIO_REGISTER as u32;
    if !registers || result != -1 || errno().get() != libc::EBUSY {
        return result;
    }
    let Some(engine) = engine() else { return result };
    // SAFETY: the kernel has just read it, as `struct uffdio_register`, which begins with the start
    // and the length of the range.
    let [start, len] = unsafe { argument.cast::<[u64; 2]>().read_unaligned() };
    let Some(range) = PageRange::new(start as usize, start.wrapping_add(len) as usize) else { return result };
    let mut result = result;
    // SAFETY: the caller's arguments.
    if !engine.while_given_back(range, || result = unsafe { real(descriptor, request, argument) }) {
        errno().set(libc::EBUSY);
    }
    result
}

/// The program's `main`, where a leak checker is in the process.
static MAIN: AtomicUsize = AtomicUsize::new(0);

/// The result of [`__libc_start_main`]'s first part: the real function, and the `main` to call. In
/// the two registers of the C calling convention for such a pair.
#[repr(C)]
struct StartMain {
    real: *mut c_void,
    main: usize,
}

extern "C" fn choose_main(main: usize) -> StartMain {
    let real = required(const { place("__libc_start_main") });
    // SAFETY: the name is a C string; the dynamic linker looks behind this library, and in the
    // program itself.
    let has_checker = !self::real(const { place("__lsan_do_leak_check") }).is_null()
        || unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"__lsan_default_options".as_ptr()).is_null() };
    if !has_checker {
        return StartMain { real, main };
    }
    MAIN.store(main, Ordering::Release);
    StartMain { real, main: begin_main as *const () as usize }
}

type CxaAtExit = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, *mut c_void) -> c_int;

extern "C" fn before_check(_: *mut c_void) {
    give_way();
}

/// Right before `main`, so that it runs before the end handlers that a runtime has registered:
/// those run last one first.
extern "C" fn prepare_main() -> usize {
    let register = real(const { place("__cxa_atexit") });
    if register.is_null() {
        exit_process(125);
    }
    // SAFETY: the function has this type, and the one it gets lives as long as the process: this
    // library is never unloaded, so that no handle is passed that would say when.
    unsafe {
        std::mem::transmute::<*mut c_void, CxaAtExit>(register)(
            before_check,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    MAIN.load(Ordering::Acquire)
}

/// Jumps to the program's `main`, so that no frame of ours is below that.
///
/// # Safety
/// The C library calls it in place of `main`.
#[unsafe(naked)]
unsafe extern "C" fn begin_main() -> c_int {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {prepare}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        prepare = sym prepare_main,
    )
}

/// As the C library's, which begins a program: in one with a leak checker everything is swapped in
/// before that looks.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __libc_start_main() -> c_int {
    core::arch::naked_asm!(
        // Six arguments in registers, one on the stack, which stays where it is. With these the
        // stack is aligned for a call.
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {choose}",
        "add rsp, 8",
        "mov rdi, rdx",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "add rsp, 8",
        "jmp rax",
        choose = sym choose_main,
    )
}

/// As LeakSanitizer's, which a program may call at any time.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __lsan_do_leak_check() {
    give_way();
    let real = real(const { place("__lsan_do_leak_check") });
    if !real.is_null() {
        // SAFETY: `real` found the function of this name behind this library, which has this type.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(real)() };
    }
}

/// As LeakSanitizer's, which a program may call at any time. 0 without one: it found no leak.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __lsan_do_recoverable_leak_check() -> c_int {
    give_way();
    let real = real(const { place("__lsan_do_recoverable_leak_check") });
    if real.is_null() {
        return 0;
    }
    // SAFETY: `real` found the function of this name behind this library, which has this type.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(real)() }
}

/// Options of AddressSanitizer's shared runtime, which asks for them before it looks for itself at
/// the head of the list of libraries. Behind this library it works as well; the process runs
/// unmanaged. A program that defines this function itself is asked in place of this library.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
