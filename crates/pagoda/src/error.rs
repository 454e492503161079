//! Why the engine could not start, and why it had to stop: what the counters file carries and people read.
//!
//! Each error is one small `Copy` value with a stable number, so that a process that is about to end can leave it
//! in its counters and `pagoda run` can say it in words afterwards. Showing one must never allocate, and must never
//! ask the C library for a message: the threads that show it have no C library state.

use std::fmt;

use crate::config::MINIMUM_BUDGET;
use crate::counters::Snapshot;
use crate::zones::ZONES_MAX;

/// The operating system's error number, 0 if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// No error number.
    pub const NONE: Self = Self(0);
}

const ENOMEM: Errno = Errno(12);
const ENFILE: Errno = Errno(23);
const EMFILE: Errno = Errno(24);

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    /// `EPERM: not permitted`; the numbers are those that Linux has on every machine Pagoda runs on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "no error number",
            1 => "EPERM: not permitted",
            2 => "ENOENT: no such file or directory",
            4 => "EINTR: interrupted",
            5 => "EIO: input/output error",
            9 => "EBADF: bad file descriptor",
            11 => "EAGAIN: resource temporarily unavailable",
            12 => "ENOMEM: out of memory",
            13 => "EACCES: permission denied",
            14 => "EFAULT: bad address",
            16 => "EBUSY: busy",
            17 => "EEXIST: exists already",
            19 => "ENODEV: no such device",
            20 => "ENOTDIR: not a directory",
            22 => "EINVAL: invalid argument",
            23 => "ENFILE: too many open files in the system",
            24 => "EMFILE: too many open files in the process",
            25 => "ENOTTY: unknown request",
            27 => "EFBIG: file too large",
            28 => "ENOSPC: no space left",
            30 => "EROFS: read-only file system",
            38 => "ENOSYS: not implemented",
            32 => "EPIPE: closed by the other side",
            61 => "ENODATA: not there any more",
            71 => "EPROTO: not what was asked for",
            95 => "EOPNOTSUPP: not supported",
            104 => "ECONNRESET: connection broken",
            110 => "ETIMEDOUT: no answer in time",
            111 => "ECONNREFUSED: nobody listens there",
            113 => "EHOSTUNREACH: host not reached",
            122 => "EDQUOT: quota exceeded",
            other => return write!(f, "error {other}"),
        })
    }
}

/// Why the engine could not start. The program has not run, or has run without a budget (`--best-effort`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// Neither the device nor the system call gave a userfaultfd.
    Userfaultfd(Errno),
    /// The only userfaultfd to be had serves faults of user mode alone: system calls on evicted memory would fail.
    UserModeOnly,
    /// The kernel has no `UFFDIO_MOVE`.
    MoveMissing,
    /// Something else that the engine asks of userfaultfd or of pagemap is missing.
    FeatureMissing(Errno),
    /// The budget is below [`MINIMUM_BUDGET`].
    BudgetBelowMinimum,
    /// The process may not have more mappings (`vm.max_map_count`).
    MappingLimit(Errno),
    /// The address space of the arenas could not be reserved.
    AddressSpace(Errno),
    /// No file descriptor was left.
    DescriptorLimit(Errno),
    /// The store directory took no file.
    StoreDirectory(Errno),
    /// The store directory is in memory (tmpfs or ramfs).
    StoreDirectoryInMemory,
    /// The store directory's file system does no direct I/O.
    StoreDirectIo(Errno),
    /// The counters file could not be opened.
    CountersFile(Errno),
    /// `PAGODA_CONFIG` could not be read.
    Configuration,
    /// A thread of the engine could not be started.
    Threads(Errno),
    /// `/proc/self` could not be read: statm, maps or pagemap.
    Proc(Errno),
    /// A function of the C library that the preload stands in for was not found.
    LibrarySymbol,
    /// The remote store could not be reached, or did not answer as it should.
    RemoteStore(Errno),
    /// The remote store would not keep what it is given: it evicts, or is a node of a cluster.
    RemoteStoreUnfit,
    /// The handler of SIGBUS that serves faults in their own threads could not be installed.
    FaultSignal(Errno),
    /// The zones are not those of a budget.
    ZonesUnfit,
    /// A zone's memory could not be bound to its node.
    ZoneNode(Errno),
}

