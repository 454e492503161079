//! The move of a region whose writer outruns its line: left alone, and slowed down by its own
//! faults.
//!
//! The writer does not heed a request to be slower, and writes at most some times as much as the
//! line carries, so that a slow machine shows the same. This module must never end the writer's
//! work before the migration stops it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagoda::Region;
use pagoda::migrate::{Codec, LiveOptions, Writer, ZeroPolicy};
use pagoda_core::size::Bytes;

use super::destination::Into;
use super::live::Brake;
use super::trial::{Outcome, Route, options, run_with};
use crate::load::data::{PAGE_BYTES, Random};

/// The limits of slowing down that are compared, in percent of a thread's time.
pub const PERCENT: [u8; 2] = [0, LiveOptions::SLOW_MOST_PERCENT];

/// The line: a gigabit a second.
const LINE: Bytes = Bytes::mib(128);

/// Pages of each turn of the writer, and the pause after it: at most three times the line.
const TURN_PAGES: usize = 256;
const PAUSE: Duration = Duration::from_micros(2600);

/// The time for which its speed is measured before it is disturbed.
const ALONE: Duration = Duration::from_millis(150);

const DOWNTIME: Duration = Duration::from_millis(20);

/// One run.
pub struct Throttled {
    pub percent: u8,
    pub outcome: Outcome,
    /// Pages that were written in a second before it.
    pub before_s: f64,
    /// The same from the first request to be slower on. None if there was none.
    pub during_s: Option<f64>,
}

/// Counts writes from the first request to be slower until it is stopped.
struct Counting<'a> {
    brake: &'a Brake,
    writes: &'a AtomicU64,
    asked: Option<Counted>,
    during_s: Option<f64>,
}

impl Writer for Counting<'_> {
    fn throttle(&mut self, _percent: u8) {
        self.asked.get_or_insert_with(|| Counted::now(self.writes));
    }
    fn stop(&mut self) {
        self.during_s = self.asked.as_ref().map(|asked| asked.per_s(self.writes));
        let mut brake = self.brake;
        brake.stop();
    }
}

/// A count at one time.
struct Counted(Instant, u64);

impl Counted {
    fn now(writes: &AtomicU64) -> Self {
        Self(Instant::now(), writes.load(Ordering::Relaxed))
    }

    fn per_s(&self, writes: &AtomicU64) -> f64 {
        (writes.load(Ordering::Relaxed) - self.1) as f64 / self.0.elapsed().as_secs_f64()
    }
}

/// Moves `region`, all of which is written in random order until its writer is stopped.
pub fn measure(region: &Region, percent: u8) -> anyhow::Result<Throttled> {
    let (brake, writes) = (Brake::default(), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut random, all) = (Random::new(1), (region.len() / PAGE_BYTES) as u64);
            while !brake.wanted.load(Ordering::Acquire) {
                for _ in 0..TURN_PAGES {
                    let offset = random.below(all) as usize * PAGE_BYTES;
                    region.write_words(offset, &random.next().to_ne_bytes()).expect("written");
                    writes.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(PAUSE);
            }
            brake.stands.store(true, Ordering::Release);
        });
        let alone = Counted::now(&writes);
        thread::sleep(ALONE);
        let before_s = alone.per_s(&writes);
        let mut writer = Counting { brake: &brake, writes: &writes, asked: None, during_s: None };
        let mut options = options(Into::Region, Codec::None);
        options.send.bandwidth = Some(LINE);
        options.downtime = DOWNTIME;
        options.slow_most_percent = percent;
        let route = Route::Direct;
        let outcome = run_with(region, &route, ZeroPolicy::default(), Into::Region, options, &mut writer);
        // The writer stops whatever the outcome.
        brake.wanted.store(true, Ordering::Release);
        Ok(Throttled { percent, outcome: outcome?, before_s, during_s: writer.during_s })
    })
}
