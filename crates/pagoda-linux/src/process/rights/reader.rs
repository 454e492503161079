//! Sees changes of the program's rights which no hook sees, and has raw threads follow them.
//!
//! It reads `/proc`, at most every 50 ms. This module must never wait for another thread: the
//! watcher calls it, and would look at no memory meanwhile.

use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use linux_raw_sys::general as raw;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};

use super::{Followers, Rights, follow, have_follow, of_this_thread, place_of};
use crate::process::caller::now_ns;
use crate::procfs::statm::{STATUS_BYTES, read_start};
use crate::raw_syscall::syscall3;

/// Sees changes by system calls of the program's own: those of its main thread, or once that has
/// ended of another thread.
#[derive(Debug)]
pub struct RightsReader {
    main: OwnedFd,
    tasks: OwnedFd,
    /// The status of another thread of the program, once the main thread has ended.
    other: Option<OwnedFd>,
    seen: Option<Rights>,
    groups: Option<u64>,
    looked_ns: u64,
    /// A change that no thread has been told of yet, and one that threads follow.
    pub(super) changed: Option<Rights>,
    pub(super) followers: Option<Followers>,
}

/// The time between two looks.
const LOOK_NS: u64 = 50_000_000;

impl RightsReader {
    /// Opens the main thread's file.
    ///
    /// # Errors
    /// No `/proc` (`NotFound`), or no descriptor left.
    pub fn new() -> io::Result<Self> {
        let open =
            |path, more| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | more, Mode::empty());
        Ok(Self {
            main: open(c"/proc/self/status", OFlags::empty())?,
            tasks: open(c"/proc/self/task", OFlags::DIRECTORY)?,
            other: None,
            seen: None,
            groups: None,
            looked_ns: 0,
            changed: None,
            followers: None,
        })
    }

    /// Has all raw threads follow a change of the program's rights, the calling one included. Does
    /// not wait for the others: the next calls do.
    pub fn follow(&mut self) {
        if self.followers.as_ref().is_some_and(Followers::are_done) {
            self.followers = None;
        }
        if self.followers.is_none() {
            self.changed = self.look().or(self.changed);
            self.followers = self.changed.and_then(have_follow);
            self.changed = self.changed.filter(|_| self.followers.is_none());
        }
        follow();
    }

    /// The rights of the program if the calling raw thread has others or more. The same are told
    /// once. Looks every 50 ms at most.
    pub fn look(&mut self) -> Option<Rights> {
        let now = now_ns();
        if now - self.looked_ns < LOOK_NS {
            return None;
        }
        self.looked_ns = now;
        let ((rights, groups), own) = (self.read()?, of_this_thread().ok()?);
        let differs = rights.are_exceeded_by(own);
        let regrouped = self.groups.replace(groups).is_some_and(|before| before != groups) && has_groups();
        let is_new = self.seen.replace(rights) != Some(rights);
        (is_new && differs || regrouped).then_some(rights)
    }

    pub(super) fn read(&mut self) -> Option<(Rights, u64)> {
        let mut text = [0; STATUS_BYTES];
        let main = read_start(&self.main, &mut text).ok()?;
        if !is_gone(main) {
            return parse(main);
        }
        if self.other.is_none() {
            self.other = self.find_thread();
        }
        match read_start(self.other.as_ref()?, &mut text) {
            Ok(status) if !is_gone(status) => parse(status),
            // The next look takes another one.
            _ => {
                self.other = None;
                None
            }
        }
    }

    /// The status of a thread that is neither the main thread nor a raw one.
    fn find_thread(&self) -> Option<OwnedFd> {
        let mut buffer = [MaybeUninit::uninit(); 2048];
        rustix::fs::seek(&self.tasks, SeekFrom::Start(0)).ok()?;
        let mut entries = RawDir::new(&self.tasks, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name().to_bytes();
            let Some(id) = std::str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            if id == std::process::id() || place_of(id).is_some() {
                continue;
            }
            let mut path = [0; 32];
            let Some((into, rest)) = path.split_at_mut_checked(name.len()) else { continue };
            into.copy_from_slice(name);
            rest[..8].copy_from_slice(b"/status\0");
            let Ok(path) = CStr::from_bytes_until_nul(&path) else { continue };
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            if let Ok(status) = rustix::fs::openat(&self.tasks, path, flags, Mode::empty()) {
                return Some(status);
            }
        }
        None
    }
}

/// Whether the calling thread has supplementary groups.
fn has_groups() -> bool {
    // SAFETY: without room for a list it writes none, and returns their number.
    unsafe { syscall3(raw::__NR_getgroups, 0, 0, 0) }.is_ok_and(|count| count > 0)
}

/// Whether the thread of this status has ended.
fn is_gone(status: &[u8]) -> bool {
    let after = status.windows(7).position(|word| word == b"State:\t").and_then(|at| status.get(at + 7));
    matches!(after, Some(b'Z' | b'X'))
}

/// Of the lines `Uid:`, `Gid:` (real, effective, saved, and that of file systems), `CapPrm:` and
/// `CapEff:` of status; and a digest of the line `Groups:`.
pub(super) fn parse(status: &[u8]) -> Option<(Rights, u64)> {
    let status = std::str::from_utf8(status).ok()?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let three = |name| {
        let mut ids = line(name)?.split_ascii_whitespace().map(|id| id.parse::<u32>().ok());
        Some([ids.next()??, ids.next()??, ids.next()??])
    };
    let set = |name| u64::from_str_radix(line(name)?.trim(), 16).ok();
    let (permitted, in_effect) = (set("CapPrm:")?, set("CapEff:")?);
    let mut digest = DefaultHasher::new();
    line("Groups:")?.hash(&mut digest);
    let rights = Rights { users: three("Uid:")?, groups: three("Gid:")?, permitted, in_effect };
    Some((rights, digest.finish()))
}
