//! userfaultfd: the descriptor through which faults and events arrive and pages are moved.
//!
//! Every outcome of the kernel is a variant with a stated consequence; no errno leaves this file
//! unnamed. Needs Linux 6.8 for moves (`crate::uffd::moves`). See ioctl_userfaultfd(2).
//!
//! This module must never wait while it holds anything, and never decides what to do about an
//! outcome.

pub mod coverage;
pub mod custody;
pub mod entrusted;
pub mod fault_address;
pub mod fault_signal;
pub mod foreign;
pub(crate) mod moves;
mod protect;
pub mod shared_fill;
pub mod write_log;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::PollFlags;
pub use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Setter, Updater};

use crate::io::wait::{Wait, wait_for};
use crate::mem::range::PageRange;
use crate::process::spare_descriptor::with_room;
use crate::uffd::fault_address::FaultAddress;

const API: u64 = 0xAA;
pub(crate) const GROUP: u8 = 0xAA;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 1 << 1;
const USER_MODE_ONLY: u32 = 1;

/// Feature bits of the handshake.
pub mod feature {
    /// Events when a registered range is moved by mremap.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// Events before madvise discards pages.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// Events after munmap.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// An event for each fork, with the child's descriptor. Needs CAP_SYS_PTRACE.
    pub const EVENT_FORK: u64 = 1 << 1;
    /// `UFFDIO_MOVE` (Linux 6.8).
    pub const MOVE: u64 = 1 << 16;
    /// A write to a protected page is let through at once and shows in the page table (Linux 6.7,
    /// where write protection exists at all): tracking writes needs it.
    pub const WP_ASYNC: u64 = 1 << 15;
    /// A fault is a SIGBUS to its thread in place of a message; see [`crate::uffd::fault_signal`].
    /// A system call that touches a missing page fails with `EFAULT`.
    pub const SIGBUS: u64 = 1 << 7;
    /// The message of a fault tells which thread waits (Linux 4.14).
    pub const THREAD_ID: u64 = 1 << 8;
    /// The address of a fault is the byte that was touched, and not the first one of its OS page
    /// (Linux 5.18).
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    /// The features for managing a whole process.
    pub const PROCESS: u64 = MOVE | EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP;
}

#[repr(C)]
struct ApiCall {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
pub(crate) struct RangeCall {
    start: u64,
    len: u64,
}
#[repr(C)]
struct RegisterCall {
    range: RangeCall,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct CopyCall {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}
#[repr(C)]
pub(crate) struct ZeroCall {
    pub(crate) range: RangeCall,
    pub(crate) mode: u64,
    pub(crate) zeroed: i64,
}
#[repr(C)]
struct PoisonCall {
    range: RangeCall,
    mode: u64,
    updated: i64,
}

const UFFDIO_API: Opcode = ioctl::opcode::read_write::<ApiCall>(GROUP, 0x3F);
const UFFDIO_REGISTER: Opcode = ioctl::opcode::read_write::<RegisterCall>(GROUP, 0);
const UFFDIO_UNREGISTER: Opcode = ioctl::opcode::read::<RangeCall>(GROUP, 1);
const UFFDIO_WAKE: Opcode = ioctl::opcode::read::<RangeCall>(GROUP, 2);
const COPY_MODE_PROTECT: u64 = 1 << 1;
const UFFDIO_COPY: Opcode = ioctl::opcode::read_write::<CopyCall>(GROUP, 3);
const UFFDIO_ZEROPAGE: Opcode = ioctl::opcode::read_write::<ZeroCall>(GROUP, 4);
const UFFDIO_POISON: Opcode = ioctl::opcode::read_write::<PoisonCall>(GROUP, 8);
/// `struct uffdio_move` has the layout of `struct uffdio_copy`.
pub(crate) const UFFDIO_MOVE: Opcode = ioctl::opcode::read_write::<CopyCall>(GROUP, 5);
const USERFAULTFD_IOC_NEW: Opcode = ioctl::opcode::none(GROUP, 0);

/// The kinds of faults that are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Faults of the program and of system calls. Needs `/dev/userfaultfd`, CAP_SYS_PTRACE or
    /// `vm.unprivileged_userfaultfd=1`.
    Full,
    /// Faults of the program only: a system call that touches a missing page fails with `EFAULT`.
    UserOnly,
}

/// Why a fill, a move or a copy stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An event is unread, or the mapping is just being changed: read events, then try again.
    Again,
    /// The page at the stop is pinned or shared by a fork: it stays where it is.
    Busy,
    /// Something is at the destination already: wake the threads that wait there.
    Exists,
    /// Nothing is at the source, or no registered mapping is at the destination: it was unmapped
    /// meanwhile.
    Missing,
    /// The mappings at the two ends don't allow a move (protection, lock, boundary): fill by copy,
    /// or leave it.
    Refused,
    /// The kernel has no memory for it: wait for memory, then try again.
    NoMemory,
    /// The process is gone: there is no thread left to serve.
    Gone,
}