impl StartError {
    /// Its number in [`Counter::ErrorCode`](crate::counters::Counter::ErrorCode): 1 to 99, and never another one.
    #[must_use]
    pub const fn code(self) -> u64 {
        match self {
            Self::Userfaultfd(_) => 1,
            Self::UserModeOnly => 2,
            Self::MoveMissing => 3,
            Self::FeatureMissing(_) => 4,
            Self::BudgetBelowMinimum => 5,
            Self::MappingLimit(_) => 6,
            Self::AddressSpace(_) => 7,
            Self::DescriptorLimit(_) => 8,
            Self::StoreDirectory(_) => 9,
            Self::StoreDirectoryInMemory => 10,
            Self::StoreDirectIo(_) => 11,
            Self::CountersFile(_) => 12,
            Self::Configuration => 13,
            Self::Threads(_) => 14,
            Self::Proc(_) => 15,
            Self::LibrarySymbol => 16,
            Self::RemoteStore(_) => 17,
            Self::RemoteStoreUnfit => 18,
            Self::FaultSignal(_) => 19,
            Self::ZonesUnfit => 20,
            Self::ZoneNode(_) => 21,
        }
    }

    /// The operating system's error number that came with it.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Userfaultfd(errno)
            | Self::FeatureMissing(errno)
            | Self::MappingLimit(errno)
            | Self::AddressSpace(errno)
            | Self::DescriptorLimit(errno)
            | Self::StoreDirectory(errno)
            | Self::StoreDirectIo(errno)
            | Self::CountersFile(errno)
            | Self::Threads(errno)
            | Self::Proc(errno)
            | Self::RemoteStore(errno)
            | Self::FaultSignal(errno)
            | Self::ZoneNode(errno) => errno,
            Self::UserModeOnly
            | Self::MoveMissing
            | Self::BudgetBelowMinimum
            | Self::StoreDirectoryInMemory
            | Self::Configuration
            | Self::LibrarySymbol
            | Self::RemoteStoreUnfit
            | Self::ZonesUnfit => Errno::NONE,
        }
    }

    /// The error that has this number; `None` if this version has none such.
    #[must_use]
    pub const fn from_code(code: u64, errno: Errno) -> Option<Self> {
        Some(match code {
            1 => Self::Userfaultfd(errno),
            2 => Self::UserModeOnly,
            3 => Self::MoveMissing,
            4 => Self::FeatureMissing(errno),
            5 => Self::BudgetBelowMinimum,
            6 => Self::MappingLimit(errno),
            7 => Self::AddressSpace(errno),
            8 => Self::DescriptorLimit(errno),
            9 => Self::StoreDirectory(errno),
            10 => Self::StoreDirectoryInMemory,
            11 => Self::StoreDirectIo(errno),
            12 => Self::CountersFile(errno),
            13 => Self::Configuration,
            14 => Self::Threads(errno),
            15 => Self::Proc(errno),
            16 => Self::LibrarySymbol,
            17 => Self::RemoteStore(errno),
            18 => Self::RemoteStoreUnfit,
            19 => Self::FaultSignal(errno),
            20 => Self::ZonesUnfit,
            21 => Self::ZoneNode(errno),
            _ => return None,
        })
    }
}

