//! How much memory this process accounts for, where it shares some by a fork: the kernel's
//! proportional count, and an estimate between two of these.
//!
//! The proportional count walks the page tables, so it can't be taken every millisecond; and while
//! shared pages are written to, memory appears that the quick count has had all along. Between two
//! counts each fault may be one copied page. The copies of one page add up to the memory of all of
//! them, in any process's count, so that only the sharing of a process that has ended is known
//! late. It must never allocate or use thread-local storage: it runs in an engine thread.

use std::io;
use std::os::fd::OwnedFd;

use pagoda_core::page::OS_PAGE;
use rustix::fs::{Mode, OFlags};

use crate::process::caller::now_ns;
use crate::procfs::statm::{STATUS_BYTES, StatmReader, decimal, read_start};
use crate::procfs::usage::Usage;

/// Reads how much anonymous memory this process has, with pages shared with others counted in
/// parts.
pub struct PssReader {
    rollup: OwnedFd,
}

impl PssReader {
    /// Opens the file; see [`StatmReader::new`].
    ///
    /// # Errors
    /// As there; a kernel before 5.15 has no such count (`InvalidData` when it is read).
    pub fn new() -> io::Result<Self> {
        let rollup = rustix::fs::open(
            c"/proc/thread-self/smaps_rollup",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self { rollup })
    }

    /// Proportional anonymous memory in bytes (`Pss_Anon`). Takes some milliseconds a GiB, and
    /// keeps mappings from being changed meanwhile.
    ///
    /// # Errors
    /// Those of `pread`, or `InvalidData` if there is no such line.
    pub fn anon_bytes(&self) -> io::Result<usize> {
        let mut buffer = [0; STATUS_BYTES];
        let text = read_start(&self.rollup, &mut buffer)?;
        let line = |line: &[u8]| {
            let value = line.strip_prefix(b"Pss_Anon:")?;
            decimal(value.strip_suffix(b" kB")?.trim_ascii())?.checked_mul(1024)
        };
        Ok(text.split(|byte| *byte == b'\n').find_map(line).ok_or(io::ErrorKind::InvalidData)?)
    }
}

/// The longest time between two proportional counts.
const PROPORTIONAL_NS: u64 = 250_000_000;
/// The least part of the time that is left for all else.
const PROPORTIONAL_COST: u64 = 50;

/// Reads how much anonymous memory this process accounts for: the kernel's quick count, less the
/// part of shared pages that other processes account for.
pub struct AnonReader {
    quick: StatmReader,
    proportional: PssReader,
    /// The part of others at the last proportional count, and the faults of this process until
    /// then.
    others_bytes: usize,
    faults: u64,
    /// When that was, and how long it took.
    counted_ns: u64,
    cost_ns: u64,
}

impl AnonReader {
    /// Opens the files; see [`StatmReader::new`].
    ///
    /// # Errors
    /// As there.
    pub fn new() -> io::Result<Self> {
        let (quick, proportional) = (StatmReader::new()?, PssReader::new()?);
        Ok(Self { quick, proportional, others_bytes: 0, faults: 0, counted_ns: 0, cost_ns: 0 })
    }

    /// Resident anonymous memory in bytes, and the least of it that others account for: nothing as
    /// long as nothing is `shared`. Now and then it takes the proportional count, some milliseconds
    /// a GiB.
    ///
    /// # Errors
    /// As [`StatmReader::read`].
    pub fn read(&mut self, shared: bool) -> io::Result<(usize, usize)> {
        let resident = self.quick.anon_bytes()?;
        if !shared {
            return Ok((resident, 0));
        }
        let now = now_ns();
        let faults = Usage::of_this_process()?.minor_faults;
        let copied = (faults.saturating_sub(self.faults) as usize).saturating_mul(OS_PAGE);
        let others = self.others_bytes.saturating_sub(copied);
        let wait_ns = self.cost_ns * PROPORTIONAL_COST;
        let wait_ns = if others < self.others_bytes { wait_ns } else { wait_ns.max(PROPORTIONAL_NS) };
        if self.counted_ns != 0 && now < self.counted_ns + wait_ns {
            return Ok((resident, others.min(resident)));
        }
        // Without the count all of it is ours: too much is evicted then, not too little.
        let own = self.proportional.anon_bytes().unwrap_or(resident);
        (self.others_bytes, self.faults) = (resident.saturating_sub(own), faults);
        self.counted_ns = now_ns();
        self.cost_ns = self.counted_ns - now;
        Ok((resident, self.others_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unshared_memory_counts_in_full() {
        let memory = std::hint::black_box(vec![1u8; 8 << 20]);
        let proportional = PssReader::new().expect("a file").anon_bytes().expect("a count");
        assert!(proportional >= std::hint::black_box(&memory).len(), "{proportional}");
    }
}
