//! The set-up of a run by the kernel's swap: control groups, zram devices and swap files.
//!
//! Each thing is noted before it is made and goes with its value, the processes of the group first.
//! This module must never decide a size.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagoda_core::budget::steering::Sight;
use pagoda_core::size::Bytes;
use pagoda_linux::swap::cgroup::{Controller, MemoryGroup};
use pagoda_linux::swap::freezer::Freezer;
use pagoda_linux::swap::swapfile::{self, PRIORITY_MAX, SwapFile};
use pagoda_linux::swap::zram::{Setup, ZramSwap};

use super::guard::Guard;
use super::note::{self, Note};

/// Devices are used before files: below the priority of any device.
const FILE_PRIORITY: u16 = PRIORITY_MAX - 100;

/// The limit falls in steps of this, some milliseconds each: if the kernel can't swap out so much,
/// it refuses the whole step.
const STEP: u64 = 1 << 20;
/// A program that is not held takes less than this while a limit is set.
const FREE_LEAST: u64 = 8 << 20;
/// A program that the kernel holds at a limit that is too high already goes on by this.
const WAKING_LEAST: u64 = 64 << 10;
/// After so long the caller looks again.
const LOWER_TIME: Duration = Duration::from_millis(8);

/// The groups of this process, in which those of the run are made.
pub struct Places {
    pub memory: Controller,
    pub freezer: PathBuf,
}

/// All of it.
pub struct Ground {
    // Field order is drop order: the processes and their memory go first, so that nothing is left
    // to swap in; then the note, and its guard last.
    group: MemoryGroup,
    freezer: Freezer,
    devices: Vec<ZramSwap>,
    files: Vec<(SwapFile, PathBuf)>,
    directory: PathBuf,
    limit: Bytes,
    is_held: bool,
    note: Note,
    guard: Guard,
}

impl Ground {
    /// A group with this limit, without swap.
    pub fn set_up(
        places: &Places,
        limit: Bytes,
        directory: &Path,
        (note, guard): (Note, Guard),
    ) -> io::Result<Self> {
        let (name, controller) = (note.name(), &places.memory);
        let frozen = places.freezer.join(&name);
        note.freezer(&frozen)?;
        let freezer = Freezer::create(&frozen)?;
        note.group(&controller.root().join(&name))?;
        let group = controller.create(&name, limit.get())?;
        group.pause_at_limit()?;
        Ok(Self {
            group,
            freezer,
            devices: Vec::new(),
            files: Vec::new(),
            directory: directory.to_owned(),
            limit,
            is_held: false,
            note,
            guard,
        })
    }

    /// The memory group.
    pub fn group(&self) -> &MemoryGroup {
        &self.group
    }

    /// The files by which a process joins.
    pub fn procs(&self) -> [PathBuf; 2] {
        [self.group.procs(), self.freezer.procs()]
    }

    /// Holds the program, or lets it go. A failure leaves it as it is: the kernel refuses neither
    /// for a group that is there.
    pub fn hold(&mut self, holds: bool) {
        let _ = if holds { self.freezer.hold() } else { self.freezer.let_go() };
        self.is_held = holds;
    }

    /// Ends all processes of the group, and returns how many there were.
    pub fn kill(&mut self) -> usize {
        self.hold(false);
        self.group.kill()
    }

    /// Adds a device for so much content.
    pub fn add_zram(&mut self, content: Bytes) -> io::Result<()> {
        let setup = Setup {
            disk_bytes: content.get(),
            // It is bounded by its content.
            memory_bytes_max: None,
            label: note::label(),
            priority: PRIORITY_MAX - self.devices.len() as u16,
        };
        self.devices.push(ZramSwap::create_on(self.guard.add_zram()?, setup)?);
        Ok(())
    }

    /// Gives up the newest device; its content is read back, and goes elsewhere. Blocks meanwhile.
    /// False if there is no memory for its content: then it stays.
    pub fn drop_zram(&mut self) -> bool {
        let given_up = self.devices.pop().map_or(Ok(()), ZramSwap::give_up);
        given_up.map_err(|device| self.devices.push(device)).is_ok()
    }

    /// Adds a swap file.
    pub fn add_file(&mut self, bytes: Bytes) -> io::Result<()> {
        let path = self.directory.join(format!("{}-{}.swap", self.note.name(), self.files.len()));
        self.note.swap_file(&path)?;
        let priority = FILE_PRIORITY - self.files.len() as u16;
        let file = SwapFile::create(&path, bytes.get(), note::label(), priority)?;
        self.files.push((file, path));
        Ok(())
    }

    /// Looks at everything. A count that can't be read is zero.
    pub fn sight(&self, since: Duration) -> Sight {
        let mut sight = Sight {
            group: Bytes::new(self.group.usage_bytes().unwrap_or(0)),
            limit: self.limit,
            is_paused: self.group.is_paused(),
            since_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            ..Sight::default()
        };
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let (mut memory, mut content, mut zram_used) = (0, 0, 0);
        for device in &self.devices {
            let usage = device.usage().unwrap_or_default();
            memory += usage.memory_bytes;
            content += usage.content_bytes;
            zram_used += swapfile::used_bytes(&swaps, &device.node());
        }
        let file_used = self.files.iter().map(|(_, path)| swapfile::used_bytes(&swaps, path)).sum();
        [sight.zram_memory, sight.zram_content, sight.zram_used, sight.file_used] =
            [memory, content, zram_used, file_used].map(Bytes::new);
        sight
    }

    /// Lets processes go on that the kernel holds: raises the limit to this one, or by the least
    /// step if it is higher already.
    pub fn wake(&mut self, limit: Bytes) {
        self.steer(limit.max(self.limit.saturating_add(Bytes::new(WAKING_LEAST))));
    }

    /// Moves the limit towards `target`: up at once, down as far as the kernel follows in some
    /// milliseconds. Below the present use it falls only while the program is held: a program that
    /// takes memory meanwhile would keep the kernel at it, up to half a second for one step.
    pub fn steer(&mut self, target: Bytes) {
        if target >= self.limit {
            if target > self.limit && self.group.set_limit(target).is_ok() {
                self.limit = target;
            }
            return;
        }
        let used = || self.group.usage_bytes().unwrap_or(u64::MAX);
        if !self.is_held {
            if used().saturating_add(FREE_LEAST) < target.get() && self.group.set_limit(target).is_ok() {
                self.limit = target;
            }
            return;
        }
        let begun = Instant::now();
        while target < self.limit && begun.elapsed() < LOWER_TIME {
            let from = used().min(self.limit.get()) & !4095;
            let next = Bytes::new(from.saturating_sub(STEP)).max(target);
            if self.group.set_limit(next).is_err() {
                return;
            }
            self.limit = next;
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // A process that is held does not end, and so its group would stay.
        self.hold(false);
    }
}
