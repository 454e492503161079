//! The store itself: its rate, the time to swap in a page, and its waste.
//!
//! Base pages of 64 KiB, as compressible as the owners' memory. Making and comparing the content is
//! not timed. A page that reads wrong must never count: it is an error.

use std::time::Instant;

use anyhow::{Context, ensure};
use pagoda::store::{Put, Scratch, Store, StoreConfig, TieredStore};
use pagoda::{Manager, Region};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::process::thread::{cpu_ns, now_ns};

use super::trial::RATIO;
use crate::load::data::{PAGE_BYTES, Pages};
use crate::load::pattern::Scatter;
use crate::measure::histogram::{Histogram, Percentiles};
use crate::measure::process::Cancel;
use crate::warm;

const BASE: BasePage = BasePage::K64;

/// The figures of one round.
pub struct Stored {
    /// The rate at which one thread stores content.
    pub compress_gib_s: f64,
    /// The rate by processor time, which no other program moves.
    pub compress_cpu_gib_s: f64,
    /// The time from touching the first byte of a compressed page until all of it was touched,
    /// pages at random.
    pub fetch_us: Percentiles,
    /// The time until the first byte is there.
    pub fetch_first_us: Percentiles,
    /// The same two times, served in the faulting thread.
    pub fetch_in_thread_us: Percentiles,
    pub fetch_first_in_thread_us: Percentiles,
    /// Memory of the store beyond the content it holds, its tables and half-empty parts included.
    pub waste_percent: f64,
}

impl Stored {
    /// Measures with so much content.
    pub fn measure(content: Bytes, cancel: &Cancel) -> anyhow::Result<Self> {
        let source = Source { pages: Pages::new(1, RATIO), count: content.as_usize() / BASE.bytes() };
        let ([compress_gib_s, compress_cpu_gib_s], waste_percent) = source.put(cancel)?;
        let (fetch_us, fetch_first_us) = source.fetch(false, cancel)?;
        let (fetch_in_thread_us, fetch_first_in_thread_us) = source.fetch(true, cancel)?;
        Ok(Self {
            compress_gib_s,
            compress_cpu_gib_s,
            fetch_us,
            fetch_first_us,
            fetch_in_thread_us,
            fetch_first_in_thread_us,
            waste_percent,
        })
    }
}

/// Base pages by their number.
struct Source {
    pages: Pages,
    count: usize,
}

impl Source {
    fn write(&self, number: usize, into: &mut [u8]) {
        self.pages.fill((number * (BASE.bytes() / PAGE_BYTES)) as u64, into);
    }

    fn bytes(&self) -> Bytes {
        Bytes::new((self.count * BASE.bytes()) as u64)
    }

    /// Stores every page. Returns the rates by the clock and by processor time, and the waste.
    fn put(&self, cancel: &Cancel) -> anyhow::Result<([f64; 2], f64)> {
        warm(self.bytes());
        let config = StoreConfig { base: BASE, memory_limit: self.bytes(), file: None, remote: None };
        let store = TieredStore::open(config).context("opening a store")?;
        let (mut scratch, mut page) = (Scratch::new(BASE), vec![0; BASE.bytes()]);
        let [mut took_ns, mut busy_ns] = [0; 2];
        for number in 0..self.count {
            cancel.check()?;
            self.write(number, &mut page);
            let begin = [now_ns(), cpu_ns()];
            let put = store.put(&page, &mut scratch)?;
            busy_ns += cpu_ns() - begin[1];
            took_ns += now_ns() - begin[0];
            ensure!(matches!(put, Put::Stored(_)), "page {number} is not stored");
        }
        let usage = store.usage();
        let (stands, holds) =
            (usage.memory_committed_bytes.get() as f64, usage.memory_packed_bytes.get() as f64);
        let gib = self.bytes().get() as f64 / (1u64 << 30) as f64;
        let rates = [took_ns, busy_ns].map(|ns| gib / (ns as f64 / 1e9));
        Ok((rates, 100.0 * (stands / holds - 1.0)))
    }

    /// Touches every page once, all of them stored. Returns the times of whole pages, and those of
    /// first bytes.
    fn fetch(&self, in_thread: bool, cancel: &Cancel) -> anyhow::Result<(Percentiles, Percentiles)> {
        let budget = Bytes::new(2 * self.bytes().get()).max(Bytes::mib(128));
        let builder = Manager::builder().budget(budget).base_page(BASE).user_mode_only(true);
        let manager = builder.serve_in_thread(in_thread).build()?;
        let mut region = manager.region(self.bytes()).create()?;
        let mut page = vec![0; BASE.bytes()];
        for number in 0..self.count {
            cancel.check()?;
            self.write(number, &mut page);
            region.write_at(number * BASE.bytes(), &page).expect("written");
        }
        region.page_out(0, region.len())?;
        let stored = manager.stats().stored_bytes;
        ensure!(stored >= self.bytes().get() / 8 * 7, "only {stored} of {} are stored", self.bytes());
        let (mut whole, mut first) = (Histogram::new(), Histogram::new());
        let scatter = Scatter::new(self.count as u64, 1);
        let mut back = vec![0; BASE.bytes()];
        for number in 0..self.count as u64 {
            cancel.check()?;
            let number = scatter.place(number) as usize;
            let [first_ns, all_ns] = touch_all(&region, number * BASE.bytes());
            first.add(first_ns);
            whole.add(all_ns);
            self.write(number, &mut page);
            region.read_at(number * BASE.bytes(), &mut back).expect("read");
            ensure!(page == back, "page {number} came back wrong");
        }
        Ok((whole.percentiles(), first.percentiles()))
    }
}

/// Touches a base page from its beginning to its end. Returns the nanoseconds until its first byte
/// was there, and until all was.
fn touch_all(region: &Region, at: usize) -> [u64; 2] {
    let mut byte = [0];
    let begin = Instant::now();
    region.read_at(at, &mut byte).expect("read");
    let first = begin.elapsed();
    for at in (at..at + BASE.bytes()).step_by(PAGE_BYTES).skip(1) {
        region.read_at(at, &mut byte).expect("read");
    }
    [first, begin.elapsed()].map(|time| time.as_nanos() as u64)
}
