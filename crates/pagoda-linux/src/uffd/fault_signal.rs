//! Faults as signals, or SIGBUS mode: a thread that touches a missing page of memory registered
//! with `UFFD_FEATURE_SIGBUS` gets SIGBUS, and serves the page itself, within the signal's handler.
//! It waits for no other thread and wakes none.
//!
//! One handler for the process asks each *server* in turn whether the page is its own. A signal for
//! no server goes to the handler that was there before. All signals are blocked within it, so that
//! nothing runs in the middle of a server's work in the same thread. This module must never
//! allocate, lock or wait in the handler; a server's own work is the server's matter, see
//! [`FaultServer`].

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::process::caller::yield_now;
use crate::process::process_mark::{ProcessMark, marked};
use crate::uffd::fault_address::FaultAddress;

/// Serves faults in the thread that has them.
pub trait FaultServer: Send + Sync {
    /// Brings the page of the fault in, or returns false if that is not its memory. It runs in a
    /// signal handler that interrupted an access to the page, on the stack of the thread: it may
    /// take any lock whose holders never touch the memory served.
    fn serve(&self, at: FaultAddress, write: bool) -> bool;

    /// The same, once every server has answered that it is not its memory: the grown part of a
    /// mapping is registered, and sends no event.
    fn serve_unknown(&self, at: FaultAddress, write: bool) -> bool;
}

/// The question to a server.
#[derive(Clone, Copy)]
enum Ask {
    Known,
    Unknown,
}

/// A place for a server. Places are never freed, so that a handler may walk the list at any moment;
/// one that is left is taken again, so that there are as many as there were servers at a time.
struct Place {
    /// Handlers that may use the server.
    users: AtomicUsize,
    /// A leaked `Arc<dyn FaultServer>`; null if the place is free.
    server: AtomicPtr<Arc<dyn FaultServer>>,
    /// The mark of the process that the server serves. A forked child has its memory with locks as
    /// they were, and none of its threads.
    process: AtomicU64,
    next: Option<&'static Place>,
}

static FIRST: AtomicPtr<Place> = AtomicPtr::new(std::ptr::null_mut());
/// The mark of the process that adds a server; 0 if none is being added.
static ADDING: AtomicU64 = AtomicU64::new(0);
/// A leaked record of the SIGBUS handler that was there before ours; null until ours is about to be
/// installed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
/// Whether our handler is installed.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// The right to add a server. A child takes it over where a thread of its parent had it: that
/// thread is not in the child.
struct Adding;

impl Adding {
    fn begin(process: ProcessMark) -> Self {
        loop {
            let holder = ADDING.load(Ordering::Relaxed);
            let take =
                || ADDING.compare_exchange(holder, process.number(), Ordering::Acquire, Ordering::Relaxed);
            if holder != process.number() && take().is_ok() {
                return Self;
            }
            yield_now();
        }
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        ADDING.store(0, Ordering::Release);
    }
}

impl Place {
    fn first() -> Option<&'static Self> {
        // SAFETY: the pointer is to a leaked `Place`, or null.
        unsafe { FIRST.load(Ordering::Acquire).as_ref() }
    }

    /// Lets this place's server look at a fault of this process.
    fn serve(&self, ask: Ask, process: u64, at: FaultAddress, write: bool) -> bool {
        // A handler that passes by leaves no mark: the next owner need not wait for it.
        if self.server.load(Ordering::Relaxed).is_null() || self.process.load(Ordering::Relaxed) != process {
            return false;
        }
        self.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a server that is there after this thread was counted is only dropped when it is
        // counted no longer: `Registration::drop` takes the pointer away first and then waits for
        // the users, both in the one order of sequentially consistent operations.
        let server = unsafe { self.server.load(Ordering::SeqCst).as_ref() };
        let served = server.is_some_and(|server| match ask {
            Ask::Known => server.serve(at, write),
            Ask::Unknown => server.serve_unknown(at, write),
        });
        self.users.fetch_sub(1, Ordering::Release);
        served
    }
}

