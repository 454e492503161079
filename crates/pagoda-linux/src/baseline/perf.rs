//! The processor's own counters, for the thread that makes them: they explain a benchmark's times.
//!
//! Many virtual machines have none, and a system may keep them from its users. That is a reason to
//! report, never a figure: this module must not answer with counts that were not counted.

use std::io;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware};
use perf_event::{Builder, Counter, Group};

/// Four hardware counters of one thread, user mode only, off at first.
pub struct HardwareCounters {
    group: Group,
    cycles: Counter,
    instructions: Counter,
    cache_references: Counter,
    cache_misses: Counter,
}

/// The counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Processor cycles.
    pub cycles: u64,
    /// Instructions that ended.
    pub instructions: u64,
    /// Accesses to a cache: which one is the processor's choice, mostly the last level.
    pub cache_references: u64,
    /// Those of them that missed it.
    pub cache_misses: u64,
}

impl HardwareCounters {
    /// Counters of the calling thread.
    ///
    /// # Errors
    /// `ENOENT` or `EOPNOTSUPP` where there is no such counter (in most virtual machines), `EACCES`
    /// or `EPERM` where `/proc/sys/kernel/perf_event_paranoid` or a filter does not allow it.
    pub fn of_this_thread() -> io::Result<Self> {
        let mut group = Group::new()?;
        let mut add = |event| group.add(&Builder::new(event));
        Ok(Self {
            cycles: add(Hardware::CPU_CYCLES)?,
            instructions: add(Hardware::INSTRUCTIONS)?,
            cache_references: add(Hardware::CACHE_REFERENCES)?,
            cache_misses: add(Hardware::CACHE_MISSES)?,
            group,
        })
    }

    /// Counts `work`, on top of earlier counts. Costs two system calls.
    ///
    /// # Errors
    /// The kernel's, for switching them on or off.
    pub fn count<T>(&mut self, work: impl FnOnce() -> T) -> io::Result<T> {
        self.group.enable()?;
        let result = work();
        self.group.disable()?;
        Ok(result)
    }

    /// The counts so far. `None` if the counters were never on the processor, being in use
    /// elsewhere.
    ///
    /// # Errors
    /// Those of reading them.
    pub fn read(&mut self) -> io::Result<Option<Counts>> {
        let counted = self.group.read()?;
        if counted.time_running().is_none_or(|running| running.is_zero()) {
            return Ok(None);
        }
        Ok(Some(Counts {
            cycles: counted[&self.cycles],
            instructions: counted[&self.instructions],
            cache_references: counted[&self.cache_references],
            cache_misses: counted[&self.cache_misses],
        }))
    }
}

/// Loads of one thread, user mode only, whose translation was not in the data TLB; off at first.
pub struct TlbMisses(Counter);

impl TlbMisses {
    /// A counter of the calling thread.
    ///
    /// # Errors
    /// As [`HardwareCounters::of_this_thread`].
    pub fn of_this_thread() -> io::Result<Self> {
        let event = Cache { which: CacheId::DTLB, operation: CacheOp::READ, result: CacheResult::MISS };
        Builder::new(event).build().map(Self)
    }

    /// How many `work` had. Costs three system calls.
    ///
    /// # Errors
    /// The kernel's, for switching it on or off, and for reading it.
    pub fn count<T>(&mut self, work: impl FnOnce() -> T) -> io::Result<(T, u64)> {
        self.0.reset()?;
        self.0.enable()?;
        let result = work();
        self.0.disable()?;
        Ok((result, self.0.read()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_where_the_processor_lets_us() {
        let mut counters = match HardwareCounters::of_this_thread() {
            Ok(counters) => counters,
            // As on most virtual machines: then it has to be one of the reasons that are
            // documented.
            Err(error) => {
                let documented = [libc::ENOENT, libc::EOPNOTSUPP, libc::EACCES, libc::EPERM];
                return assert!(
                    error.raw_os_error().is_some_and(|errno| documented.contains(&errno)),
                    "{error}"
                );
            }
        };
        let sum =
            counters.count(|| (0..100_000_u64).map(std::hint::black_box).sum::<u64>()).expect("counted");
        assert_eq!(sum, 4_999_950_000);
        if let Some(counts) = counters.read().expect("read") {
            assert!(counts.instructions >= 100_000 && counts.cycles > 0, "{counts:?}");
            assert!(counts.cache_misses <= counts.cache_references, "{counts:?}");
        }
    }
}
