//! Compressed block devices in memory (zram): one of our own as swap.
//!
//! A device is added for each run and removed when its handle is dropped; devices that were there
//! before are never used. The device's memory is charged to no group, so its own limit bounds it.
//! The kernel gives numbers of removed devices out again, so a device is known by its sequence
//! number as well. This module must never reset a device that it did not add or that does not carry
//! the label it is asked for.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::swap::swapfile::{self, Label, Swap};

/// The directory by whose files devices are added and removed.
pub const CONTROL: &str = "/sys/class/zram-control";

/// The kernel removes no device that is open, and udev looks into each for some milliseconds.
const REMOVE_MS_MAX: u64 = 2000;

/// How a device is to be set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How many bytes of content it offers.
    pub disk_bytes: u64,
    /// How many bytes of memory it may take; `None` for no limit. A device at its limit fails its
    /// writes, so choose `disk_bytes` to be used up before.
    pub memory_bytes_max: Option<u64>,
    /// The label of its swap area.
    pub label: Label,
    /// Its priority among swap areas.
    pub priority: u16,
}

/// The content and memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of content it holds.
    pub content_bytes: u64,
    /// The compressed size of that content.
    pub compressed_bytes: u64,
    /// Bytes of memory it takes, its allocator's loss included.
    pub memory_bytes: u64,
    /// The most it has taken.
    pub memory_bytes_max: u64,
}

/// A zram device in use as swap, compressing with LZ4. Dropping it switches it off and removes the
/// device.
#[derive(Debug)]
pub struct ZramSwap {
    // Field order is drop order: off first, then gone.
    _swap: Swap,
    device: Added,
}

/// A device that is removed on drop.
#[derive(Debug)]
struct Added(Device);

/// A device that was added. A later one of the same number has another sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// Its number.
    pub number: u32,
    /// Its `diskseq`; 0 where the kernel has none (before Linux 5.15).
    pub sequence: u64,
}

impl DeviceId {
    /// The device that has this number now.
    #[must_use]
    pub fn of(number: u32) -> Self {
        let text = fs::read_to_string(format!("/sys/block/zram{number}/diskseq")).unwrap_or_default();
        Self { number, sequence: text.trim().parse().unwrap_or(0) }
    }
}

/// Adds a device, which is not set up yet. Tries `modprobe zram` if the kernel has no zram yet.
///
/// # Errors
/// The kernel's.
pub fn add() -> io::Result<DeviceId> {
    if !Path::new(CONTROL).exists() {
        // Without the module the next step fails with a clear message; modprobe's own is worth
        // less.
        let _ = Command::new("modprobe").arg("zram").output();
    }
    let number = tried("adding a zram device", fs::read_to_string(format!("{CONTROL}/hot_add")))?;
    let number = number.trim().parse().map_err(|_| io::Error::other("the kernel named no zram device"))?;
    Ok(DeviceId::of(number))
}

/// A device by its number.
#[derive(Debug)]
struct Device {
    id: u32,
    made_node: bool,
}

/// An error that keeps its kind and names the step that failed.
fn tried<T>(what: &str, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
}

impl ZramSwap {
    /// Adds a device and enables it as swap.
    ///
    /// # Errors
    /// The kernel's, with the step that failed.
    pub fn create(setup: Setup) -> io::Result<Self> {
        Self::create_on(add()?, setup)
    }

    /// The same on a device that was [added](add) before, which it owns from now on.
    ///
    /// # Errors
    /// The kernel's, with the step that failed.
    pub fn create_on(device: DeviceId, setup: Setup) -> io::Result<Self> {
        let mut added = Added(Device { id: device.number, made_node: false });
        let device = &mut added.0;
        tried("choosing lz4 for zram", device.set("comp_algorithm", "lz4"))?;
        tried("setting the size of zram", device.set("disksize", &setup.disk_bytes.to_string()))?;
        if let Some(bytes) = setup.memory_bytes_max {
            tried("setting the limit of zram", device.set("mem_limit", &bytes.to_string()))?;
        }
        device.ensure_node()?;
        swapfile::write_header(&device.node(), setup.disk_bytes, setup.label)?;
        let swap = tried("enabling zram as swap", Swap::enable(&device.node(), setup.priority))?;
        Ok(Self { _swap: swap, device: added })
    }

