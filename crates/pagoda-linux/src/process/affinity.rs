//! The processors on which a thread may run.
//!
//! A fault costs least if the thread that has it, the one that serves it, and the other threads of
//! the engine run on one processor: elsewhere a processor has to be woken for each, and each
//! move of a page interrupts all others. So threads are held on one for moments. See
//! sched_setaffinity(2).
//!
//! This module must never decide which thread is held, nor for how long.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as raw;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::raw_syscall::syscall3;

const WORDS: usize = 16;

/// A set of processors, of those with numbers below 1,024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors([u64; WORDS]);

impl Processors {
    /// One processor; none if its number is too high.
    #[must_use]
    pub const fn one(processor: u32) -> Self {
        let mut words = [0; WORDS];
        if processor < WORDS as u32 * 64 {
            words[processor as usize / 64] = 1 << (processor % 64);
        }
        Self(words)
    }

    /// All of them. The kernel keeps to those that there are, and to those of the thread's cpuset.
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    /// Whether this one is among them.
    #[must_use]
    pub fn has(&self, processor: u32) -> bool {
        self.0.get(processor as usize / 64).is_some_and(|word| word >> (processor % 64) & 1 == 1)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// A set of processors that one thread writes while others may read it.
#[derive(Debug)]
pub struct SharedProcessors([AtomicU64; WORDS]);

impl SharedProcessors {
    /// None of them.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Writes the set.
    pub fn set(&self, processors: &Processors) {
        for (to, word) in self.0.iter().zip(processors.0) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Reads the set.
    #[must_use]
    pub fn get(&self) -> Processors {
        Processors(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

impl Default for SharedProcessors {
    fn default() -> Self {
        Self::new()
    }
}

/// The processors on which thread `id` may run; 0 is the calling one.
///
/// # Errors
/// `ESRCH`: it has ended. `EINVAL`: the machine has more than 1,024.
pub fn of_thread(id: u32) -> Result<Processors, Errno> {
    let mut set = Processors([0; WORDS]);
    let at = set.0.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes at most the length it is told to the set.
    unsafe { syscall3(raw::__NR_sched_getaffinity, id as usize, size_of_val(&set.0), at)? };
    Ok(set)
}

/// Lets thread `id` run on these processors alone; 0 is the calling one. One that runs elsewhere
/// moves at once.
///
/// # Errors
/// `ESRCH`: it has ended. `EPERM`: it is another user's by now. `EINVAL`: none of these is in its
/// cpuset. `EBUSY`: it has a deadline.
pub fn hold(id: u32, processors: &Processors) -> Result<(), Errno> {
    let at = processors.0.as_ptr().expose_provenance();
    // SAFETY: the kernel reads as much as it is told of the set. Where a thread runs changes no
    // memory.
    unsafe { syscall3(raw::__NR_sched_setaffinity, id as usize, size_of_val(&processors.0), at) }.map(drop)
}

/// The answer of [`online`] to the first call of this process or of one that it was forked from.
static ONLINE: AtomicU32 = AtomicU32::new(0);

/// How many processors of the machine are in use, as it was at first: a fork should open no file
/// for it. On a machine that has got more since, a thread that was held to the former number of
/// them can't be told from a free one. None if the kernel does not say.
#[must_use]
pub fn online() -> Option<u32> {
    let known = ONLINE.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known);
    }
    let count = read_online()?;
    ONLINE.store(count, Ordering::Relaxed);
    Some(count)
}

fn read_online() -> Option<u32> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/sys/devices/system/cpu/online", flags, Mode::empty()).ok()?;
    let mut text = [0; 256];
    let len = rustix::io::read(&file, &mut text).ok()?;
    count_in(std::str::from_utf8(&text[..len]).ok()?)
}

/// The count of a list like `0-3,8`.
fn count_in(list: &str) -> Option<u32> {
    list.trim_ascii().split(',').try_fold(0, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range: (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + range.1.checked_sub(range.0)? + 1)
    })
}

/// The processor that the calling thread runs on just now. None if the kernel does not say.
#[must_use]
pub fn current() -> Option<u32> {
    let mut processor = 0u32;
    let at = std::ptr::from_mut(&mut processor).expose_provenance();
    // SAFETY: the kernel writes one number to each place that is not null.
    unsafe { syscall3(raw::__NR_getcpu, at, 0, 0) }.ok()?;
    Some(processor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_a_list_are_counted() {
        for (list, count) in [("0\n", Some(1)), ("0-1\n", Some(2)), ("0-3,8,10-11", Some(7))] {
            assert_eq!(count_in(list), count, "{list}");
        }
        for list in ["", "3-1", "a", "0-"] {
            assert_eq!(count_in(list), None, "{list}");
        }
        assert!(online().is_some_and(|count| count > 0));
    }

    #[test]
    fn a_thread_is_held_on_one_processor_and_let_go() {
        // A thread of its own, so that no other test runs where this one is held.
        std::thread::spawn(|| {
            let before = of_thread(0).expect("this thread's");
            assert!(before.count() > 0);
            let here = current().expect("a processor");
            hold(0, &Processors::one(here)).expect("held");
            assert_eq!(of_thread(0), Ok(Processors::one(here)));
            assert_eq!(current(), Some(here));
            hold(0, &before).expect("let go");
            assert_eq!(of_thread(0), Ok(before));
            hold(0, &Processors::ALL).expect("all that there are");
            assert!(of_thread(0).expect("this thread's").count() >= before.count());
            assert_eq!(hold(u32::MAX >> 2, &before), Err(Errno::SRCH));
            let shared = SharedProcessors::new();
            shared.set(&before);
            assert_eq!(shared.get(), before);
        })
        .join()
        .expect("no panic");
    }
}
