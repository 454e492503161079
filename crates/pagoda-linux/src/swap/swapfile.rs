//! Swap areas: writing their header, switching them on with a priority, and off again when the
//! handle is dropped.
//!
//! Every area carries a label and
//! the ID of the process that made it, so that a later run recognises the leftovers of a killed
//! one. This module must never switch off, overwrite or remove an area that it did not make or that
//! does not carry the label it is asked for.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// Swap headers, like swap slots, are in OS pages.
const PAGE: usize = 4096;
/// Where the parts of a version 1 header are: the first KiB belongs to boot loaders.
const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const OWNER_AT: usize = 1036;
const LABEL_AT: usize = 1052;
const LABEL_BYTES: usize = 16;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// `SWAP_FLAG_PREFER` of the kernel's `linux/swap.h`: the low bits are a priority.
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;

/// The greatest priority the kernel takes. Other swap of the machine then stays unused.
pub const PRIORITY_MAX: u16 = 32767;

/// A label of a swap area, at most 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label([u8; LABEL_BYTES]);

impl Label {
    /// The label of `text`; a text of more than 16 bytes is cut.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut label = [0; LABEL_BYTES];
        let bytes = text.len().min(LABEL_BYTES);
        label[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
        Self(label)
    }
}

/// Makes a swap area of `bytes` out of a file or device: one page of header. The area then still
/// has to be enabled.
pub fn write_header(path: &Path, bytes: u64, label: Label) -> io::Result<()> {
    let last_page = (bytes / PAGE as u64).saturating_sub(1);
    let last_page =
        u32::try_from(last_page).map_err(|_| io::Error::other("a swap area is at most 16 TiB"))?;
    let mut page = [0u8; PAGE];
    page[VERSION_AT..][..4].copy_from_slice(&1u32.to_ne_bytes());
    page[LAST_PAGE_AT..][..4].copy_from_slice(&last_page.to_ne_bytes());
    // The area's identity is a UUID that the kernel ignores: its first word names the process that
    // made it.
    page[OWNER_AT..][..4].copy_from_slice(&std::process::id().to_ne_bytes());
    page[LABEL_AT..][..LABEL_BYTES].copy_from_slice(&label.0);
    page[PAGE - MAGIC.len()..].copy_from_slice(MAGIC);
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(&page)?;
    file.sync_all()
}

/// The ID of the process that made the swap area at `path`, if it is one with this label.
#[must_use]
pub fn owner(path: &Path, label: Label) -> Option<u32> {
    let mut page = [0u8; PAGE];
    File::open(path).and_then(|mut file| file.read_exact(&mut page)).ok()?;
    let ours = page[PAGE - MAGIC.len()..] == *MAGIC && page[LABEL_AT..][..LABEL_BYTES] == label.0;
    ours.then(|| {
        u32::from_ne_bytes([page[OWNER_AT], page[OWNER_AT + 1], page[OWNER_AT + 2], page[OWNER_AT + 3]])
    })
}

/// A swap area in use. Dropping it swaps its content in and switches it off.
#[derive(Debug)]
pub struct Swap {
    path: PathBuf,
}

impl Swap {
    /// Switches on the area at `path`; areas of a higher priority are filled first.
    pub fn enable(path: &Path, priority: u16) -> io::Result<Self> {
        let flags = SWAP_FLAG_PREFER | libc::c_int::from(priority.min(PRIORITY_MAX));
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: `name` is a C string that lives through the call, which keeps no pointer to it.
        if unsafe { libc::swapon(name.as_ptr(), flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // A failure leaves the area on, labelled and so visible to a later clean-up.
        let _ = disable(&self.path);
    }
}

/// Switches off the area at `path`: blocks while its content is swapped in. An area that is
/// not on is fine.
pub fn disable(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `name` is a C string that lives through the call, which keeps no pointer to it.
    if unsafe { libc::swapoff(name.as_ptr()) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) };
    }
    Ok(())
}

