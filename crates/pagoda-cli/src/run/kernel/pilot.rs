//! The thread that steers a run by the kernel's swap: looks, has the policy decide, and does it.
//!
//! It also keeps the peaks, and draws the line of `--progress`. It must never hold up the end of a
//! run for longer than one change takes, and never end the program but where the policy gives up.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagoda::stats::counters::Stats;
use pagoda_core::budget::steering::{Areas, Orders, Sight, Steering};
use pagoda_core::size::Bytes;
use serde::Serialize;

use super::ground::Ground;
use crate::run::progress::Progress;

/// The thread is ahead of the program's by so much where that is allowed: a look that comes late
/// comes after the budget.
const NICE: i32 = -10;

/// The figures of a run. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Figures {
    /// The most that the group and the compressed pages held together.
    pub peak_bytes: u64,
    /// The most that the group held.
    pub group_peak_bytes: u64,
    /// The most memory that compressed pages took.
    pub zram_memory_peak_bytes: u64,
    /// The most content of compressed pages.
    pub zram_content_peak_bytes: u64,
    /// The most that was in swap files.
    pub file_peak_bytes: u64,
    /// The most that the program held, in memory or not. Where the kernel does not tell, a page
    /// that is in memory and keeps its place in a swap area is counted twice.
    pub held_peak_bytes: u64,
    /// Faults that read from swap or a file.
    pub major_faults: u64,
    /// Looks at which the kernel held processes at the limit.
    pub paused_looks: u64,
    /// Looks at which the program was held until the limit had fallen.
    pub held_looks: u64,
    /// Processes that the kernel ended for want of memory.
    pub oom_kills: u64,
    /// The program was ended, because its memory fitted nowhere.
    pub is_given_up: bool,
}

impl Figures {
    fn note(&mut self, sight: &Sight) {
        let most = |peak: &mut u64, now: u64| *peak = (*peak).max(now);
        let swapped = sight.zram_content.get() + sight.file_used.get();
        most(&mut self.peak_bytes, sight.group.get() + sight.zram_memory.get());
        most(&mut self.group_peak_bytes, sight.group.get());
        most(&mut self.zram_memory_peak_bytes, sight.zram_memory.get());
        most(&mut self.zram_content_peak_bytes, sight.zram_content.get());
        most(&mut self.file_peak_bytes, sight.file_used.get());
        most(&mut self.held_peak_bytes, sight.group.get() + swapped);
        self.paused_looks += u64::from(sight.is_paused);
    }
}

/// The thread.
pub struct Pilot {
    end: Sender<()>,
    thread: JoinHandle<(Ground, Figures)>,
}

struct Flight {
    ground: Ground,
    steering: Steering,
    budget: Bytes,
    figures: Figures,
    progress: Option<Progress>,
}

impl Pilot {
    /// Starts it. It takes no signal: its maker has blocked them all. The error ends the run: a
    /// group without it would wait at its limit for good.
    pub fn start(
        ground: Ground,
        steering: Steering,
        budget: Bytes,
        progress: Option<Progress>,
    ) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let mut flight = Flight { ground, steering, budget, figures: Figures::default(), progress };
        let body = move || {
            // Without the right to it, looks come later.
            let _ = rustix::process::setpriority_process(None, NICE);
            let (mut at, mut wait) = (Instant::now(), Duration::ZERO);
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let since = at.elapsed();
                at = Instant::now();
                wait = flight.look(since);
            }
            flight.finish()
        };
        let thread = std::thread::Builder::new().name("pagoda-steer".to_owned()).spawn(body)?;
        Ok(Self { end, thread })
    }

    /// Ends it, and returns the groups and areas that it steered, with the figures. None if it has
    /// panicked.
    pub fn finish(self) -> Option<(Ground, Figures)> {
        drop(self.end);
        self.thread.join().ok()
    }
}

impl Flight {
    fn look(&mut self, since: Duration) -> Duration {
        let sight = self.ground.sight(since);
        self.figures.note(&sight);
        let orders = self.steering.look(&sight);
        self.figures.held_looks += u64::from(orders.holds);
        self.act(&orders);
        if let Some(line) = &mut self.progress {
            line.look(&shown(self.budget, &sight, self.ground.group().stat("total_pgmajfault")));
        }
        Duration::from_micros(orders.look_after_us)
    }

    fn act(&mut self, orders: &Orders) {
        if orders.gives_up {
            self.figures.is_given_up = true;
            self.ground.kill();
            return;
        }
        if orders.holds {
            self.ground.hold(true);
        }
        self.ground.steer(orders.limit);
        let made = |result: std::io::Result<()>, bytes| if result.is_ok() { bytes } else { Bytes::ZERO };
        match orders.areas {
            Areas::Keep => {}
            Areas::AddZram(bytes) => {
                let added = made(self.ground.add_zram(bytes), bytes);
                self.steering.added(orders.areas, added);
            }
            Areas::AddFile(bytes) => {
                let added = made(self.ground.add_file(bytes), bytes);
                self.steering.added(orders.areas, added);
            }
            Areas::DropZram => {
                let is_gone = self.ground.drop_zram();
                self.steering.dropped(is_gone);
            }
        }
        if let Some(limit) = orders.wakes_by {
            self.ground.wake(limit);
        }
        if !orders.holds {
            self.ground.hold(false);
        }
    }

    fn finish(mut self) -> (Ground, Figures) {
        self.progress.into_iter().for_each(Progress::end);
        let group = self.ground.group();
        // A peak between two looks.
        let peak = group.peak_bytes().unwrap_or(0);
        self.figures.group_peak_bytes = self.figures.group_peak_bytes.max(peak);
        if let Ok(held) = group.peak_with_swap_bytes() {
            self.figures.held_peak_bytes = held;
        }
        self.figures.major_faults = group.stat("total_pgmajfault");
        self.figures.oom_kills = group.oom_kills();
        (self.ground, self.figures)
    }
}

/// The state as the line of `--progress` takes it.
fn shown(budget: Bytes, sight: &Sight, major_faults: u64) -> Stats {
    let mut stats = Stats::default();
    stats.budget_bytes = budget.get();
    stats.anon_bytes = sight.group.get() + sight.zram_memory.get();
    stats.stored_bytes = sight.zram_content.get() + sight.file_used.get();
    stats.held_bytes = sight.group.get() + stats.stored_bytes;
    stats.faults = major_faults;
    stats
}
