//! Signal handlers of a program's own: on a stack of its choice, as a collector's barrier, or such
//! that only count.
//!
//! A handler runs in the middle of anything. So one here must never do more than use atomics and
//! its own stack, or make system calls; and a caller can't pass its own handler.

use std::ffi::{c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::mapping::{Mapping, PAGE, WORDS};
use super::process::end_at_once;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn handle(signal: i32, handler: Handler, flags: i32) -> io::Result<()> {
    // SAFETY: sigaction is plain data, for which all zeroes are a value: an empty mask among them.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    // SAFETY: the kernel reads `action`, which is there, and is given no place for the old one.
    // Only handlers of this module run from now on, which use atomics, their own stack and system
    // calls only.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The state of the handlers of SIGSEGV and SIGUSR1 belongs to one thread at a time.
static USED: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exit status of a program after an unexpected fault.
const UNEXPECTED_FAULT: i32 = 8;

static GUARD_START: AtomicUsize = AtomicUsize::new(0);
static GUARD_END: AtomicUsize = AtomicUsize::new(0);
static GUARD_HITS: AtomicU64 = AtomicU64::new(0);

/// As a collector's barrier: it allows the touched page.
extern "C" fn allow(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel calls this handler with its info, valid until it returns; it is installed
    // for SIGSEGV only, whose info has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let (start, end) = (GUARD_START.load(Ordering::Acquire), GUARD_END.load(Ordering::Acquire));
    if !(start..end).contains(&address) {
        end_at_once(UNEXPECTED_FAULT);
    }
    GUARD_HITS.fetch_add(1, Ordering::Relaxed);
    let page: *mut c_void = std::ptr::with_exposed_provenance_mut(address & !(PAGE - 1));
    // SAFETY: the page lies in the guard, as was checked above, which is a part of a mapping that
    // `guarded` borrows; to allow more than before changes no content.
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

/// Runs `body` while these pages of `mapping` are forbidden, until they are touched: each first
/// touch reaches the program's handler of SIGSEGV, which allows that page. Returns the result of
/// `body`, and how many touches there were. Untouched pages stay forbidden. Any other fault ends
/// the program with status 8, from now on. One thread at a time gets this, and the others wait:
/// `body` must not call it again.
///
/// # Errors
/// The kernel's.
pub fn guarded<T>(
    mapping: &mut Mapping,
    pages: Range<usize>,
    body: impl FnOnce(&Mapping) -> T,
) -> io::Result<(T, u64)> {
    /// No page is a guard any more, also after a panic: before the mapping may end.
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            GUARD_END.store(0, Ordering::Release);
        }
    }
    let _one = one_at_a_time();
    handle(libc::SIGSEGV, allow, 0)?;
    mapping.protect(pages.clone(), libc::PROT_NONE)?;
    let _guard = Guard;
    GUARD_START.store(mapping.start() + pages.start * PAGE, Ordering::Release);
    GUARD_END.store(mapping.start() + pages.end * PAGE, Ordering::Release);
    let hits = GUARD_HITS.load(Ordering::Relaxed);
    let result = body(mapping);
    Ok((result, GUARD_HITS.load(Ordering::Relaxed) - hits))
}

/// Pages of its stack that the handler of [`run_on`] uses.
const USED_PAGES: usize = 8;
/// The least for [`run_on`]: the handler's use, once more if it is not optimised, and the kernel's
/// frame.
const STACK_PAGES_MIN: usize = 3 * USED_PAGES;

static RAN_AT: AtomicUsize = AtomicUsize::new(0);
static SUM: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_the_stack(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let mut words = [0u64; USED_PAGES * WORDS];
    words.iter_mut().zip(0..).for_each(|(word, i)| *word = i);
    let words = std::hint::black_box(&mut words);
    RAN_AT.store((&raw const words[0]).addr(), Ordering::Relaxed);
    SUM.store(words.iter().sum(), Ordering::Relaxed);
}

/// A handler's findings on its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// An address in it.
    pub at: usize,
    /// Whether it read its own writes.
    pub right: bool,
}

