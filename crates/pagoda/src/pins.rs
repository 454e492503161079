//! Memory that is never evicted: what the kernel itself reads or writes when a thread ends.
//!
//! At the exit of a thread the kernel clears its thread ID in its control block and walks its list of robust mutexes.
//! It does both without serving userfaults: an evicted page there means that whoever joins the thread, or waits for
//! the mutex, hangs for good. So each live thread pins the OS pages of its control block and rseq area, and each robust
//! mutex its own.
//!
//! The protocol that leaves no gap: whoever pins enters the range here first and touches it afterwards (which brings
//! it back if it was out); whoever evicts takes the page's busy bit first and looks here afterwards. Either the evictor
//! sees the pin, or the toucher's fault comes after the eviction.

use std::sync::RwLock;

use pagoda_linux::range::PageRange;
use pagoda_linux::thread::is_alive;

/// Who a pin belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinner {
    /// The thread with this ID; its pins go when it is gone.
    Thread(u32),
    /// The robust mutex at this address; until it is destroyed.
    Mutex(usize),
}

/// The pinned ranges. One or two for each live thread and one for each robust mutex, and no more than as many again of
/// threads that have ended.
#[derive(Debug, Default)]
pub struct Pins {
    pins: RwLock<Held>,
}

#[derive(Debug, Default)]
struct Held {
    pins: Vec<(Pinner, PageRange)>,
    /// When there are so many, those of ended threads are dropped.
    clean_at: usize,
}

impl Held {
    fn drop_ended_threads(&mut self) {
        self.pins.retain(|(who, _)| match who {
            Pinner::Thread(id) => is_alive(*id),
            Pinner::Mutex(_) => true,
        });
        self.clean_at = 2 * self.pins.len() + CLEAN_LEAST;
    }
}

/// Pins that are never cleaned away one by one.
const CLEAN_LEAST: usize = 64;

impl Pins {
    /// Pins `range`. The caller touches it next. Doing so twice is the same as once.
    pub fn pin(&self, pinner: Pinner, range: PageRange) {
        let mut held = self.pins.write().expect("nothing panics with this lock held");
        if held.pins.len() >= held.clean_at {
            held.drop_ended_threads();
        }
        if !held.pins.contains(&(pinner, range)) {
            held.pins.push((pinner, range));
        }
    }

    /// Takes back all pins of `pinner`.
    pub fn unpin(&self, pinner: Pinner) {
        self.pins.write().expect("nothing panics with this lock held").pins.retain(|(who, _)| *who != pinner);
    }

    /// Drops the pins of threads that have ended.
    pub fn drop_ended_threads(&self) {
        self.pins.write().expect("nothing panics with this lock held").drop_ended_threads();
    }

    /// Whether any of `range` is pinned.
    #[must_use]
    pub fn overlaps(&self, range: PageRange) -> bool {
        let held = self.pins.read().expect("nothing panics with this lock held");
        held.pins.iter().any(|(_, pinned)| pinned.intersection(range).is_some())
    }

    /// How many bytes are pinned.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let held = self.pins.read().expect("nothing panics with this lock held");
        held.pins.iter().map(|(_, range)| range.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagoda_linux::thread::current_id;

    #[test]
    fn a_pin_lasts_until_its_owner_is_gone() {
        let pins = Pins::default();
        let (a, b, c) = (PageRange::page(0x10000), PageRange::page(0x20000), PageRange::page(0x30000));
        let ended = std::thread::spawn(current_id).join().expect("a thread");
        while is_alive(ended) {
            std::thread::yield_now();
        }
        pins.pin(Pinner::Thread(ended), a);
        pins.pin(Pinner::Thread(ended), a);
        pins.pin(Pinner::Thread(current_id()), c);
        pins.pin(Pinner::Mutex(0x20008), b);
        assert!(pins.overlaps(PageRange::at(0xf000, 0x2000)) && pins.overlaps(b));
        assert_eq!(pins.bytes(), 3 * 4096);
        pins.drop_ended_threads();
        assert!(!pins.overlaps(a) && pins.overlaps(b) && pins.overlaps(c));
        pins.unpin(Pinner::Mutex(0x20008));
        assert!(!pins.overlaps(b));
    }

    #[test]
    fn threads_that_come_and_go_leave_no_heap_of_pins() {
        let pins = Pins::default();
        let ended = std::thread::spawn(current_id).join().expect("a thread");
        while is_alive(ended) {
            std::thread::yield_now();
        }
        for page in 0..10_000 {
            pins.pin(Pinner::Thread(ended), PageRange::page(page * 4096));
        }
        assert!(pins.bytes() <= (CLEAN_LEAST as u64 + 1) * 4096, "{} bytes", pins.bytes());
    }
}
