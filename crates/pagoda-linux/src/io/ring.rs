//! Several reads and writes of direct files at once, all in flight by one thread (io_uring(7)), and
//! by pread(2) and pwrite(2) one after the other where that can't be.
//!
//! A call returns when all of its requests are over, so that nothing is in flight between calls. If
//! the kernel did not complete a request, the plain call does the rest, and its result counts:
//! every outcome is one of [`direct_file`](crate::io::direct_file). Neither a thread that has a
//! system call filter nor the child of a fork ever enters a ring: a filter may end the process for
//! it, and the ring is the parent's. Nothing here may touch a buffer while its request is in
//! flight, nor return before it is over.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{self, Errno};
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringFeatureFlags, IoringOp, IoringSetupFlags,
    addr_or_splice_off_in_union, io_cqring_offsets, io_uring_cqe, io_uring_enter, io_uring_params,
    io_uring_ptr, io_uring_setup, io_uring_sqe, io_uring_user_data, len_union, off_or_addr2_union,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Pid, getpid};

use crate::io::direct_file::{DirectFile, FileError};
use crate::mem::own_memory;
use crate::mem::range::PageRange;
use crate::process::caller::sleep_us;

/// Requests in flight at once: a page and sixteen others that come with it may each lie by
/// themselves, and the kernel's queues are powers of two. A longer list takes several rounds.
pub const DEPTH: usize = 32;

/// Between two looks whether something is over, where the kernel refuses to wait for it: a disk's
/// shortest answer.
const LOOK_US: u32 = 50;

/// Why there is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It was not tried: the filter may end the process.
    #[error("this thread has a system call filter (seccomp)")]
    Filtered,
    /// A kernel without it.
    #[error("this kernel is built without io_uring")]
    NotBuilt,
    /// `kernel.io_uring_disabled`, or a security module.
    #[error("it is not allowed here; see the sysctl kernel.io_uring_disabled")]
    NotAllowed,
    /// It lacks a feature that is relied on.
    #[error("this kernel's io_uring is too old")]
    TooOld,
    /// No memory, no descriptor, a limit.
    #[error("the kernel refused it: {0}")]
    Other(Errno),
}

/// A read or a write of a direct file.
pub enum Transfer<'a> {
    /// As [`DirectFile::read_at`].
    Read {
        /// Of this file.
        file: &'a DirectFile,
        /// From here on.
        offset: u64,
        /// All of it.
        into: &'a mut [u8],
    },
    /// As [`DirectFile::write_at`].
    Write {
        /// To this file.
        file: &'a DirectFile,
        /// From here on.
        offset: u64,
        /// All of it.
        from: &'a [u8],
    },
}

impl Transfer<'_> {
    /// Does it by plain calls. Blocks for the disk.
    ///
    /// # Errors
    /// Those of the two calls of [`DirectFile`].
    pub fn do_alone(&mut self) -> Result<(), FileError> {
        self.go_on(0)
    }

    /// The same for the bytes behind its first `done` ones.
    fn go_on(&mut self, done: usize) -> Result<(), FileError> {
        match self {
            Self::Read { file, offset, into } => file.read_at(*offset + done as u64, &mut into[done..]),
            Self::Write { file, offset, from } => file.write_at(*offset + done as u64, &from[done..]),
        }
    }

    /// How the kernel is told. The pointer is the buffer's, for writing if it is read into.
    fn entry(&mut self, index: usize) -> io_uring_sqe {
        let (opcode, file, offset, at, len) = match self {
            Self::Read { file, offset, into } => {
                (IoringOp::Read, file, *offset, into.as_mut_ptr(), into.len())
            }
            Self::Write { file, offset, from } => {
                (IoringOp::Write, file, *offset, from.as_ptr().cast_mut(), from.len())
            }
        };
        io_uring_sqe {
            opcode,
            fd: std::os::fd::AsFd::as_fd(*file).as_raw_fd(),
            off_or_addr2: off_or_addr2_union { off: offset },
            addr_or_splice_off_in: addr_or_splice_off_in_union { addr: io_uring_ptr::new(at.cast()) },
            // A request longer than the kernel takes at once is continued.
            len: len_union { len: u32::try_from(len).unwrap_or(1 << 30) },
            user_data: io_uring_user_data::from_u64(index as u64),
            ..io_uring_sqe::default()
        }
    }
}