/// Says it for a managed program and for a library's manager alike, like [`StopReason`].
impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno() {
            // Whatever it was that was to be opened: the mend is the same.
            errno @ EMFILE => {
                return write!(
                    f,
                    "could not open a file descriptor for the engine ({errno}); raise `ulimit -n` by 16"
                );
            }
            errno @ ENFILE => {
                return write!(
                    f,
                    "could not open a file descriptor for the engine ({errno}); raise the limit of the whole machine: \
                     sysctl -w fs.file-max=1048576"
                );
            }
            _ => {}
        }
        match self {
            Self::Userfaultfd(errno) => write!(
                f,
                "could not get a userfaultfd, neither from /dev/userfaultfd nor by the system call ({errno}); \
                 `pagoda doctor` says how to allow it"
            ),
            Self::UserModeOnly => f.write_str(
                "this user gets a userfaultfd for faults of user mode only, with which system calls on evicted memory \
                 would fail; `pagoda doctor` says how to allow the full one",
            ),
            Self::MoveMissing => f.write_str(
                "asked the kernel for UFFDIO_MOVE and it has none; run Linux 6.8 or later, `pagoda doctor` says more",
            ),
            Self::FeatureMissing(errno) => write!(
                f,
                "asked the kernel for the userfaultfd events and pagemap scans that following a program takes, and it \
                 refused ({errno}); `pagoda doctor` says which one is missing"
            ),
            Self::BudgetBelowMinimum => {
                write!(f, "the budget is below the {MINIMUM_BUDGET} that the engine needs for itself; give it more")
            }
            Self::MappingLimit(errno) => write!(
                f,
                "a mapping for the engine was refused because the process has too many ({errno}); raise the limit: \
                 sysctl -w vm.max_map_count=1048576"
            ),
            Self::AddressSpace(errno) => write!(
                f,
                "could not reserve the address space of the arenas ({errno}); raise or lift `ulimit -v` and `ulimit -d`, \
                 and check vm.overcommit_memory and vm.max_map_count"
            ),
            Self::DescriptorLimit(errno) => {
                write!(f, "could not open a file descriptor for the engine ({errno}); raise `ulimit -n` by 16")
            }
            Self::StoreDirectory(errno) => write!(
                f,
                "could not create a file in the store directory ({errno}); name one that can be written and has room"
            ),
            Self::StoreDirectoryInMemory => f.write_str(
                "the store directory is in memory itself (tmpfs), so nothing would be gained by storing there; name one \
                 on a disk",
            ),
            Self::StoreDirectIo(errno) => write!(
                f,
                "the store directory's file system refused direct I/O ({errno}); name a directory on one that does it, \
                 like ext4, xfs or btrfs"
            ),
            Self::CountersFile(errno) => write!(
                f,
                "could not open the counters file that `pagoda run` made ({errno}); it has to stay until the program \
                 ends, readable by the user that the program runs as"
            ),
            Self::Configuration => f.write_str(
                "PAGODA_CONFIG could not be read; use the pagoda command and the preload library of one version",
            ),
            Self::Threads(errno @ ENOMEM) => write!(
                f,
                "could not get memory for the engine's threads ({errno}); raise or lift `ulimit -v` and `ulimit -d`"
            ),
            Self::Threads(errno) => {
                write!(f, "could not start the engine's threads ({errno}); raise `ulimit -u` or the pids limit by 16")
            }
            Self::Proc(errno) => {
                write!(f, "could not read statm, maps or pagemap of /proc/self ({errno}); mount /proc in this container")
            }
            Self::LibrarySymbol => f.write_str(
                "a function of the C library was not found where the preload library looks for it; only programs that \
                 use glibc can be managed",
            ),
            Self::RemoteStore(errno) => write!(
                f,
                "the remote store can't be used ({errno}); check its address, user and password, and that it is running \
                 and reached from here"
            ),
            Self::RemoteStoreUnfit => f.write_str(
                "the remote store would not keep what it is given: it evicts, or is a node of a cluster; name a single \
                 server whose maxmemory-policy is noeviction",
            ),
            Self::FaultSignal(errno) => write!(
                f,
                "the kernel took no handler of SIGBUS, which serves faults in their own threads ({errno}); have handler threads \
                 serve them"
            ),
            Self::ZonesUnfit => write!(
                f,
                "the zones can't divide the budget; name at most {ZONES_MAX}, each by a name of its own, at least one of them \
                 local, none of less than 4 MiB, or 64 MiB with a base page of 2 MiB, and all of them together the budget"
            ),
            Self::ZoneNode(errno) => write!(
                f,
                "a zone's memory can't be bound to its NUMA node ({errno}); name a node that this machine has and that has \
                 memory (/sys/devices/system/node), and that this process may use"
            ),
        }
    }
}

