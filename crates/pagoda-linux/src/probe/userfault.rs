//! The ways to a userfaultfd: which are open, why the others are not, and the working features of a
//! descriptor.
//!
//! Its calls are its own, apart from the engine's wrapper: the probe must work, and say why, where
//! the engine's assumptions do not hold. It must never read memory that a failed move left missing:
//! no thread would serve the fault.

use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as raw;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};
use rustix::mm::{Advice, MapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap_anonymous, munmap};

use super::feature::{Feature, Features};
use crate::raw_syscall::syscall3;

const GROUP: u8 = raw::UFFDIO as u8;
const USERFAULTFD_IOC_NEW: Opcode = opcode::none(GROUP, 0);
const UFFDIO_API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, raw::_UFFDIO_API as u8);
const UFFDIO_REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(GROUP, raw::_UFFDIO_REGISTER as u8);
const UFFDIO_MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(GROUP, raw::_UFFDIO_MOVE as u8);

/// The size of a trial move: the default base page.
const TRIAL_BYTES: usize = 64 << 10;

/// A way to a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Opening `/dev/userfaultfd`, which the permissions of the file govern.
    Device,
    /// The system call, for faults of user and kernel mode: needs privilege, unless a sysctl gives
    /// it to all users.
    SystemCall,
    /// The system call for faults of user mode only: open to all users, but a system call that
    /// touches missing memory gets `EFAULT`, so that no unmodified program can run on it.
    UserModeOnly,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Device => "/dev/userfaultfd",
            Self::SystemCall => "the userfaultfd system call",
            Self::UserModeOnly => "the userfaultfd system call, user mode only",
        })
    }
}

/// Why a way is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such file: a kernel before 6.1, or a container that was not given the device.
    #[error("there is no /dev/userfaultfd")]
    NoDevice,
    /// The file is there, its permissions say no.
    #[error("/dev/userfaultfd may not be opened by this user")]
    DevicePermissions,
    /// The file may not be opened even by its permissions, or is no userfaultfd: a container's
    /// device rules.
    #[error("/dev/userfaultfd is blocked or replaced by the container ({0})")]
    DeviceBlocked(Errno),
    /// Neither `CAP_SYS_PTRACE` nor `vm.unprivileged_userfaultfd=1`.
    #[error("this user lacks CAP_SYS_PTRACE, and vm.unprivileged_userfaultfd is 0")]
    NotPrivileged,
    /// The kernel has it and would allow it; something in between said no.
    #[error("a filter (seccomp, a security module) denies the system call userfaultfd ({0})")]
    Filtered(Errno),
    /// A kernel built without `CONFIG_USERFAULTFD`.
    #[error("this kernel is built without CONFIG_USERFAULTFD")]
    NotBuilt,
    /// Anything else, like no descriptor left.
    #[error("the kernel refused it: {0}")]
    Other(Errno),
}

/// The privileges of this process, as far as they explain a refusal.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// `vm.unprivileged_userfaultfd`; `None` if the kernel has no such switch, because it has no
    /// userfaultfd.
    unprivileged: Option<bool>,
    /// `CAP_SYS_PTRACE` in force, and that in the first user namespace, which alone counts.
    may_ptrace: bool,
}

impl Standing {
    fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let unprivileged = match read("/proc/sys/vm/unprivileged_userfaultfd").trim() {
            "" => None,
            value => Some(value != "0"),
        };
        let status = read("/proc/self/status");
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
        // Only the first namespace maps every number to itself.
        let first_namespace =
            read("/proc/self/uid_map").split_ascii_whitespace().eq(["0", "0", "4294967295"]);
        Self { unprivileged, may_ptrace: first_namespace && effective >> raw::CAP_SYS_PTRACE & 1 != 0 }
    }

    /// Why `way` gave this error.
    fn explain(self, way: Way, error: Errno) -> Refusal {
        match (way, error) {
            (_, Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Refusal::Other(error),
            (Way::Device, Errno::NOENT | Errno::NODEV | Errno::NXIO) => Refusal::NoDevice,
            (Way::Device, Errno::ACCESS) => Refusal::DevicePermissions,
            (Way::Device, _) => Refusal::DeviceBlocked(error),
            (_, Errno::NOSYS) if self.unprivileged.is_none() => Refusal::NotBuilt,
            (Way::SystemCall, Errno::PERM) if !self.may_ptrace && self.unprivileged != Some(true) => {
                Refusal::NotPrivileged
            }
            (_, Errno::PERM | Errno::ACCESS | Errno::NOSYS) => Refusal::Filtered(error),
            _ => Refusal::Other(error),
        }
    }
}

