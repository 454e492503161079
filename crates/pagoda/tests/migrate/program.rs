//! The writer of a region that moves: a program with a shadow of its writes, and the brake that
//! stops it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pagoda::Region;
use pagoda::migrate::Writer;
use pagoda_linux::mem::region_bytes::RegionBytes;
use pagoda_linux::testing::random::Random;

pub const PAGE: usize = 4096;

/// The memory that moves, for any number of threads: a region's own, or adopted memory by its
/// address.
pub trait Memory: Sync {
    fn bytes(&self) -> usize;
    fn at(&self) -> *const u8;
    fn read(&self, offset: usize, into: &mut [u8]);
    fn write(&self, offset: usize, words: &[u8]);
    fn discard(&self, offset: usize, len: usize);
}

impl Memory for Region {
    fn bytes(&self) -> usize {
        self.len()
    }
    fn at(&self) -> *const u8 {
        self.as_ptr()
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        self.read_at(offset, into).expect("read");
    }
    fn write(&self, offset: usize, words: &[u8]) {
        self.write_words(offset, words).expect("written");
    }
    fn discard(&self, offset: usize, len: usize) {
        Self::discard(self, offset, len).expect("discarded");
    }
}

impl Memory for RegionBytes {
    fn bytes(&self) -> usize {
        self.range().len()
    }
    fn at(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.range().start())
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        self.read_at(offset, into);
    }
    fn write(&self, offset: usize, words: &[u8]) {
        self.write_words(offset, words);
    }
    fn discard(&self, offset: usize, len: usize) {
        Self::discard(self, offset, len).expect("discarded");
    }
}

/// A program that writes to a region, and its writes.
pub struct Program<'a> {
    region: &'a dyn Memory,
    random: Random,
    pub shadow: Vec<u64>,
}

const WORDS: usize = PAGE / 8;

impl<'a> Program<'a> {
    pub fn new(region: &'a dyn Memory, seed: u64) -> Self {
        Self::of_part(region, region.bytes(), seed)
    }

    /// A program that leaves the part beyond the first `len` bytes, whole pages, to others.
    pub fn of_part(region: &'a dyn Memory, len: usize, seed: u64) -> Self {
        assert!(len <= region.bytes());
        Self { region, random: Random::new(seed, 1), shadow: vec![0; len / 8] }
    }

    /// A program that goes on in `region`, in its first `len` bytes, which hold `shadow`.
    pub fn go_on(region: &'a dyn Memory, shadow: &[u64], len: usize, seed: u64) -> Self {
        Self { shadow: shadow[..len / 8].to_vec(), ..Self::of_part(region, len, seed) }
    }

    fn write(&mut self, index: usize, word: u64) {
        self.region.write(index * 8, &word.to_ne_bytes());
        self.shadow[index] = word;
    }

    fn pages(&self) -> usize {
        self.shadow.len() / WORDS
    }

    /// A page of a random kind: zeroes, one word, compressible and incompressible.
    fn any_page(&mut self, page: usize) -> [u64; WORDS] {
        let kind = self.random.below(8);
        let word = self.random.next();
        std::array::from_fn(|at| match kind {
            0 => 0,
            1 => word,
            2..5 => word ^ ((page * WORDS + at) as u64 / 32),
            _ => self.random.next(),
        })
    }

    /// Writes a page word by word: it may be taken away between any two.
    fn write_page(&mut self, page: usize) {
        let words = self.any_page(page);
        (page * WORDS..).zip(words).for_each(|(index, word)| self.write(index, word));
    }

    /// The same at once.
    fn fill_page(&mut self, page: usize) {
        let words = self.any_page(page);
        self.shadow[page * WORDS..][..WORDS].copy_from_slice(&words);
        let bytes = words.map(u64::to_ne_bytes);
        self.region.write(page * PAGE, bytes.as_flattened());
    }

    fn discard(&mut self, page: usize, pages: usize) {
        let pages = pages.min(self.pages() - page);
        self.region.discard(page * PAGE, pages * PAGE);
        self.shadow[page * WORDS..(page + pages) * WORDS].fill(0);
    }

    /// Writes runs of pages until most of the region was written, and leaves the rest untouched.
    pub fn fill(&mut self) {
        for _ in 0..self.pages() / 12 {
            let (page, len) = (self.random.below(self.pages()), 1 + self.random.below(24));
            for page in page..(page + len).min(self.pages()) {
                self.fill_page(page);
            }
        }
    }

    /// Does one thing: writes a word or a page, reads, or discards.
    pub fn step(&mut self) {
        // Mostly in one part, so that rounds get somewhere.
        let page = match self.random.below(4) {
            0 => self.random.below(self.pages()),
            _ => self.random.below(self.pages() / 8),
        };
        match self.random.below(16) {
            0..8 => {
                let (index, word) = (page * WORDS + self.random.below(WORDS), self.random.next());
                self.write(index, word);
            }
            8..12 => self.write_page(page),
            12..15 => {
                let index = page * WORDS + self.random.below(WORDS);
                let mut found = [0; 8];
                self.region.read(index * 8, &mut found);
                assert_eq!(u64::from_ne_bytes(found), self.shadow[index], "word {index} at the source");
            }
            _ => {
                let pages = 1 + self.random.below(40);
                self.discard(page, pages);
            }
        }
    }

    /// Whether `page` was written so last.
    pub fn wrote(&self, page: usize, found: &[u8; PAGE]) -> bool {
        let shadow = &self.shadow[page * WORDS..(page + 1) * WORDS];
        found.as_chunks().0.iter().zip(shadow).all(|(word, shadow)| u64::from_ne_bytes(*word) == *shadow)
    }

    /// The difference between `region` and the program's writes, if there is one.
    pub fn differs(&self, region: &dyn Memory) -> Option<Difference> {
        let (mut pages, mut first) = (Vec::new(), None);
        let mut content = [0; PAGE];
        for page in 0..self.pages() {
            region.read(page * PAGE, &mut content);
            if self.wrote(page, &content) {
                continue;
            }
            pages.push(page);
            let words = content.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
            let shadow = &self.shadow[page * WORDS..];
            let found = words.zip(shadow).enumerate().find(|(_, (word, shadow))| word != *shadow);
            first = first.or(found.map(|(word, (found, wrote))| (word, found, *wrote)));
        }
        first.map(|(word, found, wrote)| Difference { pages, word, found, wrote })
    }
}

/// A difference between a region and the writes to it: its pages, and the first word of the first
/// of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub pages: Vec<usize>,
    pub word: usize,
    pub found: u64,
    pub wrote: u64,
}

/// Stops a program that runs in another thread.
#[derive(Default)]
pub struct Brake {
    wanted: AtomicBool,
    pub stands: AtomicBool,
}

impl Brake {
    /// Runs `program` until it is stopped.
    pub fn run(&self, program: &mut Program<'_>) {
        self.repeat(|| {
            program.step();
            if program.random.below(64) == 0 {
                thread::sleep(Duration::from_micros(100));
            }
        });
    }
    /// Does `step` again and again until it is stopped.
    pub fn repeat(&self, mut step: impl FnMut()) {
        while !self.wanted.load(Ordering::Acquire) {
            step();
        }
        self.stands.store(true, Ordering::Release);
    }
    pub fn stop(&self) {
        self.wanted.store(true, Ordering::Release);
    }
}

impl Writer for &Brake {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        Brake::stop(self);
        while !self.stands.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

/// There is no writer.
pub struct Idle;

impl Writer for Idle {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}
