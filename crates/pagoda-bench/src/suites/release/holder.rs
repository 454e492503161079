//! The process that is killed: it fills memory as an owner of a trial does, says so, and waits.
//!
//! It knows nothing of who limits its memory. It ends with its standard input, so that it never outlives the bench.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use pagoda_core::page::BasePage;

use super::trial::{RATIO, is_stored};
use crate::load::data::{PAGE_BYTES, PAGE_WORDS, Pages};
use crate::worker;

/// What it holds.
#[derive(Args, Debug)]
pub struct HolderArgs {
    /// Bytes of memory.
    #[arg(long)]
    data: u64,
    #[arg(long)]
    base_page: BasePage,
    #[arg(long)]
    stored_percent: f64,
    /// Which owner's content.
    #[arg(long)]
    owner: u64,
    /// Leave out what others have stored.
    #[arg(long)]
    never_stored: bool,
    /// A `cgroup.procs` file to join first.
    #[arg(long)]
    join: Option<PathBuf>,
    /// The file to make when all is filled.
    #[arg(long)]
    ready: PathBuf,
}

/// Fills memory and waits.
pub fn run(args: &HolderArgs) -> anyhow::Result<ExitCode> {
    worker::join(args.join.as_deref())?;
    let pages = Pages::new(1, RATIO);
    let count = (args.data / PAGE_BYTES as u64) as usize;
    let in_base = args.base_page.bytes() / PAGE_BYTES;
    // Zeroed memory of this size comes straight from mmap, untouched. A page of ours is to be one of whoever manages it.
    let mut memory = vec![0u64; (count + in_base) * PAGE_WORDS];
    let skip = memory.as_ptr().align_offset(args.base_page.bytes());
    let (data, _) = memory[skip..].as_chunks_mut::<PAGE_WORDS>();
    // What is to be stored comes first: what was used the longest ago leaves first.
    for stored in [true, false] {
        if stored && args.never_stored {
            continue;
        }
        for page in (0..count).filter(|page| is_stored(page / in_base, args.stored_percent) == stored) {
            pages.write(args.owner * count as u64 + page as u64, 0, &mut data[page]);
        }
    }
    fs::write(&args.ready, []).with_context(|| format!("making {}", args.ready.display()))?;
    io::copy(&mut io::stdin(), &mut io::sink()).context("waiting for the end of the input")?;
    std::hint::black_box(&mut memory);
    Ok(ExitCode::SUCCESS)
}
