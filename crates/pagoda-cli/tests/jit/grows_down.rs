//! A mapping that grows downwards when the page below it is touched, as the stacks of old threading libraries did: what
//! it grew by is as managed, and as right, as what it was.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pressure::Arena;
use crate::support::content::{Stamp, WORDS};
use crate::support::memory::PAGE;
use crate::support::random::Random;

/// Where nothing is mapped unless asked for: far below what the kernel chooses.
static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
/// Its size at first.
const START_PAGES: usize = 8;
const PAGES_MAX: usize = 512;
/// Nothing else may be within the kernel's guard gap of it.
const APART: usize = 64 << 20;

struct Down {
    top: usize,
    /// From the top downwards.
    shadow: Vec<Stamp>,
}

impl Down {
    fn new() -> Result<Self, String> {
        let top = NEXT.fetch_add(APART, Ordering::Relaxed);
        let start = top - START_PAGES * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN | libc::MAP_FIXED_NOREPLACE;
        let (hint, len) = (std::ptr::with_exposed_provenance_mut(start), START_PAGES * PAGE);
        // SAFETY: without MAP_FIXED nothing is replaced.
        let at = unsafe { libc::mmap(hint, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at.addr() != start {
            return Err(format!("MAP_GROWSDOWN at {start:#x}: {}", std::io::Error::last_os_error()));
        }
        at.expose_provenance();
        Ok(Self { top, shadow: vec![Stamp::ZERO; START_PAGES] })
    }

    fn page(&mut self, page: usize) -> &mut [u64] {
        let at = std::ptr::with_exposed_provenance_mut(self.top - (page + 1) * PAGE);
        // SAFETY: the page is the mapping's, or becomes so by the touch; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(at, WORDS) }
    }
    fn write(&mut self, page: usize, stamp: Stamp) {
        self.shadow[page] = stamp;
        stamp.fill(self.page(page));
    }
    /// One page more, by touching it.
    fn grow(&mut self, stamp: Stamp) {
        self.shadow.push(Stamp::ZERO);
        self.write(self.shadow.len() - 1, stamp);
    }
    fn check(&mut self) -> Result<(), String> {
        for page in 0..self.shadow.len() {
            let stamp = self.shadow[page];
            if let Some(wrong) = stamp.wrong(self.page(page)) {
                return Err(format!("page {page} below the top, of {}: {wrong}", self.shadow.len()));
            }
        }
        Ok(())
    }
    fn is_any_out(&self) -> bool {
        let pages = self.shadow.len();
        let mut present = vec![0u8; pages];
        let start = std::ptr::with_exposed_provenance_mut(self.top - pages * PAGE);
        // SAFETY: the kernel writes one byte for each page to `present`, which is as long.
        let got = unsafe { libc::mincore(start, pages * PAGE, present.as_mut_ptr()) };
        got == 0 && present.iter().any(|present| present & 1 == 0)
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        let len = self.shadow.len() * PAGE;
        // SAFETY: the range is the mapping's, and nobody borrows it.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.top - len), len) };
    }
}

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 1);
    let mut down = Down::new()?;
    while arena.next_round() {
        if down.shadow.len() >= PAGES_MAX {
            down.check()?;
            down = Down::new()?;
        }
        for _ in 0..random.between(1, 40) {
            down.grow(Stamp { head: random.next(), body: random.stamp() });
        }
        for _ in 0..200 {
            if arena.saw(down.is_any_out()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // It grows while what is above is out.
        down.grow(Stamp { head: random.next(), body: random.stamp() });
        down.check()?;
        for _ in 0..8 {
            let page = random.below(down.shadow.len());
            down.write(page, Stamp { head: random.next(), body: random.stamp() });
        }
    }
    down.check()
}
