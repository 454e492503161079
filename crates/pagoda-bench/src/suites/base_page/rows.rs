//! One row of figures: a pattern on one side, touched for the first time, then read at random.
//!
//! All sides take turns within a round, on memory that was touched just before, and the first round
//! does not count. Counts are those of the last round, times are medians. This module must never
//! time the set-up of a row.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pagoda_core::page::OS_PAGE;
use pagoda_linux::baseline::perf::TlbMisses;
use pagoda_linux::mem::contiguity::contiguous_bytes;
use serde::Serialize;

use super::buffer::{Buffer, Side};
use super::pattern::{BLOCK, Fate, Pattern, cycle, fate, link};
use crate::load::data::mix;
use crate::measure::stats::{Measured, middle_of, round};

/// The wait before resident but unused memory is counted. A unit test counts at once.
const SETTLE: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 5 });

/// The time between two samples meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// Touches between two samples of the memory held.
const TOUCHES_A_LOOK: usize = 4096;

const PAGE_WORDS: usize = OS_PAGE / size_of::<u64>();

/// Figures of one pattern on one side, in bytes unless the name has another unit.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub faults: u64,
    pub table_bytes: u64,
    pub kernel_table_bytes: u64,
    /// All memory held for the buffer.
    pub resident: u64,
    /// Memory that the program touched and did not give back.
    pub touched: u64,
    pub first_touch_gib_s: Measured,
    /// The time of a load from a page drawn at random, each after the one before.
    pub random_load_ns: Measured,
    /// TLB misses in all those loads.
    pub tlb_misses: Option<u64>,
    /// Resident pages in an aligned run of 64 KiB of physical memory, in percent.
    pub contiguous_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_after_5s: Option<u64>,
    /// The peak of the memory held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<u64>,
}

/// The size of the rows.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub buffer: usize,
    /// Loads of a round.
    pub loads: usize,
}

/// All rows of one side, by pattern.
#[derive(Default)]
pub struct SideRows {
    rounds: BTreeMap<Pattern, Vec<Row>>,
}

/// The reasons for missing counters.
#[derive(Clone, Debug, Default)]
pub struct Missing {
    pub tlb_misses: Option<String>,
    pub contiguous_percent: Option<String>,
}

impl SideRows {
    /// Measures one round of one pattern.
    pub fn measure(
        &mut self,
        side: Side,
        pattern: Pattern,
        size: Size,
        counts: bool,
        missing: &mut Missing,
    ) -> anyhow::Result<()> {
        let row = measure(side, pattern, size, missing)?;
        if counts {
            self.rounds.entry(pattern).or_default().push(row);
        }
        Ok(())
    }

    /// The rows over all rounds; `None` before the first.
    pub fn finish(&self) -> Option<BTreeMap<&'static str, Row>> {
        let of = |(pattern, rounds): (&Pattern, &Vec<Row>)| {
            let first_touch_gib_s = middle_of(rounds, |row| row.first_touch_gib_s.median)?;
            let random_load_ns = middle_of(rounds, |row| row.random_load_ns.median)?;
            let row = Row { first_touch_gib_s, random_load_ns, ..rounds.last()?.clone() };
            Some((pattern.name(), row))
        };
        let rows: Option<BTreeMap<_, _>> = self.rounds.iter().map(of).collect();
        rows.filter(|rows| !rows.is_empty())
    }
}

fn measure(side: Side, pattern: Pattern, size: Size, missing: &mut Missing) -> anyhow::Result<Row> {
    let pages = pattern.pages(size.buffer / OS_PAGE);
    let mut buffer = Buffer::new(side, size.buffer)?;
    let begin = Instant::now();
    pages.iter().for_each(|page| buffer.memory.set_word(page * PAGE_WORDS, 1));
    let seconds = begin.elapsed().as_secs_f64();
    buffer.await_counts()?;
    let touched = buffer.held()?;
    let left: Vec<usize> = pages.iter().copied().filter(|page| is_left(pattern, *page)).collect();
    for (page, next) in cycle(&left) {
        buffer.memory.set_word(link(page), link(next) as u64);
    }
    take_back(&mut buffer, pattern)?;
    let held = buffer.held()?;
    // One untimed round: the links of the cycle get into the cache and the TLB.
    chase(&buffer, link(left[0]), left.len());
    let begin = Instant::now();
    let tlb_misses = match TlbMisses::of_this_thread() {
        Ok(mut misses) => Some(misses.count(|| chase(&buffer, link(left[0]), size.loads))?.1),
        Err(error) => {
            missing.tlb_misses = Some(format!("the processor's counters can't be had: {error}"));
            chase(&buffer, link(left[0]), size.loads);
            None
        }
    };
    let load_ns = begin.elapsed().as_secs_f64() * 1e9 / size.loads as f64;
    let contiguous_percent = match contiguous_bytes(buffer.memory.range(), BLOCK * OS_PAGE) {
        Ok(Some((present, contiguous))) => Some(round(100.0 * contiguous as f64 / present as f64)),
        Ok(None) => {
            missing.contiguous_percent = Some("the kernel shows frame numbers to root alone".to_owned());
            None
        }
        Err(error) => {
            missing.contiguous_percent = Some(format!("reading /proc/self/pagemap: {error}"));
            None
        }
    };
    let gib_s = pages.len() as f64 * OS_PAGE as f64 / (1u64 << 30) as f64 / seconds;
    Ok(Row {
        faults: touched.faults,
        table_bytes: held.table,
        kernel_table_bytes: held.kernel_table,
        resident: held.resident,
        touched: (left.len() * OS_PAGE) as u64,
        first_touch_gib_s: Measured::once(gib_s),
        random_load_ns: Measured::once(load_ns),
        tlb_misses,
        contiguous_percent,
        resident_after_5s: None,
        peak: None,
    })
}

