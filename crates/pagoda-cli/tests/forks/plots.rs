//! Memory of several threads, mappings and blocks of malloc's, each part with its shadow and a
//! lock: a thread with all locks sees all of it in a consistent state, and forks with that view.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::area::{Area, Wrong};
use crate::files::Files;
use crate::heap::Heap;
use crate::support::memory::PAGE;
use crate::support::random::Random;

/// An area of which a part can't be written or not be touched at all, for a while: forks happen
/// meanwhile.
struct Forbidden {
    area: Area,
    pages: Range<usize>,
    may_read: bool,
}

/// How often a heap is churned before the first fork: it is about full by then.
const HEAP_CHURNS: usize = 64;

/// One thread's areas, its blocks of malloc's, and its files.
pub struct Plot {
    areas: Vec<Area>,
    forbidden: Option<Forbidden>,
    heap: Heap,
    files: Files,
    random: Random,
    pages_max: usize,
}

/// All threads' areas.
pub struct Plots {
    plots: Vec<Mutex<Plot>>,
    /// How many wait for all locks: owners let them pass.
    wanted: AtomicU64,
}

/// The fault, and its place.
pub fn text(wrong: Wrong) -> String {
    let at = wrong.address.map(|address| format!("at {address:#x}: ")).unwrap_or_default();
    at + &wrong.what
}

/// Files of this process alone: those of a parent are its own.
fn own_files() -> Files {
    /// How many this process has made, with those of its parents.
    static MADE: AtomicUsize = AtomicUsize::new(0);
    Files::new(std::process::id() as usize * 1000 + MADE.fetch_add(1, Ordering::Relaxed) % 1000)
}

impl Forbidden {
    /// Takes away a right to these pages.
    fn new(mut area: Area, pages: Range<usize>, may_read: bool) -> Self {
        let protection = if may_read { libc::PROT_READ } else { libc::PROT_NONE };
        area.mapping.protect(pages.clone(), protection).expect("mprotect");
        Self { area, pages, may_read }
    }
    /// Checks the readable memory.
    fn check(&self) -> Result<(), Wrong> {
        if self.may_read {
            return self.area.check(0..self.area.pages());
        }
        self.area.check(0..self.pages.start)?;
        self.area.check(self.pages.end..self.area.pages())
    }
    /// Gives the right back.
    fn allow(mut self) -> Area {
        let all = libc::PROT_READ | libc::PROT_WRITE;
        self.area.mapping.protect(self.pages, all).expect("mprotect back");
        self.area
    }
}

impl Plot {
    fn pages(&self) -> usize {
        self.areas.iter().map(Area::pages).sum()
    }
    /// Bytes of malloc blocks at most: a quarter of the areas' bytes.
    fn heap_max(pages_max: usize) -> usize {
        pages_max * PAGE / 4
    }

    /// Does something random, `times` times.
    pub fn operate(&mut self, times: usize) -> Result<(), String> {
        (0..times).try_for_each(|_| self.operate_once().map_err(text))
    }

    fn operate_once(&mut self) -> Result<(), Wrong> {
        let Self { areas, forbidden, heap, files, random, pages_max } = self;
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
        match random.below(33) {
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
                // The kernel moves only one mapping to it; memory of a move that it refuses half
                // way has no owner any more.
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
            21 => match forbidden.take() {
                None => *forbidden = Some(Forbidden::new(areas.swap_remove(at), pages, random.one_in(2))),
                Some(was) => {
                    was.check()?;
                    let area = was.allow();
                    area.check(0..area.pages())?;
                    areas.push(area);
                }
            },
            22..24 => files.write(area, random),
            24..26 => files.read(area, random),
            26 => files.pipe(area, random),
            27 => area.mapping.advise(pages, libc::MADV_WILLNEED).expect("madvise(MADV_WILLNEED)"),
            28..32 => heap.churn(Self::heap_max(*pages_max), random)?,
            _ => area.check(0..area.pages())?,
        }
        Ok(())
    }

    /// Checks every byte.
    pub fn check_all(&self) -> Result<(), String> {
        self.areas.iter().try_for_each(|area| area.check(0..area.pages())).map_err(text)?;
        self.forbidden.iter().try_for_each(Forbidden::check).map_err(text)?;
        self.heap.check()
    }

    /// Checks the content of the files: only in the process that made them.
    pub fn check_files(&self) -> Result<(), String> {
        self.files.check()
    }

    /// Checks some pages of every area.
    pub fn check_some(&mut self) -> Result<(), String> {
        let Self { areas, random, .. } = self;
        areas.iter().try_for_each(|area| area.check(random.range(area.pages()))).map_err(text)
    }

    /// From now on other choices are made: by a child, which would do exactly the same as its
    /// parent, and to the same files.
    pub fn reseed(&mut self, seed: u64) {
        self.random = Random::new(seed, 1);
        self.files = own_files();
    }
}

impl Plots {
    /// Plots of `pages` pages each, all written.
    pub fn new(seed: u64, count: usize, pages: usize) -> Self {
        let plot = |i| {
            let mut plot = Plot {
                areas: Vec::new(),
                forbidden: None,
                heap: Heap::default(),
                files: own_files(),
                random: Random::new(seed, 100 + i as u64),
                pages_max: pages,
            };
            while plot.pages() < pages {
                let mut area = Area::new(plot.random.between(1, 512), false);
                area.write(0..area.pages(), &mut plot.random);
                plot.areas.push(area);
            }
            for _ in 0..HEAP_CHURNS {
                let churned = plot.heap.churn(Plot::heap_max(pages), &mut plot.random);
                churned.unwrap_or_else(|wrong| panic!("{wrong}"));
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
        let mut plot = self.plots[plot].lock().expect("no thread panics with it held");
        let times = plot.random.between(1, 20);
        plot.operate(times)
    }

    /// Takes all of them: now all is as its shadow says, and stays so.
    pub fn lock_all(&self) -> Vec<MutexGuard<'_, Plot>> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let all = self.plots.iter().map(|plot| plot.lock().expect("no thread panics with it held")).collect();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        all
    }
}
