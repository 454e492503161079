//! The move of a region under writes: the writer touches pages of a small part at a rate, and now
//! and then one of all. It must never stop by itself: only the migration stops it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pagoda::Region;
use pagoda::migrate::{Codec, Writer, ZeroPolicy};

use super::cases::{USUAL, write_page};
use super::destination::Into;
use super::trial::{Outcome, run};
use crate::load::data::{PAGE_BYTES, Pages, Random};

/// Pages of each turn of the writer, and the pause after it: some 100 MiB a second.
const TURN_PAGES: usize = 25;
const PAUSE: Duration = Duration::from_millis(1);

/// One in so many writes goes to any page; the others go to one such part of all pages.
const ANYWHERE: u64 = 64;
const WORKING_SET: u64 = 16;

/// The request to stop, and its answer.
#[derive(Default)]
pub struct Brake {
    pub wanted: AtomicBool,
    pub stands: AtomicBool,
}

impl Writer for &Brake {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        self.wanted.store(true, Ordering::Release);
        while !self.stands.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

/// Moves `region`, which is written until its writer is stopped.
pub fn measure(region: &Region, into: Into) -> anyhow::Result<Outcome> {
    let (brake, pages) = (Brake::default(), Pages::new(2, USUAL));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut random, all) = (Random::new(1), (region.len() / PAGE_BYTES) as u64);
            let mut version = 0u8;
            while !brake.wanted.load(Ordering::Acquire) {
                for _ in 0..TURN_PAGES {
                    let anywhere = random.below(ANYWHERE) == 0;
                    let page = random.below(if anywhere { all } else { all / WORKING_SET });
                    write_page(region, &pages, page as usize, version);
                }
                version = version.wrapping_add(1) & 1;
                thread::sleep(PAUSE);
            }
            brake.stands.store(true, Ordering::Release);
        });
        let outcome = run(region, ZeroPolicy::default(), into, Codec::None, &mut &brake);
        // The writer stops whatever the outcome.
        brake.wanted.store(true, Ordering::Release);
        outcome
    })
}