/// The two queues that are shared with the kernel. Its holder has nothing in flight.
#[derive(Debug)]
pub struct Ring {
    fd: OwnedFd,
    queues: Mapped,
    entries: Mapped,
    at: Offsets,
    /// The process that made it.
    owner: Pid,
    /// The kernel takes nothing any more, or a thread has a filter: not tried again.
    is_refused: bool,
}

/// Where the words of the queues are, in bytes from their beginning.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    taken: u32,
    given: u32,
    given_mask: u32,
    seen: u32,
    over: u32,
    over_mask: u32,
    outcomes: u32,
}

impl Ring {
    /// Makes one, and proves by a request that the kernel serves it. Blocks for nothing. It takes
    /// some 10 KiB of the kernel's memory.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn open() -> Result<Self, Refusal> {
        if is_filtered() {
            return Err(Refusal::Filtered);
        }
        let refusal = |errno| match errno {
            Errno::NOSYS => Refusal::NotBuilt,
            Errno::PERM | Errno::ACCESS => Refusal::NotAllowed,
            Errno::INVAL => Refusal::TooOld,
            errno => Refusal::Other(errno),
        };
        let mut params = io_uring_params::default();
        // A waiting thread is in the kernel, and need not be interrupted for completions.
        params.flags = IoringSetupFlags::SUBMIT_ALL | IoringSetupFlags::COOP_TASKRUN;
        // SAFETY: it shares no worker queue with another ring; the kernel writes to `params` only.
        let fd = unsafe { io_uring_setup(DEPTH as u32, &mut params) }.map_err(refusal)?;
        let needed = IoringFeatureFlags::SINGLE_MMAP | IoringFeatureFlags::NODROP;
        if !params.features.contains(needed) || (params.sq_entries as usize) < DEPTH {
            return Err(Refusal::TooOld);
        }
        let (sq, cq) = (params.sq_off, params.cq_off);
        let queue_bytes = |first: u32, count: u32, each: usize| first as usize + count as usize * each;
        let bytes = queue_bytes(sq.array, params.sq_entries, size_of::<u32>()).max(queue_bytes(
            cq.cqes,
            params.cq_entries,
            OUTCOME_BYTES,
        ));
        let queues = Mapped::of(&fd, IORING_OFF_SQ_RING, bytes).map_err(refusal)?;
        let entries =
            Mapped::of(&fd, IORING_OFF_SQES, params.sq_entries as usize * size_of::<io_uring_sqe>())
                .map_err(refusal)?;
        let mut ring =
            Self { fd, queues, entries, at: Offsets::new(&params), owner: getpid(), is_refused: false };
        for index in 0..params.sq_entries {
            ring.word(sq.array + index * 4).store(index, Ordering::Relaxed);
        }
        // The kernel may have it and serve nothing, by a filter that answers, or a security module.
        let mut flight = InFlight::new(&mut ring);
        flight.submit([io_uring_sqe::default()].into_iter());
        let is_served = flight.left == 1;
        drop(flight);
        if is_served { Ok(ring) } else { Err(Refusal::NotAllowed) }
    }

    /// Whether it is this process's, and the kernel has taken all requests up to now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_refused && self.owner == getpid()
    }

    /// Does all of them, up to [`DEPTH`] at once, and returns how many were done in flight with
    /// others. Blocks until all of them are over. A single one is done by its plain call.
    ///
    /// # Errors
    /// The first of those of the plain calls; others may be done by then, or not.
    pub fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<usize, FileError> {
        let mut together = 0;
        let several = transfers.len() > 1;
        // Checked each time: a program that filters one thread may be about to filter others. The
        // ring is not used again then.
        self.is_refused |= several && self.is_open() && is_filtered();
        for round in transfers.chunks_mut(DEPTH) {
            let done = if several && self.is_open() { self.round(round) } else { [0; DEPTH] };
            for (transfer, done) in round.iter_mut().zip(done) {
                together += usize::from(done > 0);
                transfer.go_on(done)?;
            }
        }
        Ok(together)
    }

    /// Has so many in flight at once, and returns how much of each the kernel did.
    fn round(&mut self, transfers: &mut [Transfer<'_>]) -> [usize; DEPTH] {
        let mut lens = [0; DEPTH];
        for (len, transfer) in lens.iter_mut().zip(&*transfers) {
            *len = match transfer {
                Transfer::Read { into, .. } => into.len(),
                Transfer::Write { from, .. } => from.len(),
            };
        }
        let mut flight = InFlight::new(self);
        flight.submit(transfers.iter_mut().enumerate().map(|(index, transfer)| transfer.entry(index)));
        flight.land();
        let mut done = flight.done;
        done.iter_mut().zip(lens).for_each(|(done, len)| *done = (*done).min(len));
        done
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        let at = self.queues.at(offset as usize, size_of::<u32>());
        // SAFETY: it lies in a mapping that lives as long as `self`, at an offset that the kernel
        // gave for an aligned word of 32 bits, which both sides change atomically alone.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }
}

/// Of one outcome: `user_data`, `res` and `flags`.
const OUTCOME_BYTES: usize = size_of::<io_uring_cqe>();

impl Offsets {
    fn new(params: &io_uring_params) -> Self {
        let (sq, cq): (_, io_cqring_offsets) = (params.sq_off, params.cq_off);
        Self {
            taken: sq.head,
            given: sq.tail,
            given_mask: sq.ring_mask,
            seen: cq.head,
            over: cq.tail,
            over_mask: cq.ring_mask,
            outcomes: cq.cqes,
        }
    }
}

/// Requests that the kernel has. Dropping it waits until they are over: as long as it lives, their
/// buffers do, and no other code touches these, because the caller has borrowed them for longer.
struct InFlight<'r> {
    ring: &'r mut Ring,
    left: u32,
    /// Bytes that were done of each.
    done: [usize; DEPTH],
}