/// A server that is asked until this is dropped.
pub struct Registration(&'static Place);

impl Registration {
    /// From now on `server` is asked about each SIGBUS of this process. The first call installs the
    /// handler, for good: a program that installs its own afterwards has to pass on the signals
    /// that it does not know.
    ///
    /// # Errors
    /// Those of sigaction(2), or those of [`ProcessMark::of_this_process`].
    pub fn new(server: Arc<dyn FaultServer>) -> io::Result<Self> {
        let process = ProcessMark::of_this_process()?;
        let _adding = Adding::begin(process);
        if !IS_INSTALLED.load(Ordering::Acquire) {
            install()?;
        }
        let server = Box::into_raw(Box::new(server));
        let mut known = Place::first();
        while let Some(place) = known {
            let null = std::ptr::null_mut();
            // Places are given out under `ADDING` only. A reader of the number of a free place
            // finds no server.
            if place.server.load(Ordering::Relaxed).is_null() {
                place.process.store(process.number(), Ordering::Relaxed);
            }
            if place.server.compare_exchange(null, server, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return Ok(Self(place));
            }
            known = place.next;
        }
        let place = Box::leak(Box::new(Place {
            users: AtomicUsize::new(0),
            server: AtomicPtr::new(server),
            process: AtomicU64::new(process.number()),
            next: Place::first(),
        }));
        FIRST.store(std::ptr::from_mut(place), Ordering::Release);
        Ok(Self(place))
    }
}

impl Drop for Registration {
    /// Waits for handlers that are serving. In a forked child there are none, for any count
    /// says, and the server is its parent's: nothing is done.
    fn drop(&mut self) {
        if self.0.process.load(Ordering::Relaxed) != marked() {
            return;
        }
        let server = self.0.server.swap(std::ptr::null_mut(), Ordering::SeqCst);
        while self.0.users.load(Ordering::SeqCst) > 0 {
            yield_now();
        }
        // SAFETY: it came from `Box::into_raw` in `new`, it was taken out of the only place that it
        // was in, and every thread that saw it there has stopped being counted.
        drop(unsafe { Box::from_raw(server) });
    }
}

fn install() -> io::Result<()> {
    // SAFETY: sigaction is plain data, for which all zeroes are a value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the present action to `before`, which is there.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let handler = on_fault as extern "C" fn(_, _, _) as usize;
    // A child that was forked while a thread of its parent was here has the handler, and may lack
    // the note of it.
    if before.sa_sigaction != handler {
        BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
    }
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // Not on an alternate stack: those are made for a few lines, and serving takes some KiB.
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the mask is there to be written.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: the kernel reads `action`, which is there. The handler uses atomics, and the servers'
    // code, which keeps their promise.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    IS_INSTALLED.store(true, Ordering::Release);
    Ok(())
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: it is the calling thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: the kernel calls this handler with its info, valid until it returns; SIGBUS's info
    // has an address if it is for an access, which the code says.
    let (code, at) = unsafe { ((*info).si_code, FaultAddress::of_byte((*info).si_addr().addr())) };
    let write = was_writing(context);
    let process = marked();
    for ask in [Ask::Known, Ask::Unknown] {
        let mut place = if code == libc::BUS_ADRERR { Place::first() } else { None };
        while let Some(one) = place {
            if one.serve(ask, process, at, write) {
                // SAFETY: as above.
                unsafe { *errno = before };
                return;
            }
            place = one.next;
        }
    }
    pass_on(signal, info, context);
}

/// Whether the interrupted access was a write. Where that is not known: yes, for a writable page
/// serves a reader, too.
fn was_writing(context: *mut c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        const WRITE: i64 = 1 << 1;
        // SAFETY: the kernel calls a handler with SA_SIGINFO with a ucontext of the interrupted
        // thread.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        context.uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        true
    }
}

/// Does the same as without us.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the pointer is to a leaked record, or null.
    let Some(before) = (unsafe { BEFORE.load(Ordering::Acquire).as_ref() }) else { return };
    let handler = before.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // A fault is not ignored: with the default action in place the access faults again, and
        // ends the process as it would have. A signal that was sent is raised again by hand.
        // SAFETY: `before` is there, and it is the action that the kernel reported. raise(3) may be
        // called in a handler.
        unsafe {
            libc::sigaction(signal, before, std::ptr::null_mut());
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        }
    } else if before.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the kernel said that this is a handler of three arguments.
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the kernel said that this is a handler of one argument.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
}
