//! The tortured program: threads that each own areas of memory and do something random to one of
//! them, again and again.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagoda_linux::testing::heap;
use pagoda_linux::testing::process::end_at_once;

use crate::area::{Area, Wrong};
use crate::files::Files;
use crate::heap::Heap;
use crate::history;
use crate::support::memory::PAGE;
use crate::support::random::Random;

/// Threads that own memory, beside those that they start.
const WORKERS: usize = 4;

/// Pages that a worker maps at most: with all workers and their heaps four times the budget.
const PAGES_MAX: usize = (24 << 20) / 4096;

/// Bytes of malloc blocks that a worker holds at most.
const HEAP_MAX: usize = 8 << 20;

static OPERATIONS: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);

/// Runs the program.
pub fn program(seed: u64, seconds: u64) -> ExitCode {
    // Half of all seeds have one heap, on brk, that all threads share and that shrinks when its top
    // is free.
    if seed & 1 == 0 {
        heap::share_one_on_brk();
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for id in 1..WORKERS {
            scope.spawn(move || Worker::new(seed, id).work(end));
        }
        // The first thread is one of them: its stack and its heap are different.
        Worker::new(seed, 0).work(end);
    });
    let [operations, refused, lost] =
        [&OPERATIONS, &REFUSED, &LOST].map(|count| count.load(Ordering::Relaxed));
    println!("{operations} operations, {refused} moves refused, {lost} refused half way");
    ExitCode::SUCCESS
}

struct Worker {
    seed: u64,
    id: usize,
    random: Random,
    areas: Vec<Area>,
    heap: Heap,
    files: Files,
    done: u64,
}

impl Worker {
    fn new(seed: u64, id: usize) -> Self {
        Self {
            seed,
            id,
            random: Random::new(seed, id as u64),
            areas: Vec::new(),
            heap: Heap::default(),
            files: Files::new(id),
            done: 0,
        }
    }

    fn work(mut self, end: Instant) {
        while Instant::now() < end {
            let result = self.operate();
            self.expect(result);
        }
        let result = self.check_all();
        self.expect(result);
        OPERATIONS.fetch_add(self.done, Ordering::Relaxed);
    }

    fn expect(&self, result: Result<(), Wrong>) {
        let Err(Wrong { address, what }) = result else { return };
        eprintln!("seed {}, worker {}, operation {}: {what}", self.seed, self.id, self.done);
        if let Some(address) = address {
            eprintln!("{}", history::told(address));
        }
        // At once, so that no destructor and no other thread adds to it.
        end_at_once(9);
    }

    fn remember(&self, what: &'static str, start: usize, pages: usize, other: usize) {
        history::remember(self.id, self.done, what, start, pages, other);
    }

    fn check_all(&mut self) -> Result<(), Wrong> {
        self.areas.iter().try_for_each(|area| area.check(0..area.pages()))?;
        self.heap.check()?;
        Ok(self.files.check()?)
    }

    fn pages(&self) -> usize {
        self.areas.iter().map(Area::pages).sum()
    }

    /// Takes one of the areas out.
    fn take(&mut self) -> Area {
        let at = self.random.below(self.areas.len());
        self.areas.swap_remove(at)
    }