impl<'r> InFlight<'r> {
    fn new(ring: &'r mut Ring) -> Self {
        Self { ring, left: 0, done: [0; DEPTH] }
    }

    /// Gives the kernel up to [`DEPTH`] requests, and waits for them, if it can. Requests that it
    /// does not take are withdrawn.
    fn submit(&mut self, requests: impl Iterator<Item = io_uring_sqe>) {
        let at = self.ring.at;
        let ring = &mut *self.ring;
        let first = ring.word(at.given).load(Ordering::Relaxed);
        let mask = ring.word(at.given_mask).load(Ordering::Relaxed);
        let mut count = 0;
        for request in requests.take(DEPTH) {
            let place = first.wrapping_add(count) & mask;
            let entry =
                ring.entries.at(place as usize * size_of::<io_uring_sqe>(), size_of::<io_uring_sqe>());
            // SAFETY: the place is within the mapping, of which the kernel reads only entries
            // before `given`; it is not one of them yet, so that it is this thread's alone.
            unsafe { entry.cast::<io_uring_sqe>().write(request) };
            count += 1;
        }
        // Release: the kernel reads the entries after it.
        ring.word(at.given).store(first.wrapping_add(count), Ordering::Release);
        let outcome = ring.enter(count, count);
        // The number of taken requests counts, for any result of the call.
        let taken = ring.word(at.taken).load(Ordering::Acquire).wrapping_sub(first);
        // It reads this in `enter` alone, and there is no thread of the kernel that would look.
        ring.word(at.given).store(first.wrapping_add(taken), Ordering::Release);
        ring.is_refused = taken == 0 && !matches!(outcome, Err(Errno::AGAIN | Errno::BUSY | Errno::INTR));
        self.left = taken;
    }

    /// Waits until all are over.
    fn land(&mut self) {
        loop {
            self.look();
            if self.left == 0 {
                return;
            }
            match self.ring.enter(0, self.left) {
                Ok(_) | Err(Errno::INTR) => {}
                // A filter that was put over this thread meanwhile, for one: they end all the same.
                Err(_) => sleep_us(LOOK_US),
            }
        }
    }

