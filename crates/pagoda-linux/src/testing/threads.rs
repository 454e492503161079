//! Threads of the C library's own, on stacks of our choice.
//!
//! This module must never let go of a stack before the thread on it was joined.

use std::ffi::c_void;
use std::io;
use std::time::Duration;

use super::mapping::{Mapping, PAGE, WORDS};

/// A thread's work: it uses some pages of its stack, rests for so long, uses them again, and ends.
#[derive(Clone, Copy, Debug)]
pub struct Dive {
    /// Pages of stack: at most 80.
    pub pages: usize,
    /// How long it rests when it is down.
    pub rest: Duration,
}

const DIVE_PAGES_MAX: usize = 80;
/// A level of a dive takes a page and the compiler's part.
const STACK_PAGES_MIN: usize = DIVE_PAGES_MAX * 8 / 5;

/// A thread that dives. It is joined on drop.
#[derive(Debug)]
pub struct Diver {
    id: libc::pthread_t,
    stack: Option<Mapping>,
    joined: bool,
}

impl Diver {
    /// Starts it, on a stack of its own or one that the C library makes.
    ///
    /// # Errors
    /// The C library's.
    ///
    /// # Panics
    /// If the dive is deeper than 80 pages, or the stack has less than 128.
    pub fn start(stack: Option<Mapping>, dive: Dive) -> io::Result<Self> {
        assert!(dive.pages <= DIVE_PAGES_MAX, "{dive:?}");
        assert!(stack.as_ref().is_none_or(|stack| stack.pages() >= STACK_PAGES_MIN), "{stack:?}");
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
        let mut id = 0;
        let argument = Box::into_raw(Box::new(dive));
        // SAFETY: the attributes are initialised first and destroyed last. The stack is whole pages
        // of a mapping that is ours, and large enough for the deepest dive; it stays until the
        // thread is joined, and if its owner is forgotten for good. The argument is a Dive, as
        // `thread` expects, which is the thread's from here on.
        let started = unsafe {
            libc::pthread_attr_init(attributes.as_mut_ptr());
            if let Some(stack) = &stack {
                let at = std::ptr::with_exposed_provenance_mut(stack.start());
                libc::pthread_attr_setstack(attributes.as_mut_ptr(), at, stack.pages() * PAGE);
            }
            let started = libc::pthread_create(&raw mut id, attributes.as_ptr(), thread, argument.cast());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            started
        };
        if started != 0 {
            // SAFETY: it was made above, and no thread got it.
            drop(unsafe { Box::from_raw(argument) });
            return Err(io::Error::from_raw_os_error(started));
        }
        Ok(Self { id, stack, joined: false })
    }
    /// Waits for its end. Returns its stack, if it was given one, and how many pages of the dive
    /// were right.
    pub fn join(mut self) -> (Option<Mapping>, usize) {
        let right = self.wait();
        (self.stack.take(), right)
    }
    fn wait(&mut self) -> usize {
        let mut right = std::ptr::null_mut();
        // SAFETY: the thread was started and is not detached, and it is joined only once; `right`
        // is there to be written.
        let joined = unsafe { libc::pthread_join(self.id, &raw mut right) };
        self.joined = true;
        assert_eq!(joined, 0, "a thread of ours, which is not this one, can be joined");
        right.addr()
    }
}

impl Drop for Diver {
    fn drop(&mut self) {
        if !self.joined {
            self.wait();
        }
    }
}

extern "C" fn thread(dive: *mut c_void) -> *mut c_void {
    // SAFETY: the argument is a Dive in a box of its own, which the starter of this thread has left
    // to it.
    let dive = *unsafe { Box::from_raw(dive.cast::<Dive>()) };
    std::ptr::without_provenance_mut(down(dive.pages, dive.rest))
}

/// 4 KiB of stack a level, checked on the way back. Returns how many levels were right.
#[inline(never)]
fn down(depth: usize, rest: Duration) -> usize {
    let mut words = [depth; WORDS];
    std::hint::black_box(&mut words);
    let below = if depth > 1 {
        down(depth - 1, rest)
    } else {
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        0
    };
    std::hint::black_box(&mut words);
    below + usize::from(words.iter().all(|&word| word == depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_dives_on_either_kind_of_stack() {
        let dive = Dive { pages: DIVE_PAGES_MAX, rest: Duration::from_millis(1) };
        let (stack, right) = Diver::start(None, dive).expect("started").join();
        assert!(stack.is_none() && right == dive.pages, "{right}");
        let own = Mapping::new(STACK_PAGES_MIN).expect("memory");
        let start = own.start();
        let (stack, right) = Diver::start(Some(own), dive).expect("started").join();
        assert_eq!((stack.map(|stack| stack.start()), right), (Some(start), dive.pages));
    }
}
