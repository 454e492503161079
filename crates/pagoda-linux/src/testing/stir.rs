//! The kernel's own treatment of pages, all the time: it moves them to other frames, and swaps them
//! out.
//!
//! Neither changes a byte, but while it lasts the page tables show no page where there is one. This
//! module must leave the machine as it was: the swap that it adds goes with it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::mem::range::PageRange;
use crate::procfs::maps::MapsReader;
use crate::swap::swapfile::Label;
use crate::swap::zram::{self, Setup, ZramSwap};
use crate::testing::skip::skip;

const COMPACT: &str = "/proc/sys/vm/compact_memory";
const LABEL: &str = "pagoda-test";
/// More than any test has.
const SWAP_BYTES: u64 = 1 << 30;
/// The pause between two passes, so that the program makes progress, too.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs `run` while it is stirred; says that `what` is not tested where that can't be.
///
/// # Panics
/// If it was not stirred once meanwhile, or may not be skipped.
pub fn while_stirred(what: &str, stir: io::Result<Stir>, run: impl FnOnce()) {
    match stir {
        Ok(stir) => {
            run();
            assert!(stir.goes() > 0, "the kernel has done nothing: {what}");
        }
        Err(error) => skip(what, error),
    }
}

/// A thread that does it again and again until this is dropped.
#[derive(Debug)]
pub struct Stir {
    done: Arc<AtomicBool>,
    goes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    _swap: Option<ZramSwap>,
}

impl Stir {
    /// Moves pages to other frames: all of the machine's memory is compacted.
    ///
    /// # Errors
    /// The kernel's, for a caller that is not root, say.
    pub fn by_compaction() -> io::Result<Self> {
        std::fs::write(COMPACT, "1")?;
        Self::start(None, || std::fs::write(COMPACT, "1").is_ok())
    }

    /// Swaps out all anonymous memory of this process, to a swap device of its own.
    ///
    /// # Errors
    /// The kernel's, for a caller that is not root, say.
    pub fn by_swapping() -> io::Result<Self> {
        let label = Label::new(LABEL);
        // The leftovers of an earlier run that was killed.
        zram::remove_where(label, |owner| !Path::new(&format!("/proc/{owner}")).exists())?;
        let swap =
            ZramSwap::create(Setup { disk_bytes: SWAP_BYTES, memory_bytes_max: None, label, priority: 1 })?;
        let mut maps = MapsReader::new(64 << 10)?;
        let mut ranges = Vec::new();
        Self::start(Some(swap), move || {
            ranges.clear();
            let _ = maps.for_each(|mapping| {
                if mapping.is_private_anonymous() && mapping.read && mapping.write {
                    ranges.extend(PageRange::new(mapping.start, mapping.end));
                }
            });
            for range in &ranges {
                let at = std::ptr::with_exposed_provenance_mut(range.start());
                // SAFETY: the advice changes no content of any memory. Unmapped memory is refused.
                let _ = unsafe { libc::madvise(at, range.len(), libc::MADV_PAGEOUT) };
            }
            swapped_bytes().is_some_and(|bytes| bytes > 0)
        })
    }

    /// `stir` says whether the kernel did it.
    fn start(swap: Option<ZramSwap>, mut stir: impl FnMut() -> bool + Send + 'static) -> io::Result<Self> {
        let (done, goes) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (ends, counts) = (Arc::clone(&done), Arc::clone(&goes));
        let run = move || {
            while !ends.load(Ordering::Acquire) {
                counts.fetch_add(u64::from(stir()), Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
        };
        let thread = Some(thread::Builder::new().name("stir".to_owned()).spawn(run)?);
        Ok(Self { done, goes, thread, _swap: swap })
    }

    /// How often it has gone over all of it, and the kernel has done something.
    #[must_use]
    pub fn goes(&self) -> u64 {
        self.goes.load(Ordering::Relaxed)
    }
}

/// The bytes of this process in swap, on any device: ours may not be the first.
fn swapped_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmSwap:"))?.strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

impl Drop for Stir {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It can't have failed: refusals of the kernel are passed over.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::wait::until;

    #[test]
    #[should_panic(expected = "the kernel has done nothing: a test")]
    fn a_refusal_of_the_kernel_does_not_count() {
        let tries = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&tries);
        let stir = Stir::start(None, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            false
        });
        while_stirred("a test", stir, || until("a second try", || tries.load(Ordering::Relaxed) > 1));
    }
}
