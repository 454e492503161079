//! mlockall(2) for a process in which Pagoda has memory of its own.
//!
//! The kernel would lock that, too, and enter every page of what is only reserved: the arenas and the store's room are many times
//! the budget, which is there for the program. So the program's memory is locked, all of it and as it asked, and Pagoda's is not: no
//! page of it is entered for the lock, but of what an engine that starts in this very moment maps. It runs in a thread of the program, whose stack is managed memory: this module must never
//! allocate, nor take a lock, nor lock less of the program's than it asked for.

use std::ffi::{c_int, c_void};
use std::io;

use rustix::io::Errno;
use rustix::mm::{
    MapFlags, MlockAllFlags, MprotectFlags, ProtFlags, mlock, mlockall, mmap_anonymous, mprotect, munlock,
};

use crate::mem::own_memory::{each_of_ours_alone, not_ours_alone};
use crate::mem::range::PageRange;
use crate::procfs::maps::for_each_mapping;

/// As mlockall(2), for all that is not Pagoda's own.
///
/// Blocks until all is entered that is to be, as faults do. What another thread maps meanwhile may be locked without being
/// entered, and what reclaim moves out of it at this moment comes back when it is touched.
///
/// # Errors
/// What mlockall(2) says, also of `flags`; nothing has changed then. `EAGAIN` if `/proc/self/maps` can't be read: all is locked, but
/// enters memory only as it is touched.
pub fn lock_all(flags: c_int) -> io::Result<()> {
    let flags = MlockAllFlags::from_bits_retain(flags.cast_unsigned());
    if !flags.contains(MlockAllFlags::CURRENT) {
        // Nothing is entered by that.
        return Ok(mlockall(flags)?);
    }
    mlockall(flags | MlockAllFlags::ONFAULT)?;
    unlock_ours();
    if flags.contains(MlockAllFlags::ONFAULT) {
        return Ok(());
    }
    if flags.contains(MlockAllFlags::FUTURE) {
        // What comes is to be entered as it is mapped.
        mlockall(MlockAllFlags::FUTURE)?;
    }
    let listed = for_each_mapping(&mut [0; 2048], |mapping| {
        if let Some(range) = PageRange::new(mapping.start, mapping.end) {
            not_ours_alone(range, |part| {
                // SAFETY: it changes no content. What can't be locked (the kernel's own pages) or entered is left, as by mlockall(2).
                let _ = unsafe { mlock(at(part), part.len()) };
            });
        }
    });
    // What was mapped for Pagoda just when it was looked at.
    unlock_ours();
    listed.map_err(|_| Errno::AGAIN.into())
}

fn unlock_ours() {
    each_of_ours_alone(|range| {
        // SAFETY: it changes no content. What was unmapped meanwhile is nobody's.
        let _ = unsafe { munlock(at(range), range.len()) };
    });
}

/// Maps `len` bytes of private anonymous memory for Pagoda itself where the kernel likes, which nobody may touch yet: so nothing of it
/// is entered, whatever the program has locked.
pub(crate) fn map_closed(len: usize) -> Result<*mut c_void, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) }
}

/// Lets a mapping that was made closed be read and written, unlocked. It is declared as Pagoda's own by now: who locks all memory
/// before that is undone here, and who does it later finds it on the list.
pub(crate) fn open(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the mapping is the caller's own, and nobody knows of it yet.
    unsafe {
        munlock(at(range), range.len())?;
        mprotect(at(range), range.len(), MprotectFlags::READ | MprotectFlags::WRITE)
    }
}

fn at(range: PageRange) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(range.start())
}
