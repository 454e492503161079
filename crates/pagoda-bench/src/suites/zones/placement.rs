//! A hot set in a slow zone, and cold pages in the fast one: how soon they change places.
//!
//! A region fills a local zone with pages that are not touched again, and then a remote one, of
//! whose pages a part is read again and again, in a random order. Each read is compared with what
//! was written. The rate of reads beside the moves is that of the same program with a manager that
//! moves nothing, in turn. On a machine with one kind of memory no read is faster for its zone.

use std::time::{Duration, Instant};

use anyhow::ensure;
use pagoda::frames::zones::Place;
use pagoda::{Bytes, Manager, Region};
use serde_json::{Value, json};

use crate::measure::stats::{median, round};

const MIB: usize = 1 << 20;
const OS_PAGE: usize = 4096;
/// Reads between two looks at the clock.
const READS: usize = 256;

/// The sizes of a run, in MiB.
struct Sizes {
    fast: u64,
    slow: u64,
    cold: usize,
    hot: usize,
}

/// The outcome of one manager.
struct Outcome {
    /// The percentage of the hot set in the fast zone after so many seconds.
    hot_in_fast: Vec<f64>,
    cold_in_fast_bytes: u64,
    moved_pages: u64,
    sampled_pages: u64,
    reads_per_second: f64,
}

/// The figures of the row; `None` where this machine has no managers.
pub(super) fn run(quick: bool, rounds: usize) -> anyhow::Result<Option<Value>> {
    if !pagoda::userfaultfd_allows_managers() {
        return Ok(None);
    }
    let sizes = match quick {
        true => Sizes { fast: 32, slow: 96, cold: 30, hot: 24 },
        false => Sizes { fast: 64, slow: 192, cold: 62, hot: 48 },
    };
    let (mut ratios, mut outcomes) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let stays = play(&sizes, false)?;
        let moves = play(&sizes, true)?;
        ratios.push(stays.reads_per_second / moves.reads_per_second);
        outcomes.push((moves, stays));
    }
    // The least of all rounds.
    let after = |second: usize| {
        let percent = outcomes.iter().map(|(moves, _)| moves.hot_in_fast[second]);
        round(percent.fold(f64::INFINITY, f64::min))
    };
    let (moves, stays) = outcomes.last().expect("a round at least");
    Ok(Some(json!({
        "hot_in_fast_percent": { "0s": after(0), "1s": after(1), "2s": after(2) },
        "unmoved_hot_in_fast_percent": round(stays.hot_in_fast[2]),
        "moved_pages": moves.moved_pages,
        "sampled_pages": moves.sampled_pages,
        "slowdown_while_moving": median(&ratios).map(round),
        "cold_in_fast_bytes": moves.cold_in_fast_bytes,
        "hot_bytes": sizes.hot * MIB,
        "zones_bytes": [sizes.fast << 20, sizes.slow << 20],
    })))
}

/// Fills the zones, and reads the hot set for two seconds.
fn play(sizes: &Sizes, tiering: bool) -> anyhow::Result<Outcome> {
    let manager = Manager::builder()
        .user_mode_only(true)
        .zone("fast", Bytes::mib(sizes.fast), Place::Local)
        .zone("slow", Bytes::mib(sizes.slow), Place::Remote)
        .tune(|tuning| tuning.tiering(tiering))
        .build()?;
    let mut region = manager.region(Bytes::mib((sizes.cold + 4 + sizes.hot) as u64)).create()?;
    let hot = region.len() - sizes.hot * MIB;
    for offset in (0..region.len()).step_by(OS_PAGE) {
        region.write_at(offset, &word(offset))?;
    }
    let fast = |region: &Region, from: usize, len: usize| region.zones(from, len)[0].1.get();
    let percent =
        |region: &Region| 100.0 * fast(region, hot, sizes.hot * MIB) as f64 / (sizes.hot * MIB) as f64;
    let mut hot_in_fast = vec![percent(&region)];
    let (start, mut reads, mut at) = (Instant::now(), 0u64, 1u64);
    while hot_in_fast.len() < 3 {
        for _ in 0..READS {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = hot + (at >> 33) as usize % (sizes.hot * MIB / OS_PAGE) * OS_PAGE;
            let mut back = [0; 8];
            region.read_at(offset, &mut back)?;
            ensure!(back == word(offset), "the page at {offset} reads other than it was written");
        }
        reads += READS as u64;
        if start.elapsed() >= Duration::from_secs(hot_in_fast.len() as u64) {
            hot_in_fast.push(percent(&region));
        }
    }
    let reads_per_second = reads as f64 / start.elapsed().as_secs_f64();
    for offset in (0..region.len()).step_by(OS_PAGE) {
        let mut back = [0; 8];
        region.read_at(offset, &mut back)?;
        ensure!(back == word(offset), "the page at {offset} reads other than it was written");
    }
    let stats = manager.stats();
    let moved = stats.zones_promoted_bytes + stats.zones_demoted_bytes;
    Ok(Outcome {
        hot_in_fast,
        cold_in_fast_bytes: fast(&region, 0, sizes.cold * MIB),
        moved_pages: moved / stats.base_page_bytes,
        sampled_pages: stats.zones_sampled,
        reads_per_second,
    })
}

/// The word written to the page at `offset`.
fn word(offset: usize) -> [u8; 8] {
    (offset as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}