impl Stop {
    fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Self::Again,
            Errno::BUSY => Self::Busy,
            Errno::EXIST => Self::Exists,
            Errno::NOENT => Self::Missing,
            Errno::NOMEM => Self::NoMemory,
            Errno::SRCH => Self::Gone,
            // EINVAL, EFAULT, EPERM: the call is not possible between these two places.
            _ => Self::Refused,
        }
    }
}

/// How far a fill, a move or a copy came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done, from the start of the range.
    pub bytes: usize,
    /// The reason that it stopped, if it did not reach the end.
    pub stop: Option<Stop>,
}

/// The messages of the descriptor.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for a page.
    Fault {
        /// Where it waits.
        at: FaultAddress,
        /// Whether it was going to write.
        write: bool,
        /// Whether the page is there, and [protected](Uffd::protect).
        held: bool,
        /// The thread's number; 0 without [`feature::THREAD_ID`].
        thread: u32,
    },
    /// The process forked; this is the child's descriptor.
    Fork(Uffd),
    /// `len` bytes moved from `from` to `to`.
    Remap {
        /// The old address.
        from: usize,
        /// The new address.
        to: usize,
        /// The length before the move, in bytes.
        len: usize,
    },
    /// The program is about to discard this range: it reads zero afterwards.
    Remove(PageRange),
    /// The range was unmapped.
    Unmap(PageRange),
}

/// As many raw messages as one read brings: enough for a burst, 2 KiB of stack.
pub const BATCH: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct RawMessage {
    event: u8,
    reserved: [u8; 7],
    arg: [u64; 3],
}

/// A userfaultfd descriptor after its handshake.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

impl Uffd {
    /// Opens a descriptor with exactly `features`: by `/dev/userfaultfd` first, then by the system
    /// call. Only [`EXACT_ADDRESS`](feature::EXACT_ADDRESS) is left out where the kernel lacks it:
    /// a fault with only its page known is served as well.
    pub fn open(mode: Mode, features: u64) -> Result<Self, Errno> {
        let fd = match mode {
            Mode::Full => Self::from_device().or_else(|_| Self::from_call(0))?,
            Mode::UserOnly => Self::from_call(USER_MODE_ONLY)?,
        };
        match handshake(&fd, features) {
            Err(Errno::INVAL) if features & feature::EXACT_ADDRESS != 0 => {
                handshake(&fd, features & !feature::EXACT_ADDRESS)?;
            }
            done => done?,
        }
        Ok(Self { fd })
    }

    /// The descriptor that the kernel made for this process when it was forked, taken from the
    /// parent that it was given to. It has the features of the parent's.
    pub(crate) fn of_parent(fd: OwnedFd) -> Self {
        Self { fd }
    }

