//! Why the engine could not start, and what to do about it.
//!
//! Numbers are stable: a process leaves them in its counters for another one to read. None may ever
//! be used anew.

use std::fmt;

use super::{EMFILE, ENFILE, ENOMEM, Errno};
use crate::config::MINIMUM_BUDGET;
use crate::frames::zones::ZONES_MAX;

/// Why the engine could not start. The program has not run, or has run without a budget
/// (`--best-effort`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// Neither the device nor the system call gave a userfaultfd.
    Userfaultfd(Errno),
    /// The only userfaultfd to be had serves faults of user mode alone: system calls on evicted
    /// memory would fail.
    UserModeOnly,
    /// The kernel has no `UFFDIO_MOVE`.
    MoveMissing,
    /// Something else that the engine asks of userfaultfd or of pagemap is missing.
    FeatureMissing(Errno),
    /// The budget is below [`MINIMUM_BUDGET`].
    BudgetBelowMinimum,
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
    /// The remote store would not keep its pages, because it evicts; or it is a cluster, and a
    /// database was named.
    RemoteStoreUnfit,
    /// The handler of SIGBUS that serves faults in their own threads could not be installed.
    FaultSignal(Errno),
    /// The zones are not those of a budget.
    ZonesUnfit,
    /// A zone's memory could not be bound to its node.
    ZoneNode(Errno),
    /// The file by which a library's manager is seen could not be made.
    Publish(Errno),
    /// The program has writable memory of a size that only the shadow memory of a sanitizer has.
    ShadowMemory,
    /// The kernel gave no random numbers for secret keys.
    RandomNumbers(Errno),
}

impl StartError {
    /// Its number in [`Counter::ErrorCode`](crate::stats::counters::Counter::ErrorCode): 1 to 99,
    /// and never another one.
    #[must_use]
    pub const fn code(self) -> u64 {
        match self {
            Self::Userfaultfd(_) => 1,
            Self::UserModeOnly => 2,
            Self::MoveMissing => 3,
            Self::FeatureMissing(_) => 4,
            Self::BudgetBelowMinimum => 5,
            // 6 was a limit of mappings: the arenas are the first to meet it.
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
            Self::Publish(_) => 22,
            Self::ShadowMemory => 23,
            Self::RandomNumbers(_) => 24,
        }
    }

    /// The operating system's error number that came with it.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Userfaultfd(errno)
            | Self::FeatureMissing(errno)
            | Self::AddressSpace(errno)
            | Self::DescriptorLimit(errno)
            | Self::StoreDirectory(errno)
            | Self::StoreDirectIo(errno)
            | Self::CountersFile(errno)
            | Self::Threads(errno)
            | Self::Proc(errno)
            | Self::RemoteStore(errno)
            | Self::FaultSignal(errno)
            | Self::ZoneNode(errno)
            | Self::Publish(errno)
            | Self::RandomNumbers(errno) => errno,
            Self::UserModeOnly
            | Self::MoveMissing
            | Self::BudgetBelowMinimum
            | Self::StoreDirectoryInMemory
            | Self::Configuration
            | Self::LibrarySymbol
            | Self::RemoteStoreUnfit
            | Self::ZonesUnfit
            | Self::ShadowMemory => Errno::NONE,
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
            22 => Self::Publish(errno),
            23 => Self::ShadowMemory,
            24 => Self::RandomNumbers(errno),
            _ => return None,
        })
    }
}

/// Says it for a managed program and for a library's manager alike, like
/// [`StopReason`](super::StopReason).
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
            Self::AddressSpace(errno) => write!(
                f,
                "could not reserve the address space of the arenas ({errno}); raise or lift `ulimit -v`, \
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
                "could not get memory for the engine's threads ({errno}); raise or lift `ulimit -v`"
            ),
            Self::Threads(errno) => {
                write!(f, "could not start the engine's threads ({errno}); raise `ulimit -u` or the pids limit by 16")
            }
            Self::Proc(errno) => {
                write!(
                    f,
                    "could not read statm, maps or pagemap of /proc/self ({errno}); mount /proc in this container, and start \
                     before the process gives up its user"
                )
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
                "the remote store can't be used as it is: it evicts, or is a cluster, which has no database but 0; set its \
                 maxmemory-policy to noeviction, and name no database of a cluster",
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
            Self::ShadowMemory => f.write_str(
                "the program has over 1 TiB of writable memory from its start, as AddressSanitizer, ThreadSanitizer and \
                 MemorySanitizer reserve for their tables, which the engine can't keep account of; use a build without \
                 -fsanitize=address, thread or memory, or run it without a budget",
            ),
            Self::Publish(errno) => write!(
                f,
                "could not make the file by which the manager is seen ({errno}); set XDG_RUNTIME_DIR to a directory that can be \
                 written, or don't publish"
            ),
            Self::RandomNumbers(errno) => write!(
                f,
                "could not draw secret keys for what is stored ({errno}); let the filter of system calls pass getrandom(2)"
            ),
        }
    }
}

impl std::error::Error for StartError {}