    fn operate(&mut self) -> Result<(), Wrong> {
        self.done += 1;
        if self.areas.is_empty() || self.pages() < PAGES_MAX && self.random.one_in(12) {
            return self.map();
        }
        if self.pages() > PAGES_MAX || self.areas.len() > 100 {
            return self.unmap();
        }
        let kind = self.random.below(60);
        let at = self.random.below(self.areas.len());
        let area = &mut self.areas[at];
        let pages = self.random.range(area.pages());
        let (start, len) = (area.mapping.start(), area.pages());
        let what = match kind {
            0..15 => "write",
            15..20 => "poke",
            29..32 => "discard",
            32 => "free",
            34 => "replace",
            35 => "huge or not",
            39..42 => "read file into",
            42..45 => "pipe within",
            56 => "forbid writes",
            57 => "forbid access",
            _ => "",
        };
        if !what.is_empty() {
            let whole = matches!(kind, 35 | 39..45);
            let (from, count) = if whole { (0, len) } else { (pages.start, pages.len()) };
            self.remember(what, start + from * PAGE, count, start);
        }
        let Self { areas, random, heap, files, .. } = self;
        let area = &mut areas[at];
        match kind {
            0..15 => area.write(pages, random),
            15..20 => pages.for_each(|page| area.poke(page, random.next())),
            20..28 => area.check(pages)?,
            28 => area.check(0..area.pages())?,
            29..32 => area.discard(pages),
            32 => area.free(pages, random)?,
            33 => area.mapping.advise(pages, libc::MADV_WILLNEED).expect("madvise(MADV_WILLNEED)"),
            34 => area.replace(pages),
            35 => {
                let advice = if random.one_in(2) { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
                // A kernel without huge pages knows neither.
                let _ = area.mapping.advise(0..area.pages(), advice);
            }
            36..39 => files.write(area, random),
            39..42 => files.read(area, random),
            42..45 => files.pipe(area, random),
            45..49 => heap.churn(HEAP_MAX, random)?,
            49 if random.one_in(20) => heap.check()?,
            49 => {}
            50..52 => self.unmap()?,
            52..55 => self.remap()?,
            55 => self.remap_onto()?,
            56 => self.forbid(at, pages, libc::PROT_READ)?,
            57 => self.forbid(at, pages, libc::PROT_NONE)?,
            _ => self.start_threads(at)?,
        }
        Ok(())
    }

    fn map(&mut self) -> Result<(), Wrong> {
        let most = if self.random.one_in(16) { 1024 } else { 256 };
        let pages = self.random.between(1, most);
        let populated = self.random.one_in(4);
        let mut area = Area::new(pages, populated);
        let start = area.mapping.start();
        self.remember(if populated { "map populated" } else { "map" }, start, pages, 0);
        if self.random.one_in(3) {
            area.check(0..pages)?;
        }
        if !self.random.one_in(4) {
            area.write(0..pages, &mut self.random);
        }
        self.areas.push(area);
        Ok(())
    }

    fn unmap(&mut self) -> Result<(), Wrong> {
        let area = self.take();
        let pages = self.random.range(area.pages());
        let pages = if self.random.one_in(3) { 0..area.pages() } else { pages };
        let start = area.mapping.start();
        self.remember("unmap", start + pages.start * PAGE, pages.len(), start);
        if self.random.one_in(4) {
            area.check(pages.clone())?;
        }
        let rest = area.unmap(pages);
        if self.random.one_in(4) {
            rest.iter().try_for_each(|area| area.check(0..area.pages()))?;
        }
        self.areas.extend(rest);
        Ok(())
    }

    fn remap(&mut self) -> Result<(), Wrong> {
        let area = self.take();
        let pages = match self.random.below(3) {
            0 => self.random.between(1, area.pages()),
            _ => area.pages() + self.random.between(0, 128),
        };
        let (start, len) = (area.mapping.start(), area.pages());
        let (area, moved) = area.remap(pages);
        let to = area.mapping.start();
        self.remember("mremapped from", start, len, to);
        self.remember("mremapped to", to, area.pages(), start);
        self.moved(area, moved)
    }

    fn remap_onto(&mut self) -> Result<(), Wrong> {
        let area = self.take();
        if !area.mapping.is_one() {
            self.areas.push(area);
            REFUSED.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        // Onto another area or a part of it, or onto fresh memory; shorter, as long, or longer than
        // it is.
        let mut target = if self.areas.is_empty() || self.random.one_in(2) {
            Area::new(self.random.between(1, 256), false)
        } else {
            self.take()
        };
        if self.random.one_in(2) && target.pages() > 1 {
            let cut = self.random.between(1, target.pages() - 1);
            let above = target.mapping.split_off(cut);
            let shadow = target.shadow.split_off(cut);
            self.areas.push(Area { mapping: above, shadow });
        }
        let (start, len) = (area.mapping.start(), area.pages());
        let Some(area) = area.remap_onto(target) else {
            LOST.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let to = area.mapping.start();
        self.remember("mremapped onto a target from", start, len, to);
        self.remember("mremapped onto the target", to, area.pages(), start);
        self.moved(area, true)
    }

    fn moved(&mut self, area: Area, moved: bool) -> Result<(), Wrong> {
        if !moved {
            REFUSED.fetch_add(1, Ordering::Relaxed);
        }
        if self.random.one_in(2) {
            area.check(0..area.pages())?;
        }
        self.areas.push(area);
        Ok(())
    }

    /// Forbids writing, or all access, for a while.
    fn forbid(&mut self, at: usize, pages: std::ops::Range<usize>, protection: i32) -> Result<(), Wrong> {
        let all = libc::PROT_READ | libc::PROT_WRITE;
        let mut area = self.areas.swap_remove(at);
        area.mapping.protect(pages.clone(), protection).expect("mprotect");
        for _ in 0..self.random.below(8) {
            // No operation meanwhile may end the borrow of the protected area: it is not in the
            // list.
            if let Some(other) = self.areas.len().checked_sub(1).map(|last| self.random.between(0, last)) {
                let other = &mut self.areas[other];
                let pages = self.random.range(other.pages());
                other.write(pages.clone(), &mut self.random);
                other.check(pages)?;
            }
        }
        if self.random.one_in(4) {
            std::thread::sleep(Duration::from_millis(self.random.below(20) as u64));
        }
        if protection == libc::PROT_READ {
            area.check(0..area.pages())?;
        } else {
            area.check(0..pages.start)?;
            area.check(pages.end..area.pages())?;
        }
        if self.random.one_in(8) {
            area.discard(pages.clone());
        }
        area.mapping.protect(pages, all).expect("mprotect back");
        if self.random.one_in(2) {
            area.check(0..area.pages())?;
        }
        self.areas.push(area);
        Ok(())
    }

    /// Threads that use their stacks and an area of ours, and end.
    fn start_threads(&mut self, at: usize) -> Result<(), Wrong> {
        let count = self.random.between(1, 3);
        let rests = self.random.one_in(8);
        let area = &self.areas[at];
        let depth = self.random.between(1, 40);
        let seed = self.random.next();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|i| {
                    scope.spawn(move || {
                        let mut random = Random::new(seed, i as u64);
                        recurse(depth, &mut random, rests)?;
                        area.check(random.range(area.pages()))
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("the thread does not panic"))
        })
    }
}

/// Uses 8 KiB of stack for each level, and checks it on the way back.
fn recurse(depth: usize, random: &mut Random, rests: bool) -> Result<(), Wrong> {
    let mut words = [0u64; 1024];
    let seed = random.next();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = seed ^ i as u64);
    std::hint::black_box(&mut words);
    if depth > 0 {
        recurse(depth - 1, random, rests)?;
    } else if rests {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::hint::black_box(&mut words);
    match words.iter().enumerate().find(|&(i, &word)| word != seed ^ i as u64) {
        None => Ok(()),
        Some((i, word)) => {
            Err(format!("word {i} of a stack frame is {word:#x} instead of {:#x}", seed ^ i as u64).into())
        }
    }
}
