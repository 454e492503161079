//! The end of a program whose last thread ends by exit(2), which ends that thread alone.
//!
//! Without the engine the process would end with it. With the engine its raw threads would keep the
//! process for good, so one of them looks for this now and then, and ends the process as the kernel
//! would have. This module must never end a process in which a thread of the program runs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::process::caller::exit_process;
use crate::process::identity::parse_stat;
use crate::process::offer::thread_descriptor;
use crate::procfs::statm::read_start;

/// Raw threads of this process. Each counts itself at its first instruction and stops counting
/// itself before its last, so that the count is never above the number of those that run.
static RAW_THREADS: AtomicU64 = AtomicU64::new(0);

/// Raw threads that have ended, or are about to: raised before the other count is lowered.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// The calling raw thread begins.
pub(crate) fn thread_begins() {
    RAW_THREADS.fetch_add(1, Ordering::SeqCst);
}

/// The calling raw thread ends.
pub(crate) fn thread_ends() {
    ENDED.fetch_add(1, Ordering::SeqCst);
    RAW_THREADS.fetch_sub(1, Ordering::SeqCst);
}

/// In a child of a fork, on its one thread: the raw threads are the parent's.
pub fn forget_raw_threads() {
    RAW_THREADS.store(0, Ordering::SeqCst);
}

/// Whether the calling thread is the only one of the program.
#[must_use]
pub fn is_alone() -> bool {
    let ended = ENDED.load(Ordering::SeqCst);
    let raw_threads = RAW_THREADS.load(Ordering::SeqCst);
    threads() == Some(raw_threads + 1) && ENDED.load(Ordering::SeqCst) == ended
}

/// The threads of this process, ours among them. None if the kernel does not say.
#[must_use]
pub fn threads() -> Option<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let stat = rustix::fs::open(c"/proc/self/stat", flags, Mode::empty()).ok()?;
    let mut text = [0; 1024];
    Some(read_start(&stat, &mut text).ok().and_then(parse_stat)?.threads)
}

/// Threads that are followed at once, ours among them: a program with more is not about to end.
const FOLLOWED_MOST: usize = 32;

/// Looks whether any thread of the program is left, and with which status the last one ended.
#[derive(Debug)]
pub struct LastThread {
    main_statm: OwnedFd,
    main_stat: OwnedFd,
    tasks: OwnedFd,
    /// Threads of a process whose main thread has ended. Allocated at the start, never beyond
    /// [`FOLLOWED_MOST`].
    followed: Vec<(u32, OwnedFd)>,
    /// The exit code of the last followed thread that ended, as wait(2) gives it.
    exit_code: Option<u32>,
}

impl LastThread {
    /// Opens the files of the main thread. Call it on a raw thread.
    ///
    /// # Errors
    /// No `/proc` (`NotFound`), or no descriptor left.
    pub fn new() -> io::Result<Self> {
        let open =
            |path, more| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | more, Mode::empty());
        Ok(Self {
            main_statm: open(c"/proc/self/statm", OFlags::empty())?,
            main_stat: open(c"/proc/self/stat", OFlags::empty())?,
            tasks: open(c"/proc/self/task", OFlags::DIRECTORY)?,
            followed: Vec::with_capacity(FOLLOWED_MOST),
            exit_code: None,
        })
    }

    /// Ends the process as the kernel would have if no thread of the program is left. As long as
    /// the main thread runs this costs one short read, about a microsecond.
    pub fn end_with_program(&mut self) {
        let mut text = [0; 1024];
        // Of a thread that has given up its memory all counts are 0.
        if !read_start(&self.main_statm, &mut text).is_ok_and(|text| text.starts_with(b"0 ")) {
            return;
        }
        let ended = ENDED.load(Ordering::SeqCst);
        let raw_threads = RAW_THREADS.load(Ordering::SeqCst);
        let Some(stat) = read_start(&self.main_stat, &mut text).ok().and_then(parse_stat) else { return };
        if !stat.is_main_gone() {
            return;
        }
        self.take_exit_codes();
        // The main thread stays until the process ends. The kernel counts all threads at one
        // moment, and only a thread of the program makes another of the program. So if all but one
        // are ours, there is none and there will be none. A raw thread that ended between the two
        // counts would make up for one of the program.
        if stat.threads == raw_threads + 1 && ENDED.load(Ordering::SeqCst) == ended {
            // The status is the last thread's. A kernel before 6.15 does not tell it; one before
            // 6.0 takes the main thread's.
            let code = self.exit_code.map(u64::from).or(stat.exit_code).unwrap_or(0);
            // As wait(2) gives it: the number that the thread gave to exit(2) in the second byte.
            exit_process((code >> 8) as u8);
        }
        if stat.threads <= FOLLOWED_MOST as u64 {
            self.follow();
        }
    }

    /// Stops following the threads that have ended.
    fn take_exit_codes(&mut self) {
        let ended = &mut self.exit_code;
        self.followed.retain(|(_, thread)| match exit_code(thread) {
            Ok(None) => true,
            Ok(Some(code)) => {
                *ended = Some(code);
                false
            }
            // The kernel does not tell.
            Err(_) => false,
        });
    }

    fn follow(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 2048];
        if rustix::fs::seek(&self.tasks, SeekFrom::Start(0)).is_err() {
            return;
        }
        let mut entries = RawDir::new(&self.tasks, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            let Some(id) = entry.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let is_known = self.followed.iter().any(|(known, _)| *known == id);
            if !is_known
                && self.followed.len() < FOLLOWED_MOST
                && let Ok(thread) = thread_descriptor(id)
            {
                self.followed.push((id, thread));
            }
        }
    }
}

/// The exit code of the thread behind the descriptor, as wait(2) gives it; `None` while it runs.
///
/// # Errors
/// The kernel does not tell: before Linux 6.15.
fn exit_code(thread: &OwnedFd) -> rustix::io::Result<Option<u32>> {
    let mut info = PidfdInfo { mask: INFO_EXIT, words: [0; 14] };
    // SAFETY: PIDFD_GET_INFO of linux/pidfd.h reads and writes a `struct pidfd_info` of 64 bytes,
    // its first version, as the number of the request says.
    unsafe { ioctl(thread, Updater::<GET_INFO, PidfdInfo>::new(&mut info)) }?;
    Ok((info.mask & INFO_EXIT != 0).then_some(info.words[13]))
}

/// `struct pidfd_info` of linux/pidfd.h, its first version: after the mask a cgroup's number,
/// eleven words about the process, and the exit code.
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    words: [u32; 14],
}

/// `PIDFD_INFO_EXIT` of linux/pidfd.h.
const INFO_EXIT: u64 = 1 << 3;

/// `PIDFD_GET_INFO` of linux/pidfd.h.
const GET_INFO: Opcode = opcode::read_write::<PidfdInfo>(0xff, 11);