impl std::error::Error for StartError {}

/// Why a managed process was ended: going on would have meant a hang or wrong data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Memory was needed, the store had reached its limit, and nothing could be evicted within the bounded wait.
    StoreFull,
    /// Memory was needed and the store's file or remote store could not be written: it is full, failed, or cut off.
    StoreWrite(Errno),
    /// Memory was needed, and all of it was locked, pinned or otherwise not to be evicted, within the bounded wait.
    NothingEvictable,
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
    /// There was no memory for the engine's own tables: the process is at its limit of addresses or mappings.
    EngineMemory,
}

impl StopReason {
    /// Its number in [`Counter::ErrorCode`](crate::counters::Counter::ErrorCode): 101 to 199, and never another one.
    #[must_use]
    pub const fn code(self) -> u64 {
        match self {
            Self::StoreFull => 101,
            Self::StoreWrite(_) => 102,
            Self::NothingEvictable => 103,
            Self::HandlerStuck => 104,
            Self::ContentCorrupt => 105,
            Self::ContentUnreadable(_) => 106,
            Self::FillRefused(_) => 107,
            Self::EventsUnreadable(_) => 108,
            Self::EngineBroken => 110,
            Self::EngineMemory => 111,
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
            | Self::NothingEvictable
            | Self::HandlerStuck
            | Self::ContentCorrupt
            | Self::EngineBroken
            | Self::EngineMemory => Errno::NONE,
        }
    }

    /// The reason that has this number; `None` if this version has none such.
    #[must_use]
    pub const fn from_code(code: u64, errno: Errno) -> Option<Self> {
        Some(match code {
            101 => Self::StoreFull,
            102 => Self::StoreWrite(errno),
            103 => Self::NothingEvictable,
            104 => Self::HandlerStuck,
            105 => Self::ContentCorrupt,
            106 => Self::ContentUnreadable(errno),
            107 => Self::FillRefused(errno),
            108 => Self::EventsUnreadable(errno),
            // 109 was a reason of older versions.
            110 => Self::EngineBroken,
            111 => Self::EngineMemory,
            _ => return None,
        })
    }
}

/// Says it for a managed program and for a library's manager alike: by the names of things, not of the options or
/// methods that set them.
impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoreFull => f.write_str(
                "memory was needed, the store was full and nothing could be evicted, so the process was ended; raise the \
                 budget, or the limit of the store's file if its disk has room for more",
            ),
            Self::StoreWrite(errno) => write!(
                f,
                "memory was needed and the store could not be written ({errno}), so the process was ended; make room in \
                 the store directory, check its disk, or name another directory, and check the remote store if there is one"
            ),
            Self::NothingEvictable => f.write_str(
                "memory was needed and all that there is is locked, pinned or shared, so the process was ended; raise \
                 the budget",
            ),
            Self::HandlerStuck => f.write_str(
                "a fault handler made no progress, so the process was ended rather than left hanging; if the disk of \
                 the store directory is not stalled, please report this",
            ),
            Self::ContentCorrupt => f.write_str(
                "memory came back from the store other than it was stored, so the process was ended rather than given \
                 wrong data; check the store directory's disk and this machine's memory",
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
                "the kernel's faults and events could not be read any more ({errno}), so the process was ended; check \
                 that it does not close file descriptors it did not open"
            ),
            Self::EngineBroken => f.write_str(
                "the engine met a state that should not be, so the process was ended rather than given wrong data; \
                 please report this",
            ),
            Self::EngineMemory => f.write_str(
                "the engine could not get memory for its own tables, so the process was ended; raise or lift `ulimit -v` \
                 and `ulimit -d`, or raise vm.max_map_count",
            ),
        }
    }
}