/// Runs a handler (of SIGUSR1) on this stack, of which it uses eight pages and the kernel's frame,
/// from the top downwards. One thread at a time gets this, and the others wait.
///
/// # Errors
/// The kernel's.
///
/// # Panics
/// If the stack has less than 24 pages.
pub fn run_on(stack: &mut Mapping) -> io::Result<Ran> {
    assert!(stack.pages() >= STACK_PAGES_MIN, "a stack of {} pages", stack.pages());
    let given = libc::stack_t {
        ss_sp: std::ptr::with_exposed_provenance_mut(stack.start()),
        ss_flags: 0,
        ss_size: stack.pages() * PAGE,
    };
    let _one = one_at_a_time();
    handle(libc::SIGUSR1, on_the_stack, libc::SA_ONSTACK)?;
    SUM.store(0, Ordering::Relaxed);
    // SAFETY: stack_t is plain data, for which all zeroes are a value.
    let mut old: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads `given` and writes `old`, which are there. The stack is all of a
    // mapping that is borrowed exclusively until the old one is put back, below: that is the
    // runtime's, and the runtime's to free.
    if unsafe { libc::sigaltstack(&raw const given, &raw mut old) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it takes a number; the handler, which runs before this returns, uses nothing but its
    // stack and atomics.
    unsafe { libc::raise(libc::SIGUSR1) };
    // SAFETY: the kernel reads `old`, which is there: the runtime's own stack, which it frees only
    // when this thread ends.
    unsafe { libc::sigaltstack(&raw const old, std::ptr::null_mut()) };
    let words = (USED_PAGES * WORDS) as u64;
    Ok(Ran {
        at: RAN_AT.load(Ordering::Relaxed),
        right: SUM.load(Ordering::Relaxed) == words * (words - 1) / 2,
    })
}

static COUNTED: AtomicU64 = AtomicU64::new(0);

extern "C" fn increment(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    COUNTED.fetch_add(1, Ordering::Relaxed);
}

/// From now on this signal is counted, and no more.
///
/// # Errors
/// The kernel's.
pub fn count(signal: i32) -> io::Result<()> {
    handle(signal, increment, 0)
}

/// How many signals were counted.
pub fn counted() -> u64 {
    COUNTED.load(Ordering::Relaxed)
}

/// From now on this signal is ignored.
///
/// # Errors
/// The kernel's.
pub fn ignore(signal: i32) -> io::Result<()> {
    // SAFETY: it takes a number, and instead of a handler the word that there is none.
    match unsafe { libc::signal(signal, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Has `command` begin with the default action of the signals that a user's keys and terminal
/// send: where the tests run in the background (nohup, a shell without job control) those are
/// ignored, and a program inherits that.
pub fn default_for(command: &mut Command) -> &mut Command {
    let reset = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: it takes a number, and instead of a handler the word for the default action.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes three system calls, allocates nothing (an
    // error of the system's number does not either) and takes no lock.
    unsafe { command.pre_exec(reset) }
}

/// All signals of this thread wait. On drop they no longer do, as far as they did not before.
#[derive(Debug)]
pub struct AllBlocked {
    old: libc::sigset_t,
    /// It is of one thread.
    _thread: PhantomData<*const ()>,
}

/// Blocks every signal that can be blocked.
#[must_use]
pub fn block_all() -> AllBlocked {
    // SAFETY: sigset_t is plain data, for which all zeroes are a value; both sets are there, ours,
    // and written by no other code. Blocked signals wait, which breaks no promise of memory.
    let old = unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        old
    };
    AllBlocked { old, _thread: PhantomData }
}

impl Drop for AllBlocked {
    fn drop(&mut self) {
        // SAFETY: the kernel reads the set, which is there and was this thread's before, and writes
        // none.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.old, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_runs_on_the_stack_that_is_given() {
        let mut stack = Mapping::new(STACK_PAGES_MIN).expect("memory");
        let ran = run_on(&mut stack).expect("ran");
        let range = stack.start()..stack.start() + stack.pages() * PAGE;
        assert!(range.contains(&ran.at) && ran.right, "{ran:?} in {range:?}");
    }
}