    fn from_device() -> Result<OwnedFd, Errno> {
        use rustix::fs::{Mode, OFlags, open};
        let device = open(c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as usize;
        // SAFETY: USERFAULTFD_IOC_NEW takes the new descriptor's flags by value and returns the
        // descriptor.
        unsafe { ioctl::ioctl(&device, NewDescriptor(flags)) }
    }

    fn from_call(extra: u32) -> Result<OwnedFd, Errno> {
        use rustix::mm::{UserfaultfdFlags, userfaultfd};
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: it makes a descriptor and touches no memory; its effects on memory are each later
        // call's matter.
        unsafe { userfaultfd(flags | UserfaultfdFlags::from_bits_retain(extra)) }
    }

    /// Asks for the missing faults and the events of `range`. Present pages stay.
    ///
    /// # Errors
    /// `EBUSY`: the program registered it itself. `EINVAL`: not a kind of memory that can be
    /// registered.
    ///
    /// # Safety
    /// The memory must be private anonymous memory whose owner agreed to have its pages moved and
    /// filled through this descriptor, and must not be used by any thread that serves it.
    pub unsafe fn register(&self, range: PageRange) -> Result<(), Errno> {
        self.register_mode(range, REGISTER_MODE_MISSING)
    }

    /// Asks for the events of `range` alone: its missing pages are the kernel's business. So an
    /// arena, into which pages can be moved, never faults to a thread that fills its slots.
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    ///
    /// # Safety
    /// As for [`register`](Self::register).
    pub unsafe fn follow(&self, range: PageRange) -> Result<(), Errno> {
        self.register_mode(range, REGISTER_MODE_WP)
    }

    fn register_mode(&self, range: PageRange, mode: u64) -> Result<(), Errno> {
        let mut call = RegisterCall { range: raw(range), mode, ioctls: 0 };
        // SAFETY: the opcode is UFFDIO_REGISTER, whose argument is a `struct uffdio_register`.
        unsafe { ioctl::ioctl(&self.fd, Updater::<UFFDIO_REGISTER, RegisterCall>::new(&mut call)) }
    }

    /// Ends the registration of `range`. Missing pages read as zero from then on, so all
    /// pages must be swapped in before.
    pub fn unregister(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: the opcode is UFFDIO_UNREGISTER, whose argument is a `struct uffdio_range`.
        unsafe { ioctl::ioctl(&self.fd, Setter::<UFFDIO_UNREGISTER, RangeCall>::new(raw(range))) }
    }

    /// Wakes every thread that waits for a page of `range`; they fault again if it is still
    /// missing.
    pub fn wake(&self, range: PageRange) {
        // SAFETY: the opcode is UFFDIO_WAKE, whose argument is a `struct uffdio_range`.
        let done = unsafe { ioctl::ioctl(&self.fd, Setter::<UFFDIO_WAKE, RangeCall>::new(raw(range))) };
        debug_assert!(done.is_ok(), "a wake of a page range has no way to fail: {done:?}");
    }

    /// Fills `to` with a copy of `from`, atomically page by page. Wakes threads that wait there.
    ///
    /// # Safety
    /// `to` must be registered memory; it is written.
    pub unsafe fn copy(&self, to: usize, from: &[u8]) -> Progress {
        self.transfer::<UFFDIO_COPY>(to, from.as_ptr().addr(), from.len(), 0)
    }

    /// The same, with the pages protected from the first moment on, as
    /// [`protect`](Self::protect) does: with [`feature::WP_ASYNC`] the first write to each is seen
    /// by a scan. `to` must be registered to be tracked.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy).
    pub unsafe fn copy_protected(&self, to: usize, from: &[u8]) -> Progress {
        self.transfer::<UFFDIO_COPY>(to, from.as_ptr().addr(), from.len(), COPY_MODE_PROTECT)
    }

    pub(crate) fn transfer<const OPCODE: Opcode>(
        &self,
        to: usize,
        from: usize,
        len: usize,
        mode: u64,
    ) -> Progress {
        let mut call = CopyCall { dst: to as u64, src: from as u64, len: len as u64, mode, copied: 0 };
        // SAFETY: the opcodes are UFFDIO_MOVE and UFFDIO_COPY, whose arguments have the layout of
        // CopyCall.
        let done = unsafe { ioctl::ioctl(&self.fd, Updater::<OPCODE, CopyCall>::new(&mut call)) };
        progress(len, call.copied, done)
    }

    /// Maps the shared zero page all over `range`: it costs no memory, and a write gets a page of
    /// its own.
    pub fn zero(&self, range: PageRange) -> Progress {
        let mut call = ZeroCall { range: raw(range), mode: 0, zeroed: 0 };
        // SAFETY: the opcode is UFFDIO_ZEROPAGE, whose argument is a `struct uffdio_zeropage`. The
        // kernel fills only missing pages of registered memory, which read as zero already.
        let done = unsafe { ioctl::ioctl(&self.fd, Updater::<UFFDIO_ZEROPAGE, ZeroCall>::new(&mut call)) };
        progress(range.len(), call.zeroed, done)
    }

    /// Poisons the missing pages of `range`: a thread that touches one gets SIGBUS, or `EFAULT`
    /// from a system call, until it is discarded. Wakes threads that wait there. Linux 6.6.
    pub fn poison(&self, range: PageRange) -> Progress {
        let mut call = PoisonCall { range: raw(range), mode: 0, updated: 0 };
        // SAFETY: the opcode is UFFDIO_POISON, whose argument is a `struct uffdio_poison`, laid out
        // as PoisonCall. The kernel marks only missing pages of registered memory, and a marked
        // page can't be read.
        let done = unsafe { ioctl::ioctl(&self.fd, Updater::<UFFDIO_POISON, PoisonCall>::new(&mut call)) };
        progress(range.len(), call.updated, done)
    }

    /// Whether no event is unread and no mapping of this descriptor is being changed. A fill of
    /// nothing tells: the kernel asks this before it looks at the arguments.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let mut call = ZeroCall { range: RangeCall { start: 0, len: 0 }, mode: 0, zeroed: 0 };
        // SAFETY: the opcode is UFFDIO_ZEROPAGE, whose argument is a `struct uffdio_zeropage`; of
        // no length it fills nothing.
        let done = unsafe { ioctl::ioctl(&self.fd, Updater::<UFFDIO_ZEROPAGE, ZeroCall>::new(&mut call)) };
        done != Err(Errno::AGAIN)
    }

