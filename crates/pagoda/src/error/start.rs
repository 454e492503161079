//! Why the engine could not start, and what to do about it.
//!
//! Numbers are stable: a process leaves them in its counters for another one to read. None may ever
//! be used anew.

use std::fmt;

use super::{EMFILE, ENFILE, ENOMEM, Errno};
use crate::config::MINIMUM_BUDGET;
use crate::frames::zones::ZONES_MAX;

/// An error a row: its number, its name, the failed step or the fault, and the remedy.
macro_rules! start_errors {
    ($($(#[$doc:meta])* $code:literal $name:ident $(($type:ident $errno:ident))? $wrong:literal; $remedy:literal,)*) => {
        /// Why the engine could not start. The program has not run, or has run without a budget
        /// (`--best-effort`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum StartError {
            $($(#[$doc])* $name $(($type))?,)*
        }

        impl StartError {
            /// Its number in [`Counter::ErrorCode`](crate::stats::counters::Counter::ErrorCode): 1
            /// to 99, and never another one.
            #[must_use]
            pub const fn code(self) -> u64 {
                match self {
                    $(Self::$name { .. } => $code,)*
                }
            }

            /// The operating system's error number that came with it.
            #[must_use]
            pub const fn errno(self) -> Errno {
                match self {
                    $($(Self::$name($errno) => $errno,)?)*
                    _ => Errno::NONE,
                }
            }

            /// The error that has this number; `None` if this version has none such.
            #[must_use]
            pub const fn from_code(code: u64, errno: Errno) -> Option<Self> {
                Some(match code {
                    $($code => Self::$name $(({
                        let $errno = errno;
                        $errno
                    }))?,)*
                    _ => return None,
                })
            }

            fn write_wrong(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name { .. } => write!(f, $wrong),)*
                }
            }

            fn write_remedy(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name { .. } => write!(f, $remedy),)*
                }
            }
        }
    };
}