/// A swap file in use, of a size that was reserved on its disk. Dropping it switches it off and
/// removes it.
#[derive(Debug)]
pub struct SwapFile {
    // Field order is drop order: off first, then gone.
    _swap: Swap,
    _file: Unlinked,
}

impl SwapFile {
    /// Makes and enables a swap file of `bytes` (rounded down to OS pages). Fails if `path` exists.
    pub fn create(path: &Path, bytes: u64, label: Label, priority: u16) -> io::Result<Self> {
        let bytes = bytes & !(PAGE as u64 - 1);
        let handle = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let file = Unlinked(path.to_owned());
        if fallocate(&handle, FallocateFlags::empty(), 0, bytes).is_err() {
            // Some filesystems reserve nothing, and a swap file must have no holes.
            let zeros = vec![0u8; 1 << 20];
            for at in (0..bytes).step_by(zeros.len()) {
                handle.write_all_at(&zeros[..zeros.len().min((bytes - at) as usize)], at)?;
            }
        }
        handle.sync_all()?;
        write_header(path, bytes, label)?;
        Ok(Self { _swap: Swap::enable(path, priority)?, _file: file })
    }
}

/// The used bytes of the swap area at `path`, by the text of `/proc/swaps`.
#[must_use]
pub fn used_bytes(swaps: &str, path: &Path) -> u64 {
    let line = swaps.lines().find(|line| line.split_whitespace().next().map(Path::new) == Some(path));
    // The column is in KiB.
    line.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// A file that is removed when this is dropped.
#[derive(Debug)]
struct Unlinked(PathBuf);

impl Drop for Unlinked {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Switches off and removes the swap file at `path`, whose name is that of process `owner`. Returns
/// whether it was there and is gone: a file that is another's swap area stays.
///
/// # Errors
/// Those of switching it off or removing it.
pub fn remove_left(path: &Path, label: Label, owner: u32) -> io::Result<bool> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
    let maker = self::owner(path, label);
    if !is_file || maker.is_some_and(|maker| maker != owner) {
        return Ok(false);
    }
    // Without a header it was never switched on.
    if maker.is_some() {
        disable(path)?;
    }
    fs::remove_file(path)?;
    Ok(true)
}

/// Switches off and removes the swap files in `directory` that carry `label` and whose owner the
/// caller picks. Returns the paths of those that are gone.
pub fn remove_where(directory: &Path, label: Label, pick: impl Fn(u32) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_file() && owner(&path, label).is_some_and(&pick) {
            disable(&path)?;
            fs::remove_file(&path)?;
            removed.push(path);
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_its_owner_and_only_under_its_own_label() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("area");
        fs::write(&path, vec![7u8; 64 << 10]).expect("write");
        assert_eq!(owner(&path, Label::new("ours")), None, "not a swap area");
        write_header(&path, 64 << 10, Label::new("ours")).expect("header");
        assert_eq!(owner(&path, Label::new("ours")), Some(std::process::id()));
        assert_eq!(owner(&path, Label::new("theirs")), None);
        let removed = remove_where(dir.path(), Label::new("ours"), |pid| pid == 1).expect("looked");
        assert!(removed.is_empty() && path.exists(), "another owner's");
    }

    #[test]
    fn swap_used_is_found_by_path() {
        let swaps = "Filename Type Size Used Priority\n/a file 100 7 1\n/ab file 100 9 1\n";
        assert_eq!(used_bytes(swaps, Path::new("/ab")), 9 << 10);
        assert_eq!(used_bytes(swaps, Path::new("/b")), 0);
    }

    #[test]
    fn a_dropped_swap_file_is_off_and_gone() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let path = dir.path().join("pagoda-test.swap");
        let on = || fs::read_to_string("/proc/swaps").unwrap_or_default().contains("pagoda-test.swap");
        match SwapFile::create(&path, 8 << 20, Label::new("pagoda-test"), 1) {
            Err(error) => {
                crate::testing::skip::skip("swap file", error);
            }
            Ok(file) => {
                assert!(on());
                drop(file);
            }
        }
        assert!(!on() && !path.exists(), "also after a failure nothing stays");
    }
}