    /// Waits until there is something to read, for `timeout_ms` at most.
    #[must_use]
    pub fn wait(&self, timeout_ms: u32) -> Wait {
        wait_for(self.fd.as_fd(), PollFlags::IN, u64::from(timeout_ms) * 1_000_000)
    }

    /// Reads up to [`BATCH`] messages without waiting and hands each to `sink`, faults and events
    /// in the kernel's order of delivery. Returns how many there were.
    ///
    /// # Errors
    /// Those after which no try succeeds: a fork brings a descriptor, for which the limit of them
    /// leaves no room (`EMFILE`, also if the soft limit were the hard one, and without the spare
    /// descriptor; `ENFILE`), this descriptor is closed (`EBADF`), or a filter of system calls
    /// forbids it.
    pub fn read(&self, mut sink: impl FnMut(Message)) -> Result<usize, Errno> {
        let mut batch = [RawMessage { event: 0, reserved: [0; 7], arg: [0; 3] }; BATCH];
        // SAFETY: RawMessage is plain old data without padding; any bytes are valid, and the slice
        // covers the array.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(batch.as_mut_ptr().cast::<u8>(), size_of::<[RawMessage; BATCH]>())
        };
        let len = match with_room(|| rustix::io::read(&self.fd, &mut *bytes)) {
            Ok(len) => len,
            // None is there, or the kernel has no memory for a fork's descriptor yet.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => return Ok(0),
            Err(errno) => return Err(errno),
        };
        let count = len / size_of::<RawMessage>();
        for raw in &batch[..count] {
            if let Some(message) = Self::decode(raw) {
                sink(message);
            }
        }
        Ok(count)
    }

    fn decode(raw: &RawMessage) -> Option<Message> {
        let [first, second, third] = raw.arg;
        let range = || PageRange::covering(first as usize, second as usize);
        Some(match raw.event {
            0x12 => Message::Fault {
                at: FaultAddress::of_byte(second as usize),
                write: first & 1 != 0,
                held: first & 2 != 0,
                thread: third as u32,
            },
            // SAFETY: with this event the kernel has just installed a new descriptor, whose number
            // is the first word's low half, in our table; no other code knows of it.
            0x13 => Message::Fork(Self { fd: unsafe { OwnedFd::from_raw_fd(first as u32 as i32) } }),
            0x14 => Message::Remap { from: first as usize, to: second as usize, len: third as usize },
            0x15 => Message::Remove(range()?),
            0x16 => Message::Unmap(range()?),
            _ => return None,
        })
    }
}

/// Agrees with the kernel on `features`. A descriptor that it refused is as it was.
fn handshake(fd: &OwnedFd, features: u64) -> Result<(), Errno> {
    let mut call = ApiCall { api: API, features, ioctls: 0 };
    // SAFETY: the opcode is UFFDIO_API, whose argument is a `struct uffdio_api`, laid out as
    // ApiCall.
    unsafe { ioctl::ioctl(fd, Updater::<UFFDIO_API, ApiCall>::new(&mut call)) }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(crate) fn raw(range: PageRange) -> RangeCall {
    RangeCall { start: range.start() as u64, len: range.len() as u64 }
}

fn progress(asked: usize, counted: i64, done: Result<(), Errno>) -> Progress {
    // The kernel writes the bytes done, or a negated error if there were none; a short count comes
    // with EAGAIN.
    let bytes = usize::try_from(counted).unwrap_or(0);
    match done {
        Ok(()) if bytes == asked => Progress { bytes, stop: None },
        // Why it stopped short shows when the rest is tried.
        _ if bytes > 0 && bytes < asked => Progress { bytes, stop: None },
        Ok(()) => Progress { bytes: asked, stop: None },
        Err(_) if bytes >= asked => Progress { bytes: asked, stop: None },
        Err(errno) => Progress { bytes, stop: Some(Stop::from_errno(errno)) },
    }
}

/// `ioctl(device, USERFAULTFD_IOC_NEW, flags)`, which returns a descriptor.
struct NewDescriptor(usize);

// SAFETY: the argument is passed by value and the output is the descriptor that the kernel made for
// us alone.
unsafe impl ioctl::Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;
    fn opcode(&self) -> Opcode {
        USERFAULTFD_IOC_NEW
    }
    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        std::ptr::without_provenance_mut(self.0)
    }
    unsafe fn output_from_ptr(out: ioctl::IoctlOutput, _: *mut core::ffi::c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: a successful call returns a new descriptor without another owner.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

/// Turns an errno of this module into the standard library's error, for messages.
#[must_use]
pub fn to_io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}

#[cfg(test)]
mod tests;
