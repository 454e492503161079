//! Threads of an engine in a library: made by `pthread_create`, without `std::thread`.
//!
//! The standard library holds a mutex of its own for a moment whenever one of its threads begins or
//! ends (it notes where the guard page of the stack lies). A child that is forked in that moment
//! has it held for good, and a thread of `std::thread` that it starts waits for it without end. The
//! C library makes its own locks usable in a child. So nothing here may begin or end a thread by
//! `std::thread`.

use std::any::Any;
use std::ffi::{CString, c_void};
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// As large as a stack of `std::thread`.
const STACK_BYTES: usize = 2 << 20;

/// A thread that can be waited for. Dropping it leaves the thread alone.
#[must_use]
#[derive(Debug)]
pub struct JoinableThread {
    id: libc::pthread_t,
    name: String,
}

/// What a thread runs. It goes to the thread as an address.
struct Start {
    name: CString,
    body: Box<dyn FnOnce() + Send>,
}

/// What a thread has panicked with. It comes back as an address, which is null without a panic.
type Panicked = Box<dyn Any + Send>;

impl JoinableThread {
    /// Starts a thread that runs `body`, with the caller's signal mask. `name` has up to 15 bytes.
    ///
    /// # Errors
    /// Those of pthread_create(3): too many threads, or no memory for its stack.
    ///
    /// # Panics
    /// If there is a zero byte in `name`.
    pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let start =
            Start { name: CString::new(name).expect("a name has no zero byte"), body: Box::new(body) };
        let start = Box::into_raw(Box::new(start));
        let (mut attributes, mut id) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: attributes are made before they are used and destroyed once; the new thread alone
        // has the box, which the caller takes back if there is no thread.
        let outcome = unsafe {
            match libc::pthread_attr_init(attributes.as_mut_ptr()) {
                0 => {
                    // Where it fails the stack has the usual length.
                    libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
                    let outcome =
                        libc::pthread_create(id.as_mut_ptr(), attributes.as_ptr(), run, start.cast());
                    libc::pthread_attr_destroy(attributes.as_mut_ptr());
                    outcome
                }
                error => error,
            }
        };
        if outcome != 0 {
            // SAFETY: no thread has been made, so that the box is still the caller's.
            drop(unsafe { Box::from_raw(start) });
            return Err(io::Error::from_raw_os_error(outcome));
        }
        // SAFETY: pthread_create has succeeded, and written it.
        Ok(Self { id: unsafe { id.assume_init() }, name: name.to_owned() })
    }

    /// The name it was started with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for its end, in the process that has started it.
    ///
    /// # Errors
    /// The value that it has panicked with; the message was printed then.
    pub fn join(self) -> Result<(), Panicked> {
        let joined = ManuallyDrop::new(self);
        let mut ended: *mut c_void = ptr::null_mut();
        // SAFETY: the thread was neither joined nor detached: both take `self`.
        let outcome = unsafe { libc::pthread_join(joined.id, &raw mut ended) };
        assert!(
            outcome == 0,
            "a thread of Pagoda can't be waited for: {}",
            io::Error::from_raw_os_error(outcome)
        );
        if ended.is_null() {
            return Ok(());
        }
        // SAFETY: `run` has leaked this box for the one that joins.
        Err(*unsafe { Box::from_raw(ended.cast::<Panicked>()) })
    }
}

impl Drop for JoinableThread {
    fn drop(&mut self) {
        // SAFETY: the thread was neither joined nor detached.
        unsafe { libc::pthread_detach(self.id) };
    }
}

/// Runs `own` here and `other` on a thread meanwhile, or here afterwards where none can be started.
/// Returns when both have ended.
///
/// # Panics
/// If one of them does.
pub fn both<A, B: Send>(own: impl FnOnce() -> A, other: impl FnOnce() -> B + Send) -> (A, B) {
    /// Waits for the thread, also while a panic of `own` unwinds: it borrows from the caller.
    struct Joins(Option<JoinableThread>);
    impl Drop for Joins {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|thread| drop(thread.join()));
        }
    }
    let shared = Mutex::new((Some(other), None));
    let run_other = || {
        let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = lock().0.take();
        if let Some(other) = taken {
            let outcome = catch_unwind(AssertUnwindSafe(other));
            lock().1 = Some(outcome);
        }
    };
    let body: Box<dyn FnOnce() + Send + '_> = Box::new(run_other);
    // SAFETY: only the lifetime changes. The thread is joined before anything that it borrows goes:
    // by `Joins`, which is dropped before them. If it could not be started, the box is dropped at
    // once.
    let body =
        unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Box<dyn FnOnce() + Send>>(body) };
    let thread = Joins(JoinableThread::start("pagoda-beside", body).ok());
    let of_own = own();
    drop(thread);
    run_other();
    let (_, outcome) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    let of_other = outcome.expect("it was run").unwrap_or_else(|panicked| resume_unwind(panicked));
    (of_own, of_other)
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: the address is that of the box which `start` has leaked for this thread alone.
    let Start { name, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: it reads a C string. A longer name is refused, and the thread keeps its maker's.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(()) => ptr::null_mut(),
        Err(panicked) => Box::into_raw(Box::new(panicked)).cast(),
    }
}

#[cfg(test)]
#[path = "joinable_test.rs"]
mod tests;
