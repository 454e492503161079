//! Memory of several threads, each part with its shadow and a lock: whoever holds all locks sees all of it as it should
//! be, and forks with that view.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::area::{Area, Wrong};
use crate::support::random::Random;

/// One thread's areas.
pub struct Plot {
    areas: Vec<Area>,
    random: Random,
    pages_max: usize,
}

/// All threads' areas.
pub struct Plots {
    plots: Vec<Mutex<Plot>>,
    /// How many wait for all locks: owners let them pass.
    wanted: AtomicU64,
}

/// What is wrong, and where.
pub fn text(wrong: Wrong) -> String {
    let at = wrong.address.map(|address| format!("at {address:#x}: ")).unwrap_or_default();
    at + &wrong.what
}

impl Plot {
    fn pages(&self) -> usize {
        self.areas.iter().map(Area::pages).sum()
    }

    /// Does something random, `times` times.
    pub fn operate(&mut self, times: usize) -> Result<(), String> {
        (0..times).try_for_each(|_| self.operate_once().map_err(text))
    }

    fn operate_once(&mut self) -> Result<(), Wrong> {
        let Self { areas, random, pages_max } = self;
        let held: usize = areas.iter().map(Area::pages).sum();
        if areas.is_empty() || held < *pages_max && random.one_in(3) {
            let mut area = Area::new(random.between(1, 512), random.one_in(4));
            area.write(0..area.pages(), random);
            areas.push(area);
            return Ok(());
        }
        let at = random.below(areas.len());
        if held > *pages_max || areas.len() > 60 {
            let area = areas.swap_remove(at);
            let pages = random.range(area.pages());
            areas.extend(area.unmap(pages));
            return Ok(());
        }
        let area = &mut areas[at];
        let pages = random.range(area.pages());
        match random.below(22) {
            0..8 => area.write(pages, random),
            8..11 => pages.for_each(|page| area.poke(page, random.next())),
            11..15 => area.check(pages)?,
            15 => area.discard(pages),
            16 => area.replace(pages),
            17 => {
                let area = areas.swap_remove(at);
                let more = area.pages() + random.between(0, 64);
                areas.push(area.remap(more).0);
            }
            18 => area.free(pages, random)?,
            19 => {
                let area = areas.swap_remove(at);
                let target = Area::new(random.between(1, area.pages() + 64), false);
                // The kernel moves what is one mapping to it; what it refuses half way is nobody's any more.
                if area.mapping.is_one() {
                    areas.extend(area.remap_onto(target));
                } else {
                    areas.push(area);
                }
            }
            20 => {
                let area = areas.swap_remove(at);
                areas.extend(area.unmap(pages));
            }
            _ => area.check(0..area.pages())?,
        }
        Ok(())
    }

    /// Checks every byte.
    pub fn check_all(&self) -> Result<(), String> {
        self.areas.iter().try_for_each(|area| area.check(0..area.pages())).map_err(text)
    }

    /// Checks some pages of every area.
    pub fn check_some(&mut self) -> Result<(), String> {
        let Self { areas, random, .. } = self;
        areas.iter().try_for_each(|area| area.check(random.range(area.pages()))).map_err(text)
    }

    /// From now on other choices are made: by a child, which would do exactly what its parent does.
    pub fn reseed(&mut self, seed: u64) {
        self.random = Random::new(seed, 1);
    }
}

impl Plots {
    /// Plots of `pages` pages each, all written.
    pub fn new(seed: u64, count: usize, pages: usize) -> Self {
        let plot = |i| {
            let mut plot =
                Plot { areas: Vec::new(), random: Random::new(seed, 100 + i as u64), pages_max: pages };
            while plot.pages() < pages {
                let mut area = Area::new(plot.random.between(1, 512), false);
                area.write(0..area.pages(), &mut plot.random);
                plot.areas.push(area);
            }
            Mutex::new(plot)
        };
        Self { plots: (0..count).map(plot).collect(), wanted: AtomicU64::new(0) }
    }

    /// Does something to one of them, and lets others have it.
    pub fn work(&self, plot: usize) -> Result<(), String> {
        while self.wanted.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut plot = self.plots[plot].lock().expect("nobody panics with it held");
        let times = plot.random.between(1, 20);
        plot.operate(times)
    }

    /// Takes all of them: now all is as its shadow says, and stays so.
    pub fn lock_all(&self) -> Vec<MutexGuard<'_, Plot>> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let all = self.plots.iter().map(|plot| plot.lock().expect("nobody panics with it held")).collect();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        all
    }
}
