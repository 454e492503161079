//! Why the engine ended its process.
//!
//! Numbers are stable: a process leaves them in its counters for another one to read. None may ever
//! be used anew.

use std::fmt;

use super::{Errno, Immovable};

/// Why a managed process was ended: going on would have meant a hang or wrong data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Memory was needed, the store had reached its limit, and nothing could be evicted within the
    /// bounded wait.
    StoreFull,
    /// Memory was needed and the store's file or remote store could not be written: it is full,
    /// failed, or cut off.
    StoreWrite(Errno),
    /// Memory was needed, and no page could be evicted within the bounded wait.
    NothingEvictable(Immovable),
    /// A handler thread made no progress: the watchdog's verdict.
    HandlerStuck,
    /// Content came back from the store other than it went in.
    ContentCorrupt,
    /// Content could not be read back from the store.
    ContentUnreadable(Errno),
    /// The kernel refused to put content where a fault waits for it.
    FillRefused(Errno),
    /// The kernel's faults and events could not be read any more.
    EventsUnreadable(Errno),
    /// A thread of the engine met a state that should not be.
    EngineBroken,
    /// There was no memory for the engine's own tables: the process is at its limit of addresses or
    /// mappings.
    EngineMemory,
    /// There are more threads and robust mutexes than can be kept from being evicted.
    PinsFull,
    /// A forked process whose parent was killed before it had sent all swapped-out pages.
    ParentLost,
}

impl StopReason {
    /// Its number in [`Counter::ErrorCode`](crate::stats::counters::Counter::ErrorCode): 101 to
    /// 199, and never another one.
    #[must_use]
    pub const fn code(self) -> u64 {
        match self {
            Self::StoreFull => 101,
            Self::StoreWrite(_) => 102,
            Self::NothingEvictable(_) => 103,
            Self::HandlerStuck => 104,
            Self::ContentCorrupt => 105,
            Self::ContentUnreadable(_) => 106,
            Self::FillRefused(_) => 107,
            Self::EventsUnreadable(_) => 108,
            Self::EngineBroken => 110,
            Self::EngineMemory => 111,
            Self::PinsFull => 112,
            Self::ParentLost => 113,
        }
    }

    /// The operating system's error number that came with it.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::StoreWrite(errno)
            | Self::ContentUnreadable(errno)
            | Self::FillRefused(errno)
            | Self::EventsUnreadable(errno) => errno,
            Self::StoreFull
            | Self::NothingEvictable(_)
            | Self::HandlerStuck
            | Self::ContentCorrupt
            | Self::EngineBroken
            | Self::EngineMemory
            | Self::PinsFull
            | Self::ParentLost => Errno::NONE,
        }
    }

    /// The reason that has this number; `None` if this version has none such.
    #[must_use]
    pub const fn from_code(code: u64, errno: Errno) -> Option<Self> {
        Some(match code {
            101 => Self::StoreFull,
            102 => Self::StoreWrite(errno),
            103 => Self::NothingEvictable(Immovable::IN_USE),
            104 => Self::HandlerStuck,
            105 => Self::ContentCorrupt,
            106 => Self::ContentUnreadable(errno),
            107 => Self::FillRefused(errno),
            108 => Self::EventsUnreadable(errno),
            // 109 was a reason of older versions.
            110 => Self::EngineBroken,
            111 => Self::EngineMemory,
            112 => Self::PinsFull,
            113 => Self::ParentLost,
            _ => return None,
        })
    }
}

/// Says it for a managed program and for a library's manager alike: by the names of things, not of
/// the options or methods that set them.
impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoreFull => f.write_str(
                "memory was needed, the store was full and nothing could be evicted, so the process was ended; raise the \
                 budget, or the limit of the store's file (`ulimit -f` is one, too) if its disk has room for more",
            ),
            Self::StoreWrite(errno) => write!(
                f,
                "memory was needed and the store could not be written ({errno}), so the process was ended; make room in \
                 the store directory, check its disk, or name another directory, and check the remote store if there is one"
            ),
            Self::NothingEvictable(left) => write!(
                f,
                "memory was needed and nothing of what is in use can be moved out ({left}), so the process was ended; raise the budget"
            ),
            Self::HandlerStuck => f.write_str(
                "a fault handler made no progress, so the process was ended rather than left hanging; if the disk of \
                 the store directory is not stalled, please report this",
            ),
            Self::ContentCorrupt => f.write_str(
                "memory came back from the store other than it was stored, so the process was ended rather than given \
                 wrong data; check the store directory's disk, the remote store if there is one, and this machine's memory",
            ),
            Self::ContentUnreadable(errno) => write!(
                f,
                "memory could not be read back from the store ({errno}), so the process was ended rather than given \
                 wrong data; check the store directory's disk, and the remote store if there is one"
            ),
            Self::FillRefused(errno) => write!(
                f,
                "the kernel refused to put memory back where it was waited for ({errno}), so the process was ended; \
                 please report this with the kernel's version"
            ),
            Self::EventsUnreadable(errno) => write!(
                f,
                "the kernel's faults and events could not be read any more ({errno}), so the process was ended; raise \
                 `ulimit -Hn` if it has too few descriptors for a fork, and check that it does not close those it did not open"
            ),
            Self::EngineBroken => f.write_str(
                "Pagoda met a state that should not be, so the process was ended rather than given wrong data; \
                 please report this",
            ),
            Self::EngineMemory => f.write_str(
                "Pagoda could not get memory for its own tables, so the process was ended; raise or lift `ulimit -v`, \
                 or raise vm.max_map_count",
            ),
            Self::PinsFull => f.write_str(
                "it has more threads and robust mutexes than the 32,768 that can be kept in memory, so the process was ended; \
                 have it destroy the mutexes that it does not use, or start fewer threads",
            ),
            Self::ParentLost => f.write_str(
                "the process that forked it was killed before its child had all that was out of memory, so the child was \
                 ended rather than left to read zeroes; let a fork return before its process is killed",
            ),
        }
    }
}

impl std::error::Error for StopReason {}
