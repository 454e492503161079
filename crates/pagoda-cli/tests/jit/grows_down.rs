//! A mapping that grows downwards when the page below it is touched, as the stacks of old threading
//! libraries did: its new pages are as managed, and as right, as its old ones.

use std::sync::atomic::{AtomicUsize, Ordering};

use pagoda_linux::testing::growing::{APART, GrowsDown};

use crate::pressure::Arena;
use crate::support::content::Stamp;
use crate::support::random::Random;

/// An area that only explicit addresses use: far below the kernel's choice.
static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
/// Its size at first.
const START_PAGES: usize = 8;
const PAGES_MAX: usize = 512;

struct Down {
    memory: GrowsDown,
    /// From the top downwards.
    shadow: Vec<Stamp>,
}

impl Down {
    fn new() -> Result<Self, String> {
        let top = NEXT.fetch_add(APART, Ordering::Relaxed);
        let memory = GrowsDown::new(top, START_PAGES)
            .map_err(|error| format!("MAP_GROWSDOWN below {top:#x}: {error}"))?;
        Ok(Self { memory, shadow: vec![Stamp::ZERO; START_PAGES] })
    }

    fn write(&mut self, page: usize, stamp: Stamp) {
        self.shadow[page] = stamp;
        stamp.fill(self.memory.page_mut(page));
    }
    /// One page more, by touching it.
    fn grow(&mut self, stamp: Stamp) {
        self.shadow.push(stamp);
        stamp.fill(self.memory.grow());
    }
    fn check(&mut self) -> Result<(), String> {
        for page in 0..self.shadow.len() {
            let stamp = self.shadow[page];
            if let Some(wrong) = stamp.wrong(self.memory.page_mut(page)) {
                return Err(format!("page {page} below the top, of {}: {wrong}", self.shadow.len()));
            }
        }
        Ok(())
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
            if arena.saw(down.memory.is_any_out()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // It grows while the pages above are swapped out.
        down.grow(Stamp { head: random.next(), body: random.stamp() });
        down.check()?;
        for _ in 0..8 {
            let page = random.below(down.shadow.len());
            down.write(page, Stamp { head: random.next(), body: random.stamp() });
        }
    }
    down.check()
}