    /// Takes note of those that are over.
    fn look(&mut self) {
        let (ring, at) = (&*self.ring, self.ring.at);
        let mask = ring.word(at.over_mask).load(Ordering::Relaxed);
        let mut seen = ring.word(at.seen).load(Ordering::Relaxed);
        // Acquire: the kernel's writes of an outcome, and to a buffer, are seen.
        let over = ring.word(at.over).load(Ordering::Acquire);
        while seen != over && self.left > 0 {
            let place = at.outcomes as usize + (seen & mask) as usize * OUTCOME_BYTES;
            // SAFETY: it is an outcome within the mapping, before `over`: the kernel has written
            // it, and writes there again only when `seen` has passed it. All bits are valid for the
            // two integers.
            let (index, result) = unsafe {
                let outcome = ring.queues.at(place, OUTCOME_BYTES);
                (outcome.cast::<u64>().read(), outcome.add(8).cast::<i32>().read())
            };
            if let (Some(done), Ok(bytes)) = (self.done.get_mut(index as usize), usize::try_from(result)) {
                *done = bytes;
            }
            seen = seen.wrapping_add(1);
            self.left -= 1;
        }
        // Release: they have been read.
        ring.word(at.seen).store(seen, Ordering::Release);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.land();
    }
}

impl Ring {
    fn enter(&self, submit: u32, wait_for: u32) -> Result<u32, Errno> {
        // SAFETY: the given entries are `Transfer`s, which the caller has borrowed until they are
        // over (`InFlight` waits for that in its drop, and is never leaked), or name no memory. So
        // the kernel reads from and writes to memory that is there, and that no other code uses
        // meanwhile.
        unsafe { io_uring_enter(&self.fd, submit, wait_for, IoringEnterFlags::GETEVENTS) }
    }
}

/// A part of the ring, shared with the kernel. Children of a fork don't get it.
#[derive(Debug)]
struct Mapped {
    range: PageRange,
}

impl Mapped {
    fn of(fd: &OwnedFd, offset: u64, bytes: usize) -> Result<Self, Errno> {
        let len = bytes.next_multiple_of(4096);
        let how = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, how, fd, offset)? };
        let mapped = Self { range: PageRange::at(at.expose_provenance(), len) };
        if !own_memory::declare(mapped.range) {
            return Err(Errno::NOMEM);
        }
        // SAFETY: it changes what a child inherits, and no content, of a mapping that this value
        // owns.
        unsafe { madvise(at, len, Advice::LinuxDontFork)? };
        Ok(mapped)
    }

    /// The place of so many bytes.
    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        debug_assert!(offset + bytes <= self.range.len(), "within the mapping");
        std::ptr::with_exposed_provenance_mut(self.range.start() + offset)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        own_memory::withdraw(self.range);
        // SAFETY: this value owns the mapping, and no reference into it outlives the ring.
        let _ =
            unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.range.start()), self.range.len()) };
    }
}

/// Whether this thread has a system call filter, or may have one: read from a file, because a
/// filter may refuse prctl(2). Another thread can put one over this one right after it
/// (`SECCOMP_FILTER_FLAG_TSYNC`).
#[must_use]
pub fn is_filtered() -> bool {
    filter_line().is_none_or(|has_filter| has_filter)
}

/// The line of `/proc` about it; a kernel without filters has none. `None` if it can't be read.
fn filter_line() -> Option<bool> {
    const LINE: &[u8] = b"\nSeccomp:\t";
    let status =
        openat(CWD, c"/proc/thread-self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 2048];
    let mut kept = 0;
    loop {
        let count = match io::read(&status, &mut text[kept..]) {
            Ok(0) => return Some(false),
            Ok(count) => kept + count,
            Err(Errno::INTR) => continue,
            Err(_) => return None,
        };
        let read = &text[..count];
        if let Some(at) = read.windows(LINE.len() + 1).position(|window| window.starts_with(LINE)) {
            return Some(read[at + LINE.len()] != b'0');
        }
        // The list of groups before it may be long.
        kept = count.min(LINE.len());
        text.copy_within(count - kept..count, 0);
    }
}

#[cfg(test)]
#[path = "ring_test.rs"]
mod tests;
