//! A thread that a signal ends in the middle of an access to memory, as any program may do it.
//! Nothing of its code runs after that.
//!
//! It must never hold anything that such an end would leave behind: it has no lock and drops
//! nothing.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::mapping::PAGE;
use crate::mem::region_bytes::RegionBytes;

/// The place of its word in each page.
const OFFSET: usize = 8;

/// A thread that writes the second word of each page in turn, as it is, until it is ended.
#[derive(Debug)]
pub struct Doomed {
    id: libc::pthread_t,
    work: Box<Work>,
}

#[derive(Debug)]
struct Work {
    bytes: RegionBytes,
    /// The page of its current access, and how many pages it has written.
    page: AtomicUsize,
    written: AtomicU64,
}

impl Doomed {
    /// Starts it. No other thread may write those words. SIGUSR2 is its own for good.
    ///
    /// # Errors
    /// The kernel's, or the C library's.
    pub fn start(bytes: RegionBytes) -> io::Result<Self> {
        let leaves: extern "C" fn(c_int) = leave;
        // SAFETY: the handler makes one system call, which does not return.
        if unsafe { libc::signal(libc::SIGUSR2, leaves as libc::sighandler_t) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        let work = Box::new(Work { bytes, page: AtomicUsize::new(0), written: AtomicU64::new(0) });
        let mut id = 0;
        let shared: *const Work = &raw const *work;
        // SAFETY: the thread only reads through the pointer, and `drop` joins it before the box is
        // freed.
        match unsafe { libc::pthread_create(&raw mut id, std::ptr::null(), writes, shared.cast_mut().cast()) }
        {
            0 => Ok(Self { id, work }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// The page of its current access, and how many it has written. As long as neither changes it
    /// waits, or does not run.
    #[must_use]
    pub fn is_at(&self) -> (usize, u64) {
        (self.work.page.load(Ordering::Acquire), self.work.written.load(Ordering::Acquire))
    }
}

/// Ends it, wherever it is.
impl Drop for Doomed {
    fn drop(&mut self) {
        // SAFETY: the thread is there until it is joined, here and only once. It holds nothing.
        unsafe {
            libc::pthread_kill(self.id, libc::SIGUSR2);
            libc::pthread_join(self.id, std::ptr::null_mut());
        }
    }
}

extern "C" fn leave(_: c_int) {
    // SAFETY: it ends the calling thread alone, which is a `Doomed`, for which the signal is: no
    // frame of it has anything to drop, and it holds no lock.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

extern "C" fn writes(work: *mut c_void) -> *mut c_void {
    // SAFETY: it is the `Work` of the thread's owner, which joins this thread before it drops it.
    let work = unsafe { &*work.cast_const().cast::<Work>() };
    let pages = work.bytes.range().len() / PAGE;
    for page in (0..pages).cycle() {
        work.page.store(page, Ordering::Release);
        let mut word = [0; 8];
        work.bytes.read_at(page * PAGE + OFFSET, &mut word);
        work.bytes.write_words(page * PAGE + OFFSET, &word);
        work.written.fetch_add(1, Ordering::Release);
    }
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::super::foreign::Foreign;
    use super::super::wait::until;
    use super::*;

    #[test]
    fn it_is_ended_wherever_it_is_and_changes_nothing() {
        let memory = Foreign::private(16).expect("memory");
        (0..16).for_each(|page| memory.write(page, page as u8 + 1));
        for _ in 0..3 {
            let doomed = Doomed::start(memory.bytes(0..16)).expect("started");
            until("it has written all", || doomed.is_at().1 > 16);
        }
        assert!((0..16).all(|page| memory.read(page) == page as u8 + 1));
    }
}
