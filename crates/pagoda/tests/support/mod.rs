//! Shared by tests of regions: the shadow by which every page is checked, and the wait for counted
//! faults.

pub mod huge;
#[allow(dead_code, reason = "each of the tests uses its own part")]
pub mod lines;

use pagoda::stats::counters::Stats;
use pagoda::{Manager, Region};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::wait::until;

pub const PAGE: usize = 4096;

/// The stats once every finished fault is counted, and its pages can be evicted: a faulting thread
/// runs on as soon as its page is there, while a handler still has the entry, and counts.
pub fn settled(manager: &Manager) -> Stats {
    let mut stats = manager.stats();
    until("all faults are served and counted", || {
        stats = manager.stats();
        stats.faults_in_service == 0
    });
    stats
}

/// The content of each OS page of a region: the value it is made of, or 0 for a page that reads
/// zero.
pub struct Shadow {
    values: Vec<u64>,
    random: Random,
    /// A page's content by its value, which is not 0.
    content: fn(u64) -> [u8; PAGE],
}

impl Shadow {
    /// Of a fresh region of `len` bytes.
    pub fn new(len: usize, random: Random, content: fn(u64) -> [u8; PAGE]) -> Self {
        Self { values: vec![0; len / PAGE], random, content }
    }

    /// Goes through all pages upwards, then to `more` at random: checks every byte of each before
    /// it writes it anew. Once in a thousand times up to 40 pages are discarded. `case` names the
    /// run where a page is wrong.
    pub fn run(&mut self, region: &mut Region, more: usize, case: &str) {
        let pages = self.values.len();
        for round in 0..pages + more {
            let page = if round < pages { round } else { self.random.below(pages) };
            let mut before = [0; PAGE];
            region.read_at(page * PAGE, &mut before).expect("read");
            let value = self.values[page];
            let expected = if value == 0 { [0; PAGE] } else { (self.content)(value) };
            let first = u64::from_le_bytes(*before.first_chunk().expect("a word"));
            assert!(
                before == expected,
                "page {page}, {case}: begins with {first:#x}, should be of {value:#x}"
            );
            self.values[page] = self.random.next() | 1;
            region.write_at(page * PAGE, &(self.content)(self.values[page])).expect("written");
            if self.random.below(1000) == 0 {
                let from = self.random.below(pages - 40);
                let count = 1 + self.random.below(39);
                region.discard(from * PAGE, count * PAGE).expect("discard");
                self.values[from..from + count].fill(0);
            }
        }
    }
}
