//! Address space of Pagoda's own: an arena, the store's room, a stack, the heap.
//!
//! The program's limit of private memory (`RLIMIT_DATA`) is the program's. The kernel counts there
//! every private writable mapping, touched or not, and Pagoda reserves several times the
//! budget. A mapping that grows downwards is not counted: it is a stack to the kernel.
//! `UFFDIO_MOVE` takes it like any other. So all of ours is mapped so, behind a page that nothing
//! can access. The page also keeps the kernel from growing it: a stray access below is a fault, as
//! in any hole. Address space (`RLIMIT_AS`) is counted all the same.
//!
//! A mapping begins closed, so that none of its pages is entered where the program has locked all
//! its memory. This module must never leave a mapping without that page below it.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagoda_core::page::OS_PAGE;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munlock, munmap,
};

use crate::mem::aligned;
use crate::mem::own_memory::{declare, shorten};
use crate::mem::range::PageRange;

/// Mappings of the engine that find room although the program has all that the kernel allows
/// (`vm.max_map_count`): stacks, and steps of its heap beyond the heap's room. They are few, since
/// a fork has to leave each of them out of the child.
const SPARES: usize = 8;

/// Two mappings each, which make room for one of ours and the page below it.
const SPARE_BYTES: usize = 2 * OS_PAGE;

/// Where the spare mappings begin, and how many are left.
static SPARES_AT: AtomicUsize = AtomicUsize::new(0);
static SPARES_LEFT: AtomicUsize = AtomicUsize::new(0);

/// Takes the spare mappings of an engine. Where the process is at its limit, there are fewer.
pub fn keep_spares() {
    if SPARES_LEFT.load(Ordering::Acquire) != 0 {
        return;
    }
    let Ok(spares) = aligned::map_by(map_inaccessible, SPARES * SPARE_BYTES, OS_PAGE) else { return };
    if !declare(spares) {
        // SAFETY: the mapping was just made, and no other code knows of it.
        let _ = unsafe { munmap(at(spares), spares.len()) };
        return;
    }
    // SAFETY: the mapping is ours, and no other code knows of it. The advice changes what children
    // get.
    let _ = unsafe { madvise(at(spares), spares.len(), Advice::LinuxDontFork) };
    let is_apart = |spare: &usize| {
        let first = at(PageRange::at(spares.start() + spare * SPARE_BYTES, OS_PAGE));
        // SAFETY: as above. Neighbours of another protection are mappings of their own.
        unsafe { mprotect(first, OS_PAGE, MprotectFlags::READ) }.is_ok()
    };
    let kept = (0..SPARES).take_while(is_apart).count();
    SPARES_AT.store(spares.start(), Ordering::Release);
    SPARES_LEFT.store(kept, Ordering::Release);
}

/// In a child, which did not inherit them.
pub(crate) fn forget_spares() {
    SPARES_LEFT.store(0, Ordering::Release);
}

fn give_up_spare() -> bool {
    let take = |left: usize| left.checked_sub(1);
    let Ok(left) = SPARES_LEFT.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) else {
        return false;
    };
    let start = SPARES_AT.load(Ordering::Acquire) + (left - 1) * SPARE_BYTES;
    // SAFETY: it is one of the spares, taken once, and holds nothing.
    let is_given_up = unsafe { munmap(at(PageRange::at(start, SPARE_BYTES)), SPARE_BYTES) }.is_ok();
    shorten(SPARES_AT.load(Ordering::Acquire), start);
    is_given_up
}

/// Maps `len` bytes (a multiple of the OS page) aligned to `align` (a power of two, of at least an
/// OS page), which nothing may touch before [`open`]. The page below is inaccessible for good.
/// Children of a fork get neither.
///
/// # Errors
/// Those of `mmap`: a limit of addresses or mappings.
pub(crate) fn map_closed(len: usize, align: usize) -> io::Result<PageRange> {
    loop {
        match try_map_closed(len, align) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && give_up_spare() => {}
            result => return result,
        }
    }
}

fn try_map_closed(len: usize, align: usize) -> io::Result<PageRange> {
    let whole = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
    let whole = aligned::map_by(map_inaccessible, whole, align)?;
    let range = PageRange::at(whole.start() + align, len);
    let below = align - OS_PAGE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED | MapFlags::GROWSDOWN;
    // SAFETY: all ranges are parts of the mapping just made, of which no other code knows. The last
    // call changes what children get, and no content.
    unsafe {
        if below > 0 {
            munmap(at(whole), below)?;
        }
        let with_page = with_page_below(range);
        mmap_anonymous(at(range), len, ProtFlags::empty(), flags)
            .and_then(|_| madvise(at(with_page), with_page.len(), Advice::LinuxDontFork))
            .inspect_err(|_| unmap(range))?;
    }
    Ok(range)
}

/// A mapping, and the page below it.
pub(crate) fn with_page_below(range: PageRange) -> PageRange {
    PageRange::at(range.start() - OS_PAGE, range.len() + OS_PAGE)
}

fn map_inaccessible(len: usize) -> Result<*mut c_void, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) }
}

/// Lets a mapping that was made closed be read and written, unlocked. It is declared as Pagoda's
/// own by now: a program that locks all memory before that is undone here, and one that does it
/// later finds it on the list.
pub(crate) fn open(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the mapping is the caller's own, and no other code knows of it yet.
    unsafe {
        munlock(at(range), range.len())?;
        mprotect(at(range), range.len(), MprotectFlags::READ | MprotectFlags::WRITE)
    }
}

/// Unmaps a range of [`map_closed`], and the page below it.
///
/// # Safety
/// `range` is all of one such mapping, and nothing uses it any more.
pub(crate) unsafe fn unmap(range: PageRange) {
    let with_page = with_page_below(range);
    // SAFETY: the caller gives up the range, and the page below it belongs to that.
    let _ = unsafe { munmap(at(with_page), with_page.len()) };
}

fn at(range: PageRange) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(range.start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::own_memory::is_own;
    use crate::procfs::maps::for_each_mapping;

    /// The bytes that the kernel counts for `RLIMIT_DATA`.
    fn data_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("VmData");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    #[test]
    fn spare_mappings_are_ours_until_they_are_given_up() {
        keep_spares();
        let spares = PageRange::at(SPARES_AT.load(Ordering::Acquire), SPARES * SPARE_BYTES);
        let last = PageRange::page(spares.end() - 1);
        assert!(is_own(last) && is_own(PageRange::page(spares.start())));
        assert!(give_up_spare());
        assert!(!is_own(last) && is_own(PageRange::page(last.start() - SPARE_BYTES)));
    }

    #[test]
    fn what_is_reserved_counts_as_no_data_and_has_a_closed_page_below() {
        const LEN: usize = 1 << 40;
        let range = map_closed(LEN, 2 << 20).expect("address space");
        open(range).expect("opened");
        assert!(range.start().is_multiple_of(2 << 20));
        assert!(data_bytes() < LEN as u64, "{} bytes are counted", data_bytes());
        let mut is_below_closed = false;
        for_each_mapping(&mut [0; 2048], |mapping| {
            let has = (mapping.start..mapping.end).contains(&(range.start() - 1));
            is_below_closed |= has && !mapping.read && !mapping.write;
        })
        .expect("maps");
        assert!(is_below_closed);
        // SAFETY: the test's own, and nothing uses it.
        unsafe { unmap(range) };
    }
}
