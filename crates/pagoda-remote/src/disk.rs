//! Pieces of remote files in a directory, within a bound, for all processes that share it.
//!
//! A piece is a file with a checksum. One that is damaged is removed, and counts as missing. The
//! sum of all lengths stands in the file `lock`, which is locked while a piece is added. Without
//! room the pieces that were not used for the longest time are removed. Pieces are written by a
//! thread of their own. This module must never remove a file that it has not named, and never wait
//! for another process on a fault's way.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime};

use pagoda_core::size::Bytes;
use rustix::fs::{FlockOperation, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, flock, futimens};
use twox_hash::XxHash3_64;

use crate::failure::Failure;
use crate::pieces::PIECE_BYTES;

/// The end of the name of each piece.
const SUFFIX: &str = ".piece";
/// That of one that is being written.
const UNFINISHED: &str = ".unfinished";
const CHECKSUM_BYTES: usize = 8;

/// Pieces that wait to be written. More are not kept: they can be had again.
const QUEUE_MOST: usize = 64;

/// How often the lock is asked for, and the pause between: another process may stand still with it.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// The time of a piece's last use is not noted more often.
const FRESH: Duration = Duration::from_secs(60);

struct Job {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// An open cache.
pub(crate) struct Disk {
    directory: PathBuf,
    writer: Option<(SyncSender<Job>, JoinHandle<()>)>,
}

impl Disk {
    pub(crate) fn open(directory: &Path, limit: Bytes) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::Cache(directory.display().to_string(), error.to_string());
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let store = Directory { path: directory.to_owned(), limit: limit.get() };
        // The sum may be wrong: files may have been removed by hand, or the bound was another.
        match store.locked(|lock| store.make_room(lock, 0)) {
            // Another process is about the same.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            outcome => outcome.map_err(failed)?,
        }
        let (sender, jobs) = sync_channel(QUEUE_MOST);
        let thread = Builder::new().name("pagoda-cache".to_owned()).spawn(move || store.serve(&jobs));
        Ok(Self { directory: directory.to_owned(), writer: Some((sender, thread.map_err(failed)?)) })
    }

    fn path_of(&self, file: u64, number: u64) -> PathBuf {
        self.directory.join(format!("{file:016x}-{number:08x}{SUFFIX}"))
    }

    /// A piece of the file that is known by this number, if it is there and whole.
    pub(crate) fn load(&self, file: u64, number: u64) -> Option<Vec<u8>> {
        let path = self.path_of(file, number);
        let opened =
            OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path).ok()?;
        let mut bytes = Vec::new();
        let most = (PIECE_BYTES + CHECKSUM_BYTES) as u64;
        let read = (&opened).take(most + 1).read_to_end(&mut bytes);
        let len = bytes.len().checked_sub(CHECKSUM_BYTES);
        let is_whole = read.is_ok()
            && len.is_some_and(|len| bytes[len..] == checksum(&path, &bytes[..len]).to_le_bytes());
        if !is_whole {
            let _ = fs::remove_file(&path);
            return None;
        }
        note_use(&opened);
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        Some(bytes)
    }

    /// Has a piece written.
    pub(crate) fn keep(&self, file: u64, number: u64, bytes: &[u8]) {
        if let Some((sender, _)) = &self.writer {
            let path = self.path_of(file, number);
            let mut bytes = bytes.to_vec();
            bytes.extend_from_slice(&checksum(&path, &bytes).to_le_bytes());
            // Without room in the queue it is had again from the server.
            let _ = sender.try_send(Job { path, bytes });
        }
    }

    /// Removes pieces of a file. The sum counts them until it is made anew.
    pub(crate) fn forget(&self, file: u64, numbers: Range<u64>) {
        for number in numbers {
            let _ = fs::remove_file(self.path_of(file, number));
        }
    }
}