fn is_left(pattern: Pattern, page: usize) -> bool {
    matches!(fate(pattern, page), Fate::Stays | Fate::ReadOnly)
}

/// Loads one word of a page after another.
fn chase(buffer: &Buffer, from: usize, loads: usize) -> usize {
    std::hint::black_box((0..loads).fold(from, |at, _| buffer.memory.word(at) as usize))
}

/// Discards, unmaps and protects the pages of the pattern.
fn take_back(buffer: &mut Buffer, pattern: Pattern) -> anyhow::Result<()> {
    for page in 0..buffer.memory.range().len() / OS_PAGE {
        match fate(pattern, page) {
            Fate::Stays => {}
            Fate::Discarded => buffer.memory.discard(page..page + 1)?,
            Fate::ReadOnly => buffer.memory.make_read_only(page..page + 1)?,
            Fate::Unmapped => buffer.memory.unmap(page..page + 1)?,
        }
    }
    Ok(())
}

/// Touches a sparse buffer of each side, waits, and returns the memory held by each then, and its
/// peak.
pub fn settle(
    sides: &[(&'static str, Side)],
    len: usize,
) -> anyhow::Result<BTreeMap<&'static str, (u64, u64)>> {
    let mut buffers = Vec::new();
    for (name, side) in sides {
        let mut buffer = Buffer::new(*side, len)?;
        let mut peak = 0;
        for pages in Pattern::Sparse16.pages(len / OS_PAGE).chunks(TOUCHES_A_LOOK) {
            pages.iter().for_each(|page| buffer.memory.set_word(page * PAGE_WORDS, content(*page)));
            peak = peak.max(buffer.held()?.resident);
        }
        buffers.push((*name, buffer, peak));
    }
    let begin = Instant::now();
    while begin.elapsed() < SETTLE {
        std::thread::sleep(LOOK);
        for (_, buffer, peak) in &mut buffers {
            *peak = (*peak).max(buffer.held()?.resident);
        }
    }
    let mut settled = BTreeMap::new();
    for (name, buffer, peak) in &buffers {
        settled.insert(*name, (buffer.held()?.resident, *peak));
        for page in Pattern::Sparse16.pages(len / OS_PAGE) {
            anyhow::ensure!(
                buffer.memory.word(page * PAGE_WORDS) == content(page),
                "wrong data: page {page}, {name}"
            );
        }
    }
    Ok(settled)
}

fn content(page: usize) -> u64 {
    mix(page as u64 ^ 0xabcd)
}

#[cfg(test)]
mod tests {
    use pagoda_linux::mem::plain_memory::Pages;

    use super::*;

    const SIZE: Size = Size { buffer: 4 << 20, loads: 1000 };

    #[test]
    fn small_pages_of_the_kernel_are_counted_one_by_one() {
        let mut rows = SideRows::default();
        for pattern in Pattern::ALL {
            let side = Side::Kernel(Pages::Small);
            rows.measure(side, pattern, SIZE, true, &mut Missing::default()).expect("measured");
        }
        let rows = rows.finish().expect("rows");
        let of = |name: &str| (rows[name].touched / 4096, rows[name].resident / 4096);
        assert_eq!((of("dense"), of("sparse16"), of("partial")), ((1024, 1024), (64, 64), (896, 896)));
        assert!(rows["dense"].faults >= 1024 && rows["sparse16"].faults < 512, "{rows:?}");
    }
}