impl std::error::Error for StopReason {}

/// What a counters file says went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The engine did not start.
    Start(StartError),
    /// The engine ended the process.
    Stop(StopReason),
    /// A number that this version does not know.
    Unknown {
        /// The number.
        code: u64,
        /// The operating system's error number that came with it.
        errno: Errno,
    },
}

impl Failure {
    /// Reads what went wrong from a process's counters; `None` if nothing did.
    #[must_use]
    pub fn from_snapshot(counters: &Snapshot) -> Option<Self> {
        let errno = Errno(i32::try_from(counters.error_errno).unwrap_or(0));
        let code = counters.error_code;
        if code == 0 {
            return None;
        }
        let start = StartError::from_code(code, errno).map(Self::Start);
        let stop = || StopReason::from_code(code, errno).map(Self::Stop);
        Some(start.or_else(stop).unwrap_or(Self::Unknown { code, errno }))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => error.fmt(f),
            Self::Stop(reason) => reason.fmt(f),
            Self::Unknown { code, errno } => write!(
                f,
                "the engine stopped for reason {code} ({errno}), which this pagoda does not know; use the command and \
                 the preload library of one version"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_reads_back_as_the_error_that_has_it() {
        let errno = Errno(28);
        let starts: Vec<_> =
            (1..100).filter_map(|code| Some((code, StartError::from_code(code, errno)?))).collect();
        let stops: Vec<_> =
            (101..200).filter_map(|code| Some((code, StopReason::from_code(code, errno)?))).collect();
        assert_eq!((starts.len(), stops.len()), (21, 10));
        for (code, error) in starts {
            assert_eq!(error.code(), code);
            assert!(error.errno() == errno || error.errno() == Errno::NONE);
        }
        for (code, reason) in stops {
            assert_eq!(reason.code(), code);
            assert!(reason.errno() == errno || reason.errno() == Errno::NONE);
        }
    }

    #[test]
    fn a_message_is_one_line_and_says_what_to_do() {
        let failures =
            (1..200).map(|code| Snapshot { error_code: code, error_errno: 28, ..Snapshot::default() });
        for failure in failures.filter_map(|counters| Failure::from_snapshot(&counters)) {
            let text = failure.to_string();
            assert!(!text.contains('\n') && text.contains(';'), "{text}");
            assert!(!text.ends_with('.') && !text.contains("  "), "{text}");
        }
    }

    #[test]
    fn who_is_out_of_descriptors_or_addresses_is_told_the_limit_that_is_reached() {
        let said = |code, errno| StartError::from_code(code, errno).expect("a code in use").to_string();
        // Opening userfaultfd, the store's file, the counters and /proc.
        for code in [1, 9, 12, 15] {
            assert!(said(code, EMFILE).contains("ulimit -n"), "{}", said(code, EMFILE));
            assert!(said(code, ENFILE).contains("fs.file-max"), "{}", said(code, ENFILE));
        }
        assert!(said(14, ENOMEM).contains("ulimit -v") && said(14, Errno(11)).contains("ulimit -u"));
    }

    #[test]
    fn a_message_is_right_for_a_library_too() {
        let codes = 1..200;
        for failure in codes.filter_map(|error_code| {
            Failure::from_snapshot(&Snapshot { error_code, error_errno: 28, ..Snapshot::default() })
        }) {
            let text = failure.to_string();
            assert!(!text.contains(" --") && !text.contains("program was ended"), "{text}");
        }
    }

    #[test]
    fn no_number_is_no_failure_and_a_strange_one_is_said_so() {
        assert_eq!(Failure::from_snapshot(&Snapshot::default()), None);
        let strange = Snapshot { error_code: 4242, ..Snapshot::default() };
        assert_eq!(
            Failure::from_snapshot(&strange),
            Some(Failure::Unknown { code: 4242, errno: Errno::NONE })
        );
    }
}