/// The access that `pagoda run` works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The first way that is open and serves faults of the kernel too.
    pub way: Way,
    /// The features of a descriptor got that way.
    pub features: Features,
    /// Whether fork events may be had: they need `CAP_SYS_PTRACE`. Without, a process that forks is
    /// managed only as far as everything fits at the fork.
    pub fork_events: bool,
}

/// Why `pagoda run` can't work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No way serves faults of both modes.
    #[error("no full userfaultfd: {device}; {system_call}")]
    Userfaultfd {
        /// Why the device does not.
        device: Refusal,
        /// Why the system call does not.
        system_call: Refusal,
    },
    /// The kernel is too old.
    #[error("this kernel's userfaultfd lacks {feature}, which came with Linux {}", .feature.since())]
    Feature {
        /// The first required one that it lacks.
        feature: Feature,
    },
    /// The kernel says that it can move and does not.
    #[error("UFFDIO_MOVE of 64 KiB of scratch memory failed: {0}")]
    Move(Errno),
}

/// Every way to a userfaultfd, and its features.
#[derive(Debug)]
pub struct Userfault {
    /// [`Way::Device`].
    pub device: Result<(), Refusal>,
    /// [`Way::SystemCall`].
    pub system_call: Result<(), Refusal>,
    /// [`Way::UserModeOnly`].
    pub user_mode_only: Result<(), Refusal>,
    /// The features by the first way that is open; `None` if none is.
    pub features: Option<Features>,
    /// Whether write protection of anonymous memory is granted, tried out.
    pub write_protect: bool,
    /// A move of real memory, tried out by the first way that is open; `None` if none is or if it
    /// can't move.
    pub moved: Option<Result<(), Errno>>,
    /// Whether fork events are granted, tried out.
    pub fork_events: bool,
}

/// Opens a userfaultfd, close-on-exec and non-blocking, without the handshake.
///
/// # Errors
/// Why this way is closed.
pub fn open_userfaultfd(way: Way) -> Result<OwnedFd, Refusal> {
    open(way).map_err(|error| Standing::here().explain(way, error))
}

fn open(way: Way) -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    match way {
        Way::Device => {
            let device =
                rustix::fs::open(c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            // By hand: `rustix`'s typed ioctls know no call that takes a number and returns a
            // descriptor. SAFETY: this ioctl takes flags, not a pointer, and changes no memory.
            let fd = unsafe {
                let flags = flags.bits() as usize;
                syscall3(raw::__NR_ioctl, device.as_raw_fd() as usize, USERFAULTFD_IOC_NEW as usize, flags)?
            };
            // SAFETY: a fresh descriptor without another owner.
            Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
        }
        // SAFETY: nothing is registered on the descriptor yet, so that no memory changes its
        // meaning.
        Way::SystemCall => unsafe { rustix::mm::userfaultfd(flags) },
        Way::UserModeOnly => {
            let flags = flags | UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY);
            // SAFETY: as above.
            unsafe { rustix::mm::userfaultfd(flags) }
        }
    }
}

/// Whether `pagoda run` works here, by really moving a page.
///
/// # Errors
/// The missing feature.
pub fn can_run() -> Result<Access, Missing> {
    let way = match (open_userfaultfd(Way::Device), open_userfaultfd(Way::SystemCall)) {
        (Ok(_), _) => Way::Device,
        (_, Ok(_)) => Way::SystemCall,
        (Err(device), Err(system_call)) => return Err(Missing::Userfaultfd { device, system_call }),
    };
    let features = handshake(way, Features::default()).map_or_else(|_| Features::default(), |(_, has)| has);
    if let Some(feature) = Feature::REQUIRED.into_iter().find(|feature| !features.has(*feature)) {
        return Err(Missing::Feature { feature });
    }
    try_move(way).map_err(Missing::Move)?;
    let fork_events = handshake(way, Feature::EventFork.into()).is_ok();
    Ok(Access { way, features, fork_events })
}

/// Tries every way.
#[must_use]
pub fn userfault() -> Userfault {
    let try_way = |way| open_userfaultfd(way).map(drop);
    let (device, system_call) = (try_way(Way::Device), try_way(Way::SystemCall));
    let user_mode_only = try_way(Way::UserModeOnly);
    let ways = [(Way::Device, device), (Way::SystemCall, system_call), (Way::UserModeOnly, user_mode_only)];
    let way = ways.into_iter().find_map(|(way, open)| open.is_ok().then_some(way));
    let features = way.and_then(|way| Some(handshake(way, Features::default()).ok()?.1));
    let moves = features.is_some_and(|features| features.has(Feature::Move));
    Userfault {
        device,
        system_call,
        user_mode_only,
        features,
        write_protect: way.is_some_and(|way| try_write_protect(way).is_ok()),
        moved: way.filter(|_| moves).map(try_move),
        fork_events: way.is_some_and(|way| handshake(way, Feature::EventFork.into()).is_ok()),
    }
}

