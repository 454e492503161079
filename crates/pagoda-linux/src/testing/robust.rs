//! Robust mutexes at addresses of our choice, held by threads when they end.
//!
//! This module must never show the memory of a mutex while a thread may use it.

use std::time::Duration;

use super::mapping::{Mapping, PAGE};

/// A mutex lies here in its page, away from its edges.
const OFFSET: usize = 1024;

/// A mapping with a robust mutex of the C library's in some of its pages.
#[derive(Debug)]
pub struct RobustMutexes {
    mapping: Mapping,
    mutexes: Vec<Mutex>,
}

/// A mutex in the mapping, initialised.
#[derive(Clone, Copy, Debug)]
struct Mutex(*mut libc::pthread_mutex_t);

// SAFETY: a mutex is there to be used by several threads.
unsafe impl Send for Mutex {}

impl RobustMutexes {
    /// One in each `apart`th page.
    ///
    /// # Panics
    /// If the C library makes none.
    pub fn new(mut mapping: Mapping, apart: usize) -> Self {
        let start = mapping.bytes_mut(0..mapping.pages()).as_mut_ptr().expose_provenance();
        let at = |page| std::ptr::with_exposed_provenance_mut(start + page * PAGE + OFFSET);
        let mutexes: Vec<Mutex> = (0..mapping.pages()).step_by(apart).map(|page| Mutex(at(page))).collect();
        mutexes.iter().for_each(|mutex| mutex.init());
        Self { mapping, mutexes }
    }
    /// Where they are.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.mutexes.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.mutexes.is_empty()
    }
    /// A thread takes these, which must be free and different, rests, and ends with them. Returns
    /// when it has ended: how many it took.
    pub fn end_holding(&mut self, which: &[usize], rest: Duration) -> usize {
        let held: Vec<Mutex> = which.iter().map(|&i| self.mutexes[i]).collect();
        let thread = std::thread::spawn(move || {
            let taken = held.iter().filter(|mutex| mutex.lock() == 0).count();
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
            taken
        });
        thread.join().expect("it does not panic")
    }
    /// The C library's answers when a mutex whose owner has ended is locked, marked as consistent,
    /// and unlocked: right is `EOWNERDEAD`, 0 and 0.
    pub fn recover(&mut self, i: usize) -> (i32, i32, i32) {
        let mutex = self.mutexes[i];
        let locked = mutex.lock();
        // SAFETY: it is initialised, and no other thread uses it: the one that held it has been
        // joined. Its holder marks it as consistent, and unlocks it.
        let (consistent, unlocked) =
            unsafe { (libc::pthread_mutex_consistent(mutex.0), libc::pthread_mutex_unlock(mutex.0)) };
        (locked, consistent, unlocked)
    }
    /// Unmaps all of them, and destroys none. None may be held.
    pub fn unmap(mut self) {
        self.mutexes.clear();
    }
    /// Destroys one, which must be free, and makes it again.
    ///
    /// # Panics
    /// If the C library says that it is not free.
    pub fn remake(&mut self, i: usize) {
        self.mutexes[i].destroy();
        self.mutexes[i].init();
    }
}

impl Drop for RobustMutexes {
    fn drop(&mut self) {
        self.mutexes.iter().for_each(|mutex| mutex.destroy());
    }
}

impl Mutex {
    fn init(self) {
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: the attributes are initialised before they are used, and need no end in any C
        // library here. The mutex lies within a page of a mapping that is owned, aligned, and holds
        // none that is in use.
        let made = unsafe {
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.0, attributes.as_ptr())
        };
        assert_eq!(made, 0, "a mutex");
    }
    fn lock(self) -> i32 {
        // SAFETY: it is initialised, in a mapping that stays until all threads that use it have
        // been joined, and its words are used by the C library only.
        unsafe { libc::pthread_mutex_lock(self.0) }
    }
    fn destroy(self) {
        // SAFETY: it is initialised, and no thread uses it or waits for it: all threads that did
        // have been joined.
        assert_eq!(unsafe { libc::pthread_mutex_destroy(self.0) }, 0, "destroyed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutex_of_a_thread_that_ended_says_so_once() {
        let mut mutexes = RobustMutexes::new(Mapping::new(4).expect("memory"), 2);
        assert_eq!(mutexes.end_holding(&[0, 1], Duration::ZERO), 2);
        assert_eq!(mutexes.recover(1), (libc::EOWNERDEAD, 0, 0));
        assert_eq!(mutexes.recover(0), (libc::EOWNERDEAD, 0, 0));
        mutexes.remake(0);
        assert_eq!(mutexes.recover(0).0, 0);
    }
}