    /// Switches it off and removes it; blocks while its content is swapped in.
    ///
    /// # Errors
    /// It, still in use, where the kernel has no memory for its content.
    pub fn give_up(self) -> Result<(), Self> {
        match swapfile::disable(&self.node()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self),
        }
    }

    /// Its device file, as /proc/swaps names it.
    #[must_use]
    pub fn node(&self) -> PathBuf {
        self.device.0.node()
    }

    /// Its content and memory now.
    pub fn usage(&self) -> io::Result<Usage> {
        Usage::parse(&fs::read_to_string(self.device.0.attribute("mm_stat"))?).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "mm_stat of zram is of an unknown form")
        })
    }
}

impl Usage {
    fn parse(mm_stat: &str) -> Option<Self> {
        let mut fields = mm_stat.split_whitespace().map(|field| field.parse::<u64>().ok());
        let (content_bytes, compressed_bytes, memory_bytes) =
            (fields.next()??, fields.next()??, fields.next()??);
        let memory_bytes_max = fields.nth(1)??;
        Some(Self { content_bytes, compressed_bytes, memory_bytes, memory_bytes_max })
    }
}

impl Device {
    fn node(&self) -> PathBuf {
        format!("/dev/zram{}", self.id).into()
    }

    fn attribute(&self, name: &str) -> PathBuf {
        format!("/sys/block/zram{}/{name}", self.id).into()
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.attribute(name), value)
    }

    /// Containers often have a `/dev` that the kernel adds nothing to. A file of that name that is
    /// another device is refused.
    fn ensure_node(&mut self) -> io::Result<()> {
        let numbers = fs::read_to_string(self.attribute("dev"))?;
        let number = |field: Option<&str>| field.and_then(|text| text.trim().parse::<u32>().ok());
        let mut fields = numbers.split(':');
        let (Some(major), Some(minor)) = (number(fields.next()), number(fields.next())) else {
            return Err(io::Error::other("the kernel gave zram no device number"));
        };
        let device = makedev(major, minor);
        if let Ok(found) = fs::symlink_metadata(self.node()) {
            let is_it = found.file_type().is_block_device() && found.rdev() == device;
            return if is_it { Ok(()) } else { Err(io::Error::other("its file in /dev is another device")) };
        }
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, self.node(), FileType::BlockDevice, mode, device)?;
        self.made_node = true;
        Ok(())
    }

    /// Resets and removes the device, which must be off. Waits for two seconds at most where
    /// another process has it open.
    fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_millis(REMOVE_MS_MAX);
        let remove = || {
            self.set("reset", "1")?;
            fs::write(format!("{CONTROL}/hot_remove"), self.id.to_string())
        };
        loop {
            match remove() {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                done => break done?,
            }
        }
        if self.made_node {
            let _ = fs::remove_file(self.node());
        }
        Ok(())
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        // A device that can't be removed now keeps its label, and so stays visible to
        // `remove_where`.
        let _ = self.0.remove();
    }
}

/// Switches off and removes the devices that carry `label` and whose owner the caller picks.
/// Returns their names.
pub fn remove_where(label: Label, pick: impl Fn(u32) -> bool) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(id) = name.strip_prefix("zram").and_then(|id| id.parse().ok()) else { continue };
        let node = PathBuf::from(format!("/dev/{name}"));
        if swapfile::owner(&node, label).is_some_and(&pick) {
            swapfile::disable(&node)?;
            Device { id, made_node: false }.remove()?;
            removed.push(name);
        }
    }
    Ok(removed)
}

/// Switches off and removes a device that process `owner` added, whether it got as far as giving it
/// this label or not. Returns whether it was there and is gone: a later device of its number stays,
/// and so does one that was given other content since.
///
/// # Errors
/// Those of switching it off or removing it.
pub fn remove_left(id: DeviceId, label: Label, owner: u32) -> io::Result<bool> {
    let device = Device { id: id.number, made_node: false };
    if DeviceId::of(id.number) != id {
        return Ok(false);
    }
    let is_labelled = swapfile::owner(&device.node(), label) == Some(owner);
    // Of a device without a size it tells zeroes.
    let content = fs::read_to_string(device.attribute("mm_stat")).ok();
    let is_empty = content.and_then(|text| Usage::parse(&text)).is_some_and(|usage| usage.content_bytes == 0);
    let is_its_own = is_labelled || (id.sequence != 0 && is_empty);
    if !is_its_own {
        return Ok(false);
    }
    if is_labelled {
        swapfile::disable(&device.node())?;
    }
    device.remove()?;
    Ok(true)
}

#[cfg(test)]
#[path = "zram_test.rs"]
mod tests;
