//! The effect of a buffer's size and density: mapping and touching by size, reading a file into a
//! fresh buffer, and the density from which on 64 KiB pays.
//!
//! This module must never compare two sides by different work: each opens, maps, touches and closes
//! the same.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use anyhow::{bail, ensure};
use pagoda::{Manager, Region};
use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::plain_memory::PlainMemory;
use serde::Serialize;

use super::buffer::{Buffer, Manner, Side};
use super::pattern::{BLOCK, some_of_each_block};
use crate::measure::stats::{median_of, round};

const PAGE_WORDS: usize = OS_PAGE / size_of::<u64>();

/// Pages touched of every 16.
const TOUCHED_OF_BLOCK: [usize; 9] = [1, 2, 3, 4, 6, 8, 10, 12, 16];

/// The piece in which a file is read.
const PIECE_BYTES: usize = 64 << 10;

/// Fresh memory, as a program would take it.
enum Fresh {
    Kernel(PlainMemory),
    Pagoda(Box<Region>),
}

impl Fresh {
    fn map(side: Side, manager: Option<&Manager>, len: usize) -> anyhow::Result<Self> {
        Ok(match (side, manager) {
            (_, Some(manager)) => Self::Pagoda(Box::new(manager.region(Bytes::new(len as u64)).create()?)),
            (Side::Kernel(pages), None) => Self::Kernel(PlainMemory::map(len, pages)?),
            (Side::Pagoda(_), None) => bail!("Pagoda's side has a manager"),
        })
    }
    fn words(&mut self) -> &mut [u64] {
        match self {
            Self::Kernel(memory) => memory.words_mut(),
            Self::Pagoda(region) => region.words_mut(),
        }
    }
}

/// The manager of Pagoda's sides, made before anything is mapped.
fn manager(side: Side, len: usize) -> anyhow::Result<Option<Manager>> {
    if let Side::Pagoda(manner) = side { manner.manager(len).map(Some) } else { Ok(None) }
}

/// Microseconds to map a buffer and touch each of its OS pages.
pub fn map_and_touch_us(side: Side, len: usize) -> anyhow::Result<f64> {
    let manager = manager(side, len)?;
    let begin = Instant::now();
    let mut fresh = Fresh::map(side, manager.as_ref(), len)?;
    fresh.words().iter_mut().step_by(PAGE_WORDS).for_each(|word| *word = 1);
    Ok(begin.elapsed().as_secs_f64() * 1e6)
}

/// The rate in GiB/s of opening a file, reading all of it into fresh memory, adding it up,
/// unmapping and closing.
pub fn open_to_close_gib_s(side: Side, path: &Path, len: usize, sum: u64) -> anyhow::Result<f64> {
    let manager = manager(side, len)?;
    let mut piece = vec![0; PIECE_BYTES];
    let begin = Instant::now();
    let mut file = File::open(path)?;
    let mut fresh = Fresh::map(side, manager.as_ref(), len)?;
    for into in fresh.words().chunks_mut(PIECE_BYTES / size_of::<u64>()) {
        file.read_exact(&mut piece)?;
        let (words, _) = piece.as_chunks::<8>();
        into.iter_mut().zip(words).for_each(|(into, word)| *into = u64::from_ne_bytes(*word));
    }
    let found = sum_of(fresh.words());
    drop(fresh);
    drop(file);
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(found == sum, "wrong data: the file's sum is {sum:x}, not {found:x}");
    Ok(len as f64 / (1u64 << 30) as f64 / seconds)
}

/// All words added up.
pub fn sum_of(words: &[u64]) -> u64 {
    words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word))
}

/// The time to touch a part of each 64 KiB for the first time, by base page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Density {
    /// The part of each 64 KiB that is touched.
    pub density: f64,
    pub us_per_64k_at_4k: f64,
    pub us_per_64k_at_64k: f64,
}

/// One round over all densities, in microseconds for each 64 KiB.
pub fn densities(len: usize) -> anyhow::Result<Vec<[f64; 2]>> {
    let mut all = Vec::new();
    for some in TOUCHED_OF_BLOCK {
        let mut both = [0.0; 2];
        for (us, base) in both.iter_mut().zip([BasePage::K4, BasePage::K64]) {
            let mut buffer = Buffer::new(Side::Pagoda(Manner::handlers(base)), len)?;
            let pages = some_of_each_block(len / OS_PAGE, some);
            let begin = Instant::now();
            pages.iter().for_each(|page| buffer.memory.set_word(page * PAGE_WORDS, 1));
            *us = begin.elapsed().as_secs_f64() * 1e6 / (len / OS_PAGE / BLOCK) as f64;
        }
        all.push(both);
    }
    Ok(all)
}

/// The medians over rounds.
pub fn density_medians(rounds: &[Vec<[f64; 2]>]) -> Vec<Density> {
    let of = |(at, some): (usize, usize)| {
        let us = |base: usize| median_of(rounds, |round| round[at][base]);
        Some(Density {
            density: some as f64 / BLOCK as f64,
            us_per_64k_at_4k: round(us(0)?),
            us_per_64k_at_64k: round(us(1)?),
        })
    };
    TOUCHED_OF_BLOCK.into_iter().enumerate().filter_map(of).collect()
}

/// The least density from which on 64 KiB take no longer than 4 KiB, interpolated linearly between
/// two measured ones. `None` if they always take longer.
pub fn break_even(densities: &[Density]) -> Option<f64> {
    let behind = |d: &Density| d.us_per_64k_at_64k - d.us_per_64k_at_4k;
    let last_behind = densities.iter().rposition(|d| behind(d) > 0.0);
    let Some(at) = last_behind else { return densities.first().map(|d| d.density) };
    let (low, high) = (&densities[at], densities.get(at + 1)?);
    let part = behind(low) / (behind(low) - behind(high));
    Some(low.density + part * (high.density - low.density))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn density(density: f64, at_4k: f64, at_64k: f64) -> Density {
        Density { density, us_per_64k_at_4k: at_4k, us_per_64k_at_64k: at_64k }
    }

    #[test]
    fn the_break_even_lies_where_the_lines_cross() {
        let crossing = [density(0.25, 10.0, 30.0), density(0.5, 40.0, 30.0), density(1.0, 80.0, 30.0)];
        assert_eq!(break_even(&crossing).map(round), Some(0.417));
        assert_eq!(break_even(&crossing[1..]), Some(0.5));
        assert_eq!((break_even(&crossing[..1]), break_even(&[])), (None, None));
    }

    #[test]
    fn medians_are_taken_for_each_density_and_base_page() {
        let round = |us: f64| vec![[us, 2.0 * us]; TOUCHED_OF_BLOCK.len()];
        let medians = density_medians(&[round(1.0), round(5.0), round(2.0)]);
        assert_eq!(medians.len(), TOUCHED_OF_BLOCK.len());
        assert_eq!(medians[0], density(0.0625, 2.0, 4.0));
    }
}
