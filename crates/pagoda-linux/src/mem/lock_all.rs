//! mlockall(2) for a process in which Pagoda has memory of its own.
//!
//! The kernel would lock that, too, and populate every page of reservations: the arenas and the
//! store's room are many times the budget, which is there for the program. So the program's memory
//! is locked, all of it and as it asked, and Pagoda's is not: none of its pages is populated for
//! the lock, except mappings of an engine that starts at this very moment. It runs in a thread of
//! the program, whose stack is managed memory: this module must never allocate, nor take a lock,
//! nor lock less of the program's than it asked for.

use std::ffi::{c_int, c_void};
use std::io;

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlock, mlockall, munlock};

use crate::mem::own_memory::{each_of_ours_alone, not_ours_alone};
use crate::mem::range::PageRange;
use crate::procfs::maps::for_each_mapping;

/// As mlockall(2), for all that is not Pagoda's own.
///
/// Blocks until all is populated, as faults do. Memory that another thread maps meanwhile may be
/// locked without being populated, and pages that reclaim moves out at this moment are swapped in
/// when they are touched.
///
/// # Errors
/// Those of mlockall(2), also for `flags`; nothing has changed then. `EAGAIN` if `/proc/self/maps`
/// can't be read: all is locked, but is populated only as it is touched.
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
        // Later mappings are populated as they are mapped.
        mlockall(MlockAllFlags::FUTURE)?;
    }
    let listed = for_each_mapping(&mut [0; 2048], |mapping| {
        if let Some(range) = PageRange::new(mapping.start, mapping.end) {
            not_ours_alone(range, |part| {
                // SAFETY: it changes no content. Pages that can't be locked (the kernel's own
                // pages) or populated are left, as by mlockall(2).
                let _ = unsafe { mlock(at(part), part.len()) };
            });
        }
    });
    // Memory that was mapped for Pagoda during the walk.
    unlock_ours();
    listed.map_err(|_| Errno::AGAIN.into())
}

fn unlock_ours() {
    each_of_ours_alone(|range| {
        // SAFETY: it changes no content. Memory that was unmapped meanwhile has no owner.
        let _ = unsafe { munlock(at(range), range.len()) };
    });
}

fn at(range: PageRange) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(range.start())
}