// 6 was a limit of mappings: the arenas are the first to meet it.
start_errors! {
    /// Neither the device nor the system call gave a userfaultfd.
    1 Userfaultfd(Errno errno)
        "could not get a userfaultfd, neither from /dev/userfaultfd nor by the system call";
        "`pagoda doctor` says how to allow it",
    /// The only userfaultfd to be had serves faults of user mode alone: system calls on evicted
    /// memory would fail.
    2 UserModeOnly
        "this user gets a userfaultfd for faults of user mode only, with which system calls on \
         evicted memory would fail";
        "`pagoda doctor` says how to allow the full one",
    /// The kernel has no `UFFDIO_MOVE`.
    3 MoveMissing
        "asked the kernel for UFFDIO_MOVE and it has none";
        "run Linux 6.8 or later, `pagoda doctor` says more",
    /// Something else that the engine asks of userfaultfd or of pagemap is missing.
    4 FeatureMissing(Errno errno)
        "asked the kernel for the userfaultfd events and pagemap scans that following a program \
         takes, and it refused";
        "`pagoda doctor` says which one is missing",
    /// The budget is below [`MINIMUM_BUDGET`].
    5 BudgetBelowMinimum
        "the budget is below {MINIMUM_BUDGET}, the least with which a program can be moved in and out";
        "give {MINIMUM_BUDGET} or more",
    /// The address space of the arenas could not be reserved.
    7 AddressSpace(Errno errno)
        "could not reserve the address space of the arenas";
        "raise or lift `ulimit -v`, and check vm.overcommit_memory and vm.max_map_count",
    /// No file descriptor was left.
    8 DescriptorLimit(Errno errno)
        "could not open a file descriptor for Pagoda";
        "raise `ulimit -n` by 16",
    /// The store directory took no file.
    9 StoreDirectory(Errno errno)
        "could not create a file in the store directory";
        "name one that can be written and has room",
    /// The store directory is in memory (tmpfs or ramfs).
    10 StoreDirectoryInMemory
        "the store directory is in memory itself (tmpfs), so nothing would be gained by storing \
         there";
        "name one on a disk",
    /// The store directory's file system does no direct I/O.
    11 StoreDirectIo(Errno errno)
        "the store directory's file system refused direct I/O";
        "name a directory on one that does it, like ext4, xfs or btrfs",
    /// The counters file could not be opened.
    12 CountersFile(Errno errno)
        "could not open the counters file that `pagoda run` made";
        "it has to stay until the program ends, readable by the user that the program runs as",
    /// `PAGODA_CONFIG` could not be read.
    13 Configuration
        "PAGODA_CONFIG could not be read";
        "use the pagoda command and the preload library of one version",
    /// A thread of the engine could not be started.
    14 Threads(Errno errno)
        "could not start the engine's threads";
        "raise `ulimit -u` or the pids limit by 16",
    /// `/proc/self` could not be read: statm, maps or pagemap.
    15 Proc(Errno errno)
        "could not read statm, maps or pagemap of /proc/self";
        "mount /proc in this container, and start before the process gives up its user",
    /// A function of the C library that the preload stands in for was not found.
    16 LibrarySymbol
        "a function of the C library was not found where the preload library looks for it";
        "only programs that use glibc can be managed",
    /// The remote store could not be reached, or did not answer as it should.
    17 RemoteStore(Errno errno)
        "the remote store can't be used";
        "check its address, user and password, and that it is running and reached from here",
    /// The remote store would not keep its pages, because it evicts; or it is a cluster, and a
    /// database was named.
    18 RemoteStoreUnfit
        "the remote store can't be used as it is: it evicts, or is a cluster, which has no \
         database but 0";
        "set its maxmemory-policy to noeviction, and name no database of a cluster",
    /// The handler of SIGBUS that serves faults in their own threads could not be installed.
    19 FaultSignal(Errno errno)
        "the kernel took no handler of SIGBUS, which serves faults in their own threads";
        "have handler threads serve them",
    /// The zones are not those of a budget.
    20 ZonesUnfit
        "the zones can't divide the budget";
        "name at most {ZONES_MAX}, each by a name of its own, at least one of them local, none of \
         less than 4 MiB, or 64 MiB with a base page of 2 MiB, and all of them together the budget",
    /// A zone's memory could not be bound to its node.
    21 ZoneNode(Errno errno)
        "a zone's memory can't be bound to its NUMA node";
        "name a node that this machine has and that has memory (/sys/devices/system/node), and \
         that this process may use",
    /// The file by which a library's manager is seen could not be made.
    22 Publish(Errno errno)
        "could not make the file by which the manager is seen";
        "set XDG_RUNTIME_DIR to a directory that can be written, or don't publish",
    /// The program has writable memory of a size that only the shadow memory of a sanitizer has.
    23 ShadowMemory
        "the program has over 1 TiB of writable memory from its start, as AddressSanitizer, \
         ThreadSanitizer and MemorySanitizer reserve for their tables, which the engine can't keep \
         account of";
        "use a build without -fsanitize=address, thread or memory, or run it without a budget",
    /// The kernel gave no random numbers for secret keys.
    24 RandomNumbers(Errno errno)
        "could not draw secret keys for what is stored";
        "let the filter of system calls pass getrandom(2)",
}

/// Says it for a managed program and for a library's manager alike, like
/// [`StopReason`](super::StopReason).
impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno() {
            Errno::NONE => {
                self.write_wrong(f)?;
                f.write_str("; ")?;
                self.write_remedy(f)
            }
            errno @ ENFILE => write!(
                f,
                "could not open a file descriptor for Pagoda ({errno}); raise the limit of the whole machine: \
                 sysctl -w fs.file-max=1048576"
            ),
            errno @ ENOMEM if matches!(self, Self::Threads(_)) => {
                write!(f, "could not get memory for Pagoda's threads ({errno}); raise or lift `ulimit -v`")
            }
            errno => {
                // Whatever it was that was to be opened: the remedy is the same.
                let error = if errno == EMFILE { Self::DescriptorLimit(errno) } else { *self };
                error.write_wrong(f)?;
                write!(f, " ({errno}); ")?;
                error.write_remedy(f)
            }
        }
    }
}

impl std::error::Error for StartError {}
