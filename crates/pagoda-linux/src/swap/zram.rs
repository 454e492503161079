//! Compressed block devices in memory (zram): one of our own as swap.
//!
//! A device is added for each run and removed when its handle is dropped; devices that were there
//! before are never used. The device's memory is charged to no group, so its own limit bounds it.
//! This module must never reset a device that it did not add or that does not carry the label it is
//! asked for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::swap::swapfile::{self, Label, Swap};

const CONTROL: &str = "/sys/class/zram-control";

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
    /// Adds a device and enables it as swap. Tries `modprobe zram` if the kernel has no zram yet.
    pub fn create(setup: Setup) -> io::Result<Self> {
        Self::create_told(setup, |_| Ok(()))
    }

    /// The same. `told` gets the device's number before it is set up, so that a note can name it
    /// also if this process is killed meanwhile.
    pub fn create_told(setup: Setup, told: impl FnOnce(u32) -> io::Result<()>) -> io::Result<Self> {
        if !Path::new(CONTROL).exists() {
            // Without the module the next step fails with a clear message; modprobe's own is worth
            // less.
            let _ = Command::new("modprobe").arg("zram").output();
        }
        let id = tried("adding a zram device", fs::read_to_string(format!("{CONTROL}/hot_add")))?;
        let id = id.trim().parse().map_err(|_| io::Error::other("the kernel named no zram device"))?;
        let mut added = Added(Device { id, made_node: false });
        told(id)?;
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

    /// Containers often have a `/dev` that the kernel adds nothing to.
    fn ensure_node(&mut self) -> io::Result<()> {
        if self.node().exists() {
            return Ok(());
        }
        let numbers = fs::read_to_string(self.attribute("dev"))?;
        let number = |field: Option<&str>| field.and_then(|text| text.trim().parse::<u32>().ok());
        let mut fields = numbers.split(':');
        let (Some(major), Some(minor)) = (number(fields.next()), number(fields.next())) else {
            return Err(io::Error::other("the kernel gave zram no device number"));
        };
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, self.node(), FileType::BlockDevice, mode, makedev(major, minor))?;
        self.made_node = true;
        Ok(())
    }

    /// Resets and removes the device; it must be off.
    fn remove(&self) -> io::Result<()> {
        self.set("reset", "1")?;
        fs::write(format!("{CONTROL}/hot_remove"), self.id.to_string())?;
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

/// Switches off and removes the device of this number if process `owner` made it with this label,
/// or was ended before it gave it content. Returns whether it was there and is gone.
///
/// # Errors
/// Those of switching it off or removing it.
pub fn remove_left(id: u32, label: Label, owner: u32) -> io::Result<bool> {
    let device = Device { id, made_node: false };
    let size = fs::read_to_string(device.attribute("disksize")).unwrap_or_default();
    let is_fresh = size.trim() == "0";
    if !is_fresh && swapfile::owner(&device.node(), label) != Some(owner) {
        return Ok(false);
    }
    if !is_fresh {
        swapfile::disable(&device.node())?;
    }
    device.remove()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mm_stat_is_read_by_position() {
        let usage = Usage::parse("  4096  1365  8192  0  12288  1  0  2  0\n").expect("a usage");
        assert_eq!((usage.content_bytes, usage.compressed_bytes), (4096, 1365));
        assert_eq!((usage.memory_bytes, usage.memory_bytes_max), (8192, 12288));
        assert_eq!(Usage::parse("1 2 3"), None);
    }

    #[test]
    fn a_dropped_device_is_off_and_gone_and_a_stranger_is_left_alone() {
        let label = Label::new("pagoda-ztest");
        let setup = Setup { disk_bytes: 8 << 20, memory_bytes_max: Some(4 << 20), label, priority: 1 };
        let zram = match ZramSwap::create(setup) {
            Ok(zram) => zram,
            Err(error) => {
                return crate::testing::skip::skip("zram", error);
            }
        };
        let node = zram.device.0.node();
        assert_eq!(swapfile::owner(&node, label), Some(std::process::id()));
        assert!(remove_where(label, |pid| pid != std::process::id()).expect("looked").is_empty());
        assert!(remove_where(Label::new("other"), |_| true).expect("looked").is_empty());
        assert!(zram.usage().expect("usage").memory_bytes <= 4 << 20);
        let block = zram.device.0.attribute("");
        drop(zram);
        assert!(!block.exists());
    }
}
