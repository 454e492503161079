//! Memory written at full speed, and the time until the process is within its budget again.
//!
//! The process rests meanwhile. It must never free memory itself: the pager has to.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;

use super::DataArgs;
use crate::load::data::PAGE_WORDS;
use crate::measure::memory::status_bytes;

/// The pause between two looks at its own size.
const LOOK: Duration = Duration::from_millis(1);

/// The limit: a process over its budget until then counts as never within it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The data to write, and the bound to reach.
#[derive(Args, Debug)]
pub struct BurstArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Anonymous bytes that it may hold afterwards.
    #[arg(long)]
    within: u64,
}

/// Writes the data once. Returns the milliseconds until all resident memory of the process is
/// within the bound. Fails if it never is.
pub fn burst(args: &BurstArgs) -> anyhow::Result<f64> {
    let pages = args.data.pages();
    let mut memory = vec![0u64; usize::try_from(args.data.bytes)? / size_of::<u64>()];
    let (data, _) = memory.as_chunks_mut::<PAGE_WORDS>();
    for (page, data) in (0..).zip(&mut *data) {
        pages.write(page, 1, data);
    }
    let written = Instant::now();
    while anonymous_bytes()? > args.within {
        if written.elapsed() > PATIENCE {
            bail!("{PATIENCE:?} after it was written there are {} bytes resident", anonymous_bytes()?);
        }
        std::thread::sleep(LOOK);
    }
    let took = written.elapsed();
    black_box(&memory);
    Ok(took.as_secs_f64() * 1e3)
}

fn anonymous_bytes() -> anyhow::Result<u64> {
    status_bytes("self", "RssAnon:").context("reading what is resident")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_within_its_bound_waits_for_nothing() {
        let args = BurstArgs { data: DataArgs { bytes: 1 << 20, ratio: 2.0, seed: 1 }, within: u64::MAX };
        assert!(burst(&args).expect("within") >= 0.0);
        assert!(anonymous_bytes().expect("read") > 0);
    }
}
