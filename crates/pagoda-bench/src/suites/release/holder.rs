//! The process that is killed: it fills memory as an owner of a trial does, reports that, and
//! waits.
//!
//! It must never know which side limits its memory. It ends with its standard input, so that it
//! never outlives the bench.

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

/// The content of the process.
#[derive(Args, Debug)]
pub struct HolderArgs {
    /// Bytes of memory.
    #[arg(long)]
    data: u64,
    #[arg(long)]
    base_page: BasePage,
    #[arg(long)]
    stored_percent: f64,
    /// The number of the owner, which decides the content.
    #[arg(long)]
    owner: u64,
    /// Leave out the pages that other sides store.
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
    // Zeroed memory of this size comes straight from mmap, untouched. It is aligned, so that a page
    // of ours is one of the manager's.
    let mut memory = vec![0u64; (count + in_base) * PAGE_WORDS];
    let skip = memory.as_ptr().align_offset(args.base_page.bytes());
    let (data, _) = memory[skip..].as_chunks_mut::<PAGE_WORDS>();
    // The pages to be stored come first: the kernel evicts the least recently used.
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