/// Opens a descriptor and agrees on its features. Returns the descriptor and all features that it
/// offered.
fn handshake(way: Way, wanted: Features) -> Result<(OwnedFd, Features), Errno> {
    let fd = open(way)?;
    let mut api = raw::uffdio_api { api: u64::from(raw::UFFD_API), features: wanted.0, ioctls: 0 };
    // SAFETY: the opcode is that of `uffdio_api`, which is all that the kernel reads and writes.
    unsafe { rustix::ioctl::ioctl(&fd, Updater::<UFFDIO_API, _>::new(&mut api))? };
    Ok((fd, Features(api.features)))
}

/// A private anonymous mapping for a try.
struct Scratch(*mut u8);

impl Scratch {
    fn new() -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), TRIAL_BYTES, protection, MapFlags::PRIVATE)? };
        let scratch = Self(at.cast());
        // SAFETY: the mapping is ours. Not all kernels have huge pages to advise against: no
        // matter.
        let _ = unsafe { madvise(at, TRIAL_BYTES, Advice::LinuxNoHugepage) };
        // A page that a fork of another thread has shared can't be moved any more.
        // SAFETY: the mapping is ours, and no child looks for it.
        unsafe { madvise(at, TRIAL_BYTES, Advice::LinuxDontFork)? };
        Ok(scratch)
    }

    fn register(&self, fd: &OwnedFd, mode: u32) -> Result<u64, Errno> {
        let range = raw::uffdio_range { start: self.0.addr() as u64, len: TRIAL_BYTES as u64 };
        let mut register = raw::uffdio_register { range, mode: u64::from(mode), ioctls: 0 };
        // SAFETY: the opcode is that of `uffdio_register`; the range is a mapping of ours without
        // another user.
        unsafe { rustix::ioctl::ioctl(fd, Updater::<UFFDIO_REGISTER, _>::new(&mut register))? };
        Ok(register.ioctls)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping. Its descriptor is closed by now, so that no event
        // has to be read.
        let _ = unsafe { munmap(self.0.cast(), TRIAL_BYTES) };
    }
}

fn try_write_protect(way: Way) -> Result<(), Errno> {
    let scratch = Scratch::new()?;
    // Declared after the mapping, so that it is closed before that is unmapped.
    let (fd, _) = handshake(way, Feature::WriteProtect.into())?;
    let ioctls = scratch.register(&fd, raw::UFFDIO_REGISTER_MODE_WP)?;
    if ioctls >> raw::_UFFDIO_WRITEPROTECT & 1 != 0 { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

/// Moves memory with content, and looks whether the content arrived.
fn try_move(way: Way) -> Result<(), Errno> {
    const MARK: u8 = 0xA5;
    let (from, to) = (Scratch::new()?, Scratch::new()?);
    // SAFETY: the mapping is ours, of this length, and no reference to it exists.
    unsafe { from.0.write_bytes(MARK, TRIAL_BYTES) };
    // Declared after the mappings, so that it is closed before they are unmapped.
    let (fd, _) = handshake(way, Feature::REQUIRED.into_iter().collect())?;
    to.register(&fd, raw::UFFDIO_REGISTER_MODE_MISSING)?;
    let mut moved: usize = 0;
    // A move may stop short (a page that is locked for a moment), but not without end on memory
    // that is ours alone.
    for _ in 0..1000 {
        let at = |scratch: &Scratch| (scratch.0.addr() + moved) as u64;
        let len = (TRIAL_BYTES - moved) as u64;
        let mut request = raw::uffdio_move { dst: at(&to), src: at(&from), len, mode: 0, move_: 0 };
        // SAFETY: the opcode is that of `uffdio_move`; both ranges are ours and not referred to.
        let done = unsafe { rustix::ioctl::ioctl(&fd, Updater::<UFFDIO_MOVE, _>::new(&mut request)) };
        match done {
            Ok(()) => moved = TRIAL_BYTES,
            Err(Errno::AGAIN | Errno::BUSY) => moved += usize::try_from(request.move_).unwrap_or(0),
            Err(error) => return Err(error),
        }
        if moved == TRIAL_BYTES {
            // SAFETY: the whole mapping is present now, so that no fault has to be served.
            let arrived = (0..TRIAL_BYTES).all(|byte| unsafe { to.0.add(byte).read() } == MARK);
            return if arrived { Ok(()) } else { Err(Errno::IO) };
        }
    }
    Err(Errno::BUSY)
}

#[cfg(test)]
#[path = "userfault_test.rs"]
mod tests;
