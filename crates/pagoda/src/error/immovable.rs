//! The kinds of memory that could not be evicted when memory was needed.
//!
//! The counters say how much is left alone for each reason. The largest part gives its name, and
//! its size is told with it. Memory that no reason explains was found in use when it was tried.
//! This module must never name a reason that no byte has.

use std::fmt;

use pagoda_core::size::Bytes;

use crate::stats::counters::Stats;

/// Why most of the memory that is left can't be moved out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// It can't be written (`PROT_READ`, `PROT_NONE`): the kernel moves nothing out of it.
    Unwritable,
    /// It may be executed: the kernel moves nothing out of it.
    Executable,
    /// It is locked (mlock(2)).
    Locked,
    /// The program keeps it out of its children.
    Unforked,
    /// The program registered it with userfaultfd itself.
    Registered,
    /// Control blocks of threads and robust mutexes lie in it.
    Threads,
    /// Its mappings are too small, or too new, to be managed.
    Small,
    /// It is in use, as its moves told: locked in more pieces than are looked at, pinned by a
    /// device or by the kernel, or shared with a forked process.
    InUse,
}

/// The kind of most of the memory that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Immovable {
    /// Why it can't be moved out.
    pub obstacle: Obstacle,
    /// How much of it is so. 0 where that is not known.
    pub size: Bytes,
}

impl Immovable {
    /// No reason has left memory alone: all of it was in use when it was tried.
    pub const IN_USE: Self = Self { obstacle: Obstacle::InUse, size: Bytes::ZERO };

    /// By the memory that the counters have as left alone.
    #[must_use]
    pub fn of(counters: &Stats) -> Self {
        let left = [
            (Obstacle::Unwritable, counters.left_readonly_bytes),
            (Obstacle::Executable, counters.left_executable_bytes),
            (Obstacle::Locked, counters.left_locked_bytes),
            (Obstacle::Unforked, counters.left_unforked_bytes),
            (Obstacle::Registered, counters.left_registered_bytes),
            (Obstacle::Threads, counters.left_thread_bytes),
            (Obstacle::Small, counters.left_small_bytes),
        ];
        let named: u64 = left.iter().map(|(_, bytes)| bytes).sum();
        let in_use = counters.anon_bytes.saturating_sub(counters.own_bytes + named);
        let most = left.into_iter().max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes > 0);
        match most {
            Some((obstacle, bytes)) if bytes >= in_use => Self { obstacle, size: Bytes::new(bytes) },
            _ => Self { obstacle: Obstacle::InUse, size: Bytes::new(in_use) },
        }
    }
}

impl fmt::Display for Immovable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.size > Bytes::ZERO {
            write!(f, "{} of it ", self.size)?;
        } else {
            f.write_str("it ")?;
        }
        f.write_str(match self.obstacle {
            Obstacle::Unwritable => "can't be written (read-only or PROT_NONE)",
            Obstacle::Executable => "is executable",
            Obstacle::Locked => "is locked (mlock)",
            Obstacle::Unforked => "is kept out of forked children (MADV_DONTFORK)",
            Obstacle::Registered => "is registered with the program's own userfaultfd",
            Obstacle::Threads => "has control blocks of threads or robust mutexes in it",
            Obstacle::Small => "is in mappings too small or too new to be managed",
            Obstacle::InUse => {
                "is locked in many pieces, pinned by a device or the kernel, or shared with a forked process"
            }
        })
    }
}