impl Drop for Disk {
    /// Waits for the pieces that are still to be written.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// The checksum of a piece, which is another one under another name.
fn checksum(path: &Path, bytes: &[u8]) -> u64 {
    let name = path.file_name().map_or(&[][..], |name| name.as_encoded_bytes());
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(name), bytes)
}

/// Whether a file of this name is a piece, or becomes one.
fn is_piece(name: &str) -> bool {
    let name = name.strip_suffix(UNFINISHED).unwrap_or(name);
    let parts = name.strip_suffix(SUFFIX).and_then(|name| name.split_once('-'));
    parts.is_some_and(|(file, number)| {
        u64::from_str_radix(file, 16).is_ok() && u64::from_str_radix(number, 16).is_ok()
    })
}

fn note_use(file: &File) {
    let used = file.metadata().and_then(|about| about.modified()).ok();
    if used.is_none_or(|used| used.elapsed().is_ok_and(|age| age > FRESH)) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times =
            Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: now };
        let _ = futimens(file, &times);
    }
}

/// The directory as the writer has it.
struct Directory {
    path: PathBuf,
    limit: u64,
}

impl Directory {
    fn serve(&self, jobs: &Receiver<Job>) {
        for job in jobs {
            // A full disk: the piece is had again from the server.
            let _ = self.locked(|lock| self.add(lock, &job));
        }
    }

    /// Runs `body` with the lock, and the file that has the sum.
    fn locked(&self, body: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(self.path.join("lock"))?;
        for _ in 0..TRIES {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return body(&lock),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "its lock is held by another process"))
    }

    fn add(&self, lock: &File, job: &Job) -> io::Result<()> {
        let len = job.bytes.len() as u64;
        if job.path.symlink_metadata().is_ok() || len > self.limit {
            return Ok(());
        }
        let mut sum = [0; 8];
        let sum = lock.read_exact_at(&mut sum, 0).map_or(u64::MAX, |()| u64::from_le_bytes(sum));
        if sum.checked_add(len).is_none_or(|sum| sum > self.limit) {
            self.make_room(lock, len)?;
        } else {
            lock.write_all_at(&(sum + len).to_le_bytes(), 0)?;
        }
        let mut unfinished = job.path.clone().into_os_string();
        unfinished.push(UNFINISHED);
        let _ = fs::remove_file(&unfinished);
        // Not brought to the disk first: after a crash the checksum tells.
        let mut options = OpenOptions::new();
        let written = options.write(true).create_new(true).mode(0o600).open(&unfinished);
        let written = written.and_then(|mut file| file.write_all(&job.bytes));
        written.and_then(|()| fs::rename(&unfinished, &job.path)).inspect_err(|_| {
            let _ = fs::remove_file(&unfinished);
        })
    }

    /// Removes the oldest pieces if there is no room for `len` bytes, and counts these as there. It
    /// goes on to seven eighths, so that it is rare.
    fn make_room(&self, lock: &File, len: u64) -> io::Result<()> {
        let mut pieces: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.path)?.flatten() {
            let name = entry.file_name();
            let is_ours = name.to_str().is_some_and(is_piece);
            if let (true, Ok(about)) = (is_ours, entry.metadata())
                && about.is_file()
            {
                pieces.push((about.modified().unwrap_or(SystemTime::UNIX_EPOCH), about.len(), entry.path()));
            }
        }
        let mut sum: u64 = pieces.iter().map(|(_, len, _)| len).sum::<u64>() + len;
        if sum > self.limit {
            pieces.sort_unstable();
            for (_, len, path) in pieces {
                if sum <= self.limit / 8 * 7 {
                    break;
                }
                if fs::remove_file(path).is_ok() {
                    sum -= len;
                }
            }
        }
        if sum > self.limit {
            return Err(io::ErrorKind::StorageFull.into());
        }
        lock.write_all_at(&sum.to_le_bytes(), 0)
    }
}

#[cfg(test)]
#[path = "disk_test.rs"]
mod tests;
