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

/// Who a pin belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinner {
    /// The thread with this ID; its pins go when it is gone.
    Thread(u32),
    /// The robust mutex at this address; until it is destroyed.
    Mutex(usize),
}

/// The pinned ranges. One for each live thread and robust mutex, so bounded by what the program itself holds.
#[derive(Debug, Default)]
pub struct Pins {
    pins: RwLock<Vec<(Pinner, PageRange)>>,
}

impl Pins {
    /// Pins `range`. The caller touches it next. Doing so twice is the same as once.
    pub fn pin(&self, pinner: Pinner, range: PageRange) {
        let mut pins = self.pins.write().expect("nothing panics with this lock held");
        if !pins.contains(&(pinner, range)) {
            pins.push((pinner, range));
        }
    }

    /// Takes back all pins of `pinner`.
    pub fn unpin(&self, pinner: Pinner) {
        self.pins.write().expect("nothing panics with this lock held").retain(|(who, _)| *who != pinner);
    }

    /// Keeps the pins of those threads only of which `alive` says so.
    pub fn keep_threads(&self, mut alive: impl FnMut(u32) -> bool) {
        let mut pins = self.pins.write().expect("nothing panics with this lock held");
        pins.retain(|(who, _)| match who {
            Pinner::Thread(id) => alive(*id),
            Pinner::Mutex(_) => true,
        });
    }

    /// Whether any of `range` is pinned.
    #[must_use]
    pub fn overlaps(&self, range: PageRange) -> bool {
        let pins = self.pins.read().expect("nothing panics with this lock held");
        pins.iter().any(|(_, pinned)| pinned.intersection(range).is_some())
    }

    /// How many bytes are pinned.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let pins = self.pins.read().expect("nothing panics with this lock held");
        pins.iter().map(|(_, range)| range.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_lasts_until_its_owner_is_gone() {
        let pins = Pins::default();
        let (a, b) = (PageRange::page(0x10000), PageRange::page(0x20000));
        pins.pin(Pinner::Thread(7), a);
        pins.pin(Pinner::Thread(7), a);
        pins.pin(Pinner::Mutex(0x20008), b);
        assert!(pins.overlaps(PageRange::at(0xf000, 0x2000)) && pins.overlaps(b));
        assert_eq!(pins.bytes(), 8192);
        pins.keep_threads(|_| false);
        assert!(!pins.overlaps(a) && pins.overlaps(b));
        pins.unpin(Pinner::Mutex(0x20008));
        assert!(!pins.overlaps(b));
    }
}
