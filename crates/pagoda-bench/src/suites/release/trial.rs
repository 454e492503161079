//! One run: owners are filled, most of their pages are paged out, then all close at once while
//! another one starts.
//!
//! Every run has a manager of its own, with a budget for everything: it must never measure reclaim.
//! The starter's memory was touched and freed just before, because memory that a virtual machine's
//! host has taken back costs several times more.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use pagoda::stats::account::{Account, Released};
use pagoda::{Manager, Region, ReleasePolicy};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::process::thread::now_ns;

use super::layouts::Order;
use super::starter::{start_and_work, warm_for};
use crate::load::data::{PAGE_BYTES, Pages, Random, mix};
use crate::measure::process::Cancel;
use crate::measure::stats::median;

/// The usual compression ratio of a program's memory.
pub const RATIO: f64 = 3.0;
/// Base pages between two checks for a request to end.
const PAGES_BETWEEN_LOOKS: usize = 1024;
/// The limit until all memory is freed.
const BACK_LIMIT: Duration = Duration::from_secs(60);

/// The kind of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Policy(ReleasePolicy),
    /// The same resident pages, and nothing stored.
    NeverStored,
    /// No owner closes while the other one starts.
    StarterAlone,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy(policy) => policy.name(),
            Self::NeverStored => "never stored",
            Self::StarterAlone => "starter alone",
        }
    }
}

/// The size of a run.
#[derive(Clone, Copy)]
pub struct Trial {
    pub owners: usize,
    pub owner: Bytes,
    pub base: BasePage,
    pub stored_percent: f64,
    /// The order in which the pages are stored.
    pub order: Order,
    pub starter: bool,
}

/// The figures of one run. Times count from when all were told to close.
pub struct Outcome {
    /// The closing time of each owner.
    pub close_ms: Vec<f64>,
    pub frames_back_ms: f64,
    pub stored_back_ms: f64,
    pub starter_start_ms: f64,
    pub starter_work_ms: f64,
    pub cpu_ms: f64,
    pub in_close_ms: f64,
    pub lock_wait_ms: f64,
    pub peak_queued_bytes: u64,
    pub queued: u64,
    pub inline: u64,
    pub early: u64,
    pub locks: u64,
    /// Resident bytes of the owners when they were told to close.
    pub resident_bytes: u64,
}

/// The tolerance of the owners' resident memory, one in so many bytes: pages that the kernel has
/// only just made can't be moved.
const RESIDENT_SHARE: u64 = 50;

impl Outcome {
    /// The median of the owners; 0 where none closed.
    pub fn close_p50_ms(&self) -> f64 {
        median(&self.close_ms).unwrap_or(0.0)
    }
    /// The time of the starter, start and work together.
    pub fn starter_ms(&self) -> f64 {
        self.starter_start_ms + self.starter_work_ms
    }
}

