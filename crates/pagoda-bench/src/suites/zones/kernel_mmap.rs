//! The kernel's side of the streams: the same file, cold, by mmap(2), in a memory group as large as
//! the engine's budget.
//!
//! A process of its own reads it, because a process's page cache is charged to its group. The group
//! is removed with its processes, also after a signal that [`Cancel`] remembers. This module must
//! never read a file whose pages are cached already.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use pagoda_core::size::Bytes;
use pagoda_linux::io::file_mapping::FileMapping;
use pagoda_linux::swap::cgroup::{Controller, MemoryGroup};
use serde_json::{Value, json};

use super::content::Content;
use super::tiobench::{BLOCK_BYTES, mib_s};
use crate::kernel::own_name;
use crate::load::data::PAGE_BYTES;
use crate::measure::process::{self, Cancel};
use crate::measure::stats::middle;
use crate::worker;

/// The limit of one run: a disk that takes longer for the file is broken.
const LIMIT: Duration = Duration::from_secs(120);

/// The options of the streaming worker.
#[derive(Args, Debug)]
pub struct StreamArgs {
    /// The file, every page of which was written once.
    #[arg(long)]
    path: PathBuf,
    /// Pages of the file.
    #[arg(long)]
    pages: usize,
    /// Advise the kernel of sequential access.
    #[arg(long)]
    advised: bool,
    /// A `cgroup.procs` file to join first.
    #[arg(long)]
    join: Option<PathBuf>,
}

/// Runs the worker: reads the whole file once, in order, and checks every byte. Returns the
/// seconds.
pub fn stream(args: &StreamArgs) -> anyhow::Result<f64> {
    worker::join(args.join.as_deref())?;
    let content = Content::new(args.pages);
    let file = File::open(&args.path).with_context(|| format!("opening {}", args.path.display()))?;
    let len = args.pages * PAGE_BYTES;
    let mapping =
        FileMapping::cold(&file, len).with_context(|| format!("mapping {}", args.path.display()))?;
    if args.advised {
        mapping.expect_sequential().context("telling the kernel how it is read")?;
    }
    let mut block = vec![0; BLOCK_BYTES];
    let start = Instant::now();
    for offset in (0..len).step_by(BLOCK_BYTES) {
        let block = &mut block[..BLOCK_BYTES.min(len - offset)];
        mapping.read_at(offset, block);
        content.check(offset / PAGE_BYTES, block)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// The kernel as one side of rounds.
pub struct Side<'a> {
    /// The path of this program; `None` where the side is left out.
    program: Option<&'a str>,
    path: &'a Path,
    content: &'a Content,
    memory: Bytes,
    /// Rates of the rounds that count, and those after MADV_SEQUENTIAL.
    pub plain: Vec<f64>,
    pub advised: Vec<f64>,
    /// The reason why it takes no part, or no longer.
    reason: Option<String>,
}

impl<'a> Side<'a> {
    /// A side that streams the file at `path`, which holds `content` as made, in a group of
    /// `memory`.
    pub fn new(program: Option<&'a str>, path: &'a Path, content: &'a Content, memory: Bytes) -> Self {
        let reason = program.is_none().then(|| "left out".to_owned());
        Self { program, path, content, memory, plain: Vec::new(), advised: Vec::new(), reason }
    }

    /// Runs one round. A missing memory group is the result, and not tried again.
    pub fn round(&mut self, number: usize, counts: bool, cancel: &Cancel) -> anyhow::Result<()> {
        let Some(program) = self.program.filter(|_| self.reason.is_none()) else { return Ok(()) };
        let mut rates = [0.0; 2];
        // The side that runs first changes from round to round.
        for advised in if number.is_multiple_of(2) { [false, true] } else { [true, false] } {
            // A new group each time: its page cache stays charged to a group.
            let group = match group(self.memory) {
                Ok(group) => group,
                Err(error) => {
                    self.reason = Some(format!("{error:#}"));
                    return Ok(());
                }
            };
            rates[usize::from(advised)] = self.stream(program, &group, advised, cancel)?;
        }
        if counts {
            self.plain.push(rates[0]);
            self.advised.push(rates[1]);
        }
        Ok(())
    }

    fn stream(
        &self,
        program: &str,
        group: &MemoryGroup,
        advised: bool,
        cancel: &Cancel,
    ) -> anyhow::Result<f64> {
        let pages = self.content.pages().to_string();
        let (path, procs) = (self.path.display().to_string(), group.procs().display().to_string());
        let options = ["--path", &path, "--pages", &pages, "--join", &procs];
        let options = options.into_iter().chain(advised.then_some("--advised")).map(str::to_owned);
        let command: Vec<String> = worker::words(program, "file-stream").into_iter().chain(options).collect();
        let finished = process::run(&command, LIMIT, cancel, || ()).context("streaming by mmap")?;
        Ok(mib_s(self.content.pages() * PAGE_BYTES, finished.printed()?))
    }

    /// The figures of the side.
    pub fn finish(self) -> Value {
        let mut figures = json!({
            "seq_read_mib_s": middle(&self.plain), "seq_read_advised_mib_s": middle(&self.advised),
        });
        if let Some(reason) = self.reason {
            figures["reason"] = reason.into();
        }
        figures
    }
}

fn group(memory: Bytes) -> anyhow::Result<MemoryGroup> {
    Controller::find()
        .and_then(|controller| controller.create(&own_name(), memory.get()))
        .context("setting up a memory group (needs root and a mounted memory controller)")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_worker_reads_the_file_and_a_wrong_byte_is_an_error() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let content = Content::new(40);
        content.make(file.path()).expect("room");
        let args = |advised| StreamArgs { path: file.path().to_owned(), pages: 40, advised, join: None };
        for advised in [false, true] {
            assert!(stream(&args(advised)).expect("as it was made") > 0.0);
        }
        let mut bytes = fs::read(file.path()).expect("it is there");
        bytes[39 * PAGE_BYTES + 5] ^= 1;
        fs::write(file.path(), bytes).expect("room");
        assert!(stream(&args(false)).expect_err("a bit is wrong").to_string().contains("page 39"));
    }
}
