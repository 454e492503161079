//! Signal handlers on stacks that are out, and programs that block or replace the handlers of the signals that faults
//! could have been served by.
//!
//! What is tested is the C library's interface as such programs use it, hence the unsafe code. A handler here must never do
//! more than use atomics and its own stack, or make system calls.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::pressure::{Arena, check, fill};
use crate::support::memory::{Mapping, PAGE};
use crate::support::random::Random;

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs a handler.
pub fn handle(signal: i32, handler: Handler, flags: i32) -> Result<(), String> {
    // SAFETY: sigaction is plain data, for which all zeroes are a value: an empty mask among them.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    // SAFETY: the kernel reads `action`, which is there, and is given no place for the old one. What runs at any moment from now
    // on is one of the handlers of this test, which use atomics, their own stack and system calls only.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(format!("sigaction of {signal}: {}", std::io::Error::last_os_error())),
    }
}

static RAN_AT: AtomicUsize = AtomicUsize::new(0);
static SUM: AtomicU64 = AtomicU64::new(0);

/// Uses eight pages of its stack.
extern "C" fn on_the_stack(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let mut words = [0u64; 8 * PAGE / 8];
    words.iter_mut().zip(0..).for_each(|(word, i)| *word = i);
    let words = std::hint::black_box(&mut words);
    RAN_AT.store((&raw const words[0]).addr(), Ordering::Relaxed);
    SUM.store(words.iter().sum(), Ordering::Relaxed);
}

const STACK_PAGES: usize = 32;

/// The kernel itself writes the frame of a signal to a stack that is out.
pub fn alternate_stack(arena: &Arena, _: u64) -> Result<(), String> {
    let mut stack = Mapping::new(STACK_PAGES).map_err(|error| error.to_string())?;
    let start = stack.start();
    let given = libc::stack_t {
        ss_sp: std::ptr::with_exposed_provenance_mut(start),
        ss_flags: 0,
        ss_size: STACK_PAGES * PAGE,
    };
    handle(libc::SIGUSR1, on_the_stack, libc::SA_ONSTACK)?;
    // The runtime's own stack is put back: it is the runtime's to free.
    // SAFETY: stack_t is plain data, for which all zeroes are a value.
    let mut old: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads `given` and writes `old`, which are there. The stack is all of the mapping, which lives until
    // the old one is put back; what the program writes there meanwhile it writes while no handler runs.
    if unsafe { libc::sigaltstack(&raw const given, &raw mut old) } != 0 {
        return Err(format!("sigaltstack: {}", std::io::Error::last_os_error()));
    }
    let words = (8 * PAGE / 8) as u64;
    let mut tag = 0;
    let result = loop {
        if !arena.next_round() {
            break Ok(());
        }
        tag += 1;
        fill(&mut stack, 0..STACK_PAGES, tag);
        arena.wait_until_managed(&stack);
        SUM.store(0, Ordering::Relaxed);
        // SAFETY: it takes a number; the handler, which runs before this returns, uses nothing but its stack and atomics.
        unsafe { libc::raise(libc::SIGUSR1) };
        let at = RAN_AT.load(Ordering::Relaxed);
        if !(start..start + STACK_PAGES * PAGE).contains(&at) {
            break Err(format!("the handler ran at {at:#x}, not on its stack"));
        }
        if SUM.load(Ordering::Relaxed) != words * (words - 1) / 2 {
            break Err("the handler read something else than it had written".to_owned());
        }
        // What it did not use is as it was.
        if let Err(wrong) = check(&stack, 0..8, tag) {
            break Err(wrong);
        }
    };
    // SAFETY: the kernel reads `old`, which is there: the runtime's own stack, which it frees only when this thread ends.
    unsafe { libc::sigaltstack(&raw const old, std::ptr::null_mut()) };
    result
}

static SEEN: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
}

const PAGES: usize = 96;

/// With handlers of the program's own, ignored, and with every signal blocked: no fault of ours is ever seen.
pub fn own_handlers(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 1);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let faults = [libc::SIGSEGV, libc::SIGBUS];
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        fill(&mut mapping, 0..PAGES, tag);
        arena.wait_until_managed(&mapping);
        match random.below(3) {
            0 => faults.iter().try_for_each(|&signal| handle(signal, count, 0))?,
            1 => faults.iter().for_each(|&signal| {
                // SAFETY: it takes a number, and instead of a handler the word that there is none.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }),
            _ => {}
        }
        let blocked = random.one_in(2);
        let old = blocked.then(block_all);
        let right = check(&mapping, 0..PAGES, tag);
        if let Some(old) = old {
            // SAFETY: the kernel reads the set, which is there and was this thread's before, and writes none.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut()) };
        }
        right?;
        let seen = SEEN.load(Ordering::Relaxed);
        if seen > 0 {
            return Err(format!("{seen} faults reached the program's handlers"));
        }
    }
    Ok(())
}

fn block_all() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, for which all zeroes are a value; both sets are there, ours, and nobody else's to write.
    // Blocked signals wait: nothing in this program relies on getting one.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        old
    }
}