/// Whether a base page is stored: scattered, as a clock's hand leaves them.
pub fn is_stored(page: usize, percent: f64) -> bool {
    (mix(page as u64) % 1000) as f64 / 10.0 < percent
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl Trial {
    /// Runs once.
    pub fn run(self, kind: Kind, cancel: &Cancel) -> anyhow::Result<Outcome> {
        let policy = if let Kind::Policy(policy) = kind { policy } else { ReleasePolicy::default() };
        // All owners, the starter, and as much again for the store.
        let budget = Bytes::new(self.owner.get() * (self.owners as u64 + 2)).max(Bytes::mib(128));
        let manager = Manager::builder()
            .budget(budget)
            .base_page(self.base)
            .user_mode_only(true)
            .tune(|tuning| tuning.release(policy))
            .build()?;
        let pages = Pages::new(1, RATIO);
        let mut regions = Vec::new();
        for owner in 0..self.owners {
            regions.push(self.filled(&manager, &pages, owner, kind == Kind::NeverStored, cancel)?);
        }
        let before = manager.stats();
        let (stored, resident_bytes) =
            (before.stored_bytes / self.base.bytes() as u64, before.resident_bytes);
        // Only owners with the same resident memory compare: else the difference would not be the
        // cost of stored pages.
        let expected: u64 = regions.iter().map(|region| self.resident_bytes_of(region)).sum();
        ensure!(
            resident_bytes.abs_diff(expected) <= expected / RESIDENT_SHARE,
            "the owners of {} have {resident_bytes} bytes in memory, and not {expected}",
            kind.name()
        );
        let accounts: Vec<Arc<Account>> = regions.iter().map(|region| region.account()).collect();
        let closers = if kind == Kind::StarterAlone { Vec::new() } else { std::mem::take(&mut regions) };
        if self.starter {
            warm_for(self.owner);
        }

        let barrier = Barrier::new(closers.len() + 1);
        let (begin_ns, close_ms, starter) = thread::scope(|scope| {
            let threads: Vec<_> =
                closers.into_iter().map(|region| scope.spawn(|| close(&barrier, region))).collect();
            barrier.wait();
            let begin_ns = now_ns();
            let take = || Ok(manager.region(self.owner).create()?);
            let starter = if self.starter { start_and_work(self.owner, take) } else { Ok((0.0, 0.0)) };
            let closed =
                threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a closer panicked")));
            (begin_ns, closed.collect::<anyhow::Result<Vec<f64>>>(), starter)
        });
        let (starter_start_ms, starter_work_ms) = starter?;
        let waits = if kind == Kind::StarterAlone { 0 } else { stored };
        let released = all_back(&accounts, waits)?;
        let since = |at_ns: u64| ms(at_ns.saturating_sub(begin_ns));
        let latest = |of: fn(&Released) -> u64| released.iter().map(of).max().map_or(0.0, since);
        let sum = |of: fn(&Released) -> u64| released.iter().map(of).sum::<u64>();
        let stats = manager.stats();
        Ok(Outcome {
            close_ms: close_ms?,
            frames_back_ms: latest(|released| released.frames_back_ns),
            stored_back_ms: latest(|released| released.stored_back_ns),
            starter_start_ms,
            starter_work_ms,
            cpu_ms: ms(sum(|released| released.cpu_ns)),
            in_close_ms: ms(sum(|released| released.close_cpu_ns)),
            lock_wait_ms: ms(sum(|released| released.lock_wait_ns)),
            peak_queued_bytes: stats.release_queued_peak_bytes,
            queued: sum(|released| released.queued),
            inline: sum(|released| released.inline),
            early: sum(|released| released.early),
            locks: stats.release_locks,
            resident_bytes,
        })
    }

    /// The resident memory that an owner should have before it closes.
    fn resident_bytes_of(self, region: &Region) -> u64 {
        let base = self.base.bytes();
        let stays = (0..region.len() / base).filter(|page| !is_stored(*page, self.stored_percent));
        (stays.count() * base) as u64
    }

    /// An owner with so much stored. If it is `never` to store, the same pages are discarded
    /// instead, so that the same faults have made the same page tables.
    fn filled(
        self,
        manager: &Manager,
        pages: &Pages,
        owner: usize,
        never: bool,
        cancel: &Cancel,
    ) -> anyhow::Result<Region> {
        let mut region = manager.region(self.owner).create()?;
        let base = self.base.bytes();
        let count = region.len() / base;
        let look =
            |page: usize| if page.is_multiple_of(PAGES_BETWEEN_LOOKS) { cancel.check() } else { Ok(()) };
        let mut content = vec![0; base];
        for page in 0..count {
            look(page)?;
            pages.fill(((owner * count + page) * (base / PAGE_BYTES)) as u64, &mut content);
            region.write_at(page * base, &content).expect("written");
        }
        let stored: Vec<usize> = (0..count).filter(|page| is_stored(*page, self.stored_percent)).collect();
        if self.order == Order::Shuffled && !never {
            for (number, page) in shuffled(stored.clone()).into_iter().enumerate() {
                look(number)?;
                region.page_out(page * base, base)?;
            }
        }
        self.let_go(&region, never, cancel)?;
        if self.order == Order::Rewritten && !never {
            for (number, page) in shuffled(stored).into_iter().step_by(2).enumerate() {
                look(number)?;
                pages.fill(((owner * count + page) * (base / PAGE_BYTES) + 1) as u64, &mut content);
                region.write_at(page * base, &content).expect("written");
                region.page_out(page * base, base)?;
            }
        }
        if self.order != Order::ByAddress {
            // A page that was moved in just then may have been busy.
            self.let_go(&region, never, cancel)?;
        }
        Ok(region)
    }

    /// Pages out by address all that is to be stored, or discards it if it is `never` to be.
    fn let_go(self, region: &Region, never: bool, cancel: &Cancel) -> anyhow::Result<()> {
        let base = self.base.bytes();
        let (count, mut at) = (region.len() / base, 0);
        while at < count {
            cancel.check()?;
            let run = (at..count).take_while(|page| is_stored(*page, self.stored_percent)).count();
            if run > 0 && never {
                region.discard(at * base, run * base)?;
            } else if run > 0 {
                region.page_out(at * base, run * base)?;
            }
            at += run + 1;
        }
        Ok(())
    }
}

/// The pages in a random order, the same one each time.
fn shuffled(mut pages: Vec<usize>) -> Vec<usize> {
    let mut random = Random::new(1);
    for at in (1..pages.len()).rev() {
        pages.swap(at, random.below(at as u64 + 1) as usize);
    }
    pages
}

/// Closes an owner when all are told to. Returns the time in milliseconds.
fn close(barrier: &Barrier, region: Region) -> f64 {
    barrier.wait();
    let begin = Instant::now();
    region.close();
    begin.elapsed().as_secs_f64() * 1e3
}

/// Waits, without helping, until the owners' `stored` pages are freed.
fn all_back(accounts: &[Arc<Account>], stored: u64) -> anyhow::Result<Vec<Released>> {
    let begin = Instant::now();
    loop {
        let released: Vec<Released> = accounts.iter().map(|account| account.released()).collect();
        if released.iter().map(|released| released.freed).sum::<u64>() >= stored {
            return Ok(released);
        }
        ensure!(begin.elapsed() < BACK_LIMIT, "{stored} stored pages are not back: {released:?}");
        thread::sleep(Duration::from_millis(1));
    }
}
