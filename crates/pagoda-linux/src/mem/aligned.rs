//! Fresh private anonymous memory at an aligned address: the kernel aligns to an OS page only.
//!
//! It maps and trims. It must never advise, declare or unmap a mapping that it returned: that is
//! its caller's.

use std::ffi::c_void;
use std::io;

use pagoda_core::page::OS_PAGE;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::mem::range::PageRange;

/// Maps `len` bytes (a multiple of the OS page), readable and writable, aligned to `align` (a power
/// of two, of at least an OS page). They read as zero and take no memory until they are touched.
/// Nothing else is at the range, and its provenance is exposed; only the caller unmaps it.
///
/// # Errors
/// Those of `mmap`; those of `munmap` for the padding, which then stays mapped.
///
/// # Panics
/// If `len` is 0 or no whole number of OS pages, or `align` is less than one.
pub fn map(len: usize, align: usize) -> io::Result<PageRange> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    map_by(|padded| unsafe { mmap_anonymous(std::ptr::null_mut(), padded, protection, flags) }, len, align)
}

/// The same by `map`, which maps that many bytes.
pub(crate) fn map_by(
    map: impl FnOnce(usize) -> Result<*mut c_void, Errno>,
    len: usize,
    align: usize,
) -> io::Result<PageRange> {
    // The kernel gives whole OS pages by itself.
    let padded = len.checked_add(align - OS_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    let raw = map(padded)?;
    let start = raw.expose_provenance().next_multiple_of(align);
    let range = PageRange::at(start, len);
    let (head, tail) = (start - raw.addr(), raw.addr() + padded - range.end());
    // SAFETY: both are parts of the mapping just made, before and behind the range, and no other
    // code knows of them yet. With `start` at most `align` less an OS page past `raw` the range
    // ends within the mapping, so that neither length wraps.
    unsafe {
        if head > 0 {
            munmap(raw, head)?;
        }
        if tail > 0 {
            munmap(raw.byte_add(padded - tail), tail)?;
        }
    }
    Ok(range)
}
