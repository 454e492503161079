//! Images of regions: saving, restoring, and private maps of files.
//!
//! This module must never call a hook of the caller's more than once for a save, nor on another
//! thread than the caller's.

use std::ffi::{c_char, c_int, c_void};

use pagoda::{MapFileError, RestoreError, SnapshotError};
use pagoda_image::PackOptions;

use crate::builder::to_path;
use crate::error::{Code, Error, Failure, call, call_on, hand_out, shared, string};
use crate::file::part_of_open;
use crate::manager::Manager;
use crate::region::{Region, of_region};

/// Called by a save or a migration, on the thread of that call, with the value that was given.
pub type WriterHook = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// Calls a hook, if there is one.
///
/// # Safety
/// It may be called with `user` now.
pub unsafe fn run(hook: WriterHook, user: *mut c_void) {
    if let Some(hook) = hook {
        // SAFETY: this function's contract.
        unsafe { hook(user) }
    }
}

/// An image that was saved.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Saved {
    /// How long the writers were stopped, in nanoseconds, their own stopping not included.
    pub pause_ns: u64,
    /// The size of the image's file.
    pub file_bytes: u64,
}

fn of_snapshot(error: SnapshotError) -> Failure {
    Failure::new(Code::Image, error)
}

fn of_restore(error: RestoreError) -> Failure {
    match error {
        RestoreError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        RestoreError::Region(error) => of_region(error),
        error => Failure::new(Code::Image, error),
    }
}

/// Saves a region to an image at `path` while it is used; an image that is there is replaced when
/// all of the new one is on disk. Its key is in a file beside it, `path` with `.key`, which is made
/// where there is none. `stop` is called once: when it has returned no thread writes to the region,
/// nor reads swapped-out pages, until `go_on` is called. That is the instant of the image. Null for
/// both if no thread uses the region meanwhile. `saved` may be null.
///
/// If `base` is not null the image at `base` has to lie in the same directory, with its key beside
/// it: only blocks that differ from it take room, and the new image has the same key. See
/// pagoda_region_track_saves.
///
/// # Safety
/// `region` is a handle or null, `path` and `base` strings or null; `stop` and `go_on` may be
/// called with `user` during the call, and must not unwind; `saved` is null or valid for a write;
/// `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_snapshot(
    region: *const Region,
    path: *const c_char,
    base: *const c_char,
    stop: WriterHook,
    go_on: WriterHook,
    user: *mut c_void,
    saved: *mut Saved,
    error: *mut Error,
) -> Code {
    let body = |Region(region): &Region| {
        // SAFETY: the caller keeps the strings unchanged during the call.
        let (path, base) = unsafe {
            let base = if base.is_null() { None } else { Some(to_path(string(base, "base")?)) };
            (to_path(string(path, "path")?), base)
        };
        let options = PackOptions::beside(&path, base.as_deref());
        let options = options.map_err(|error| Failure::new(Code::Image, error))?;
        // SAFETY: the caller vouches for both hooks during the call.
        let (stop, go_on) = (|| unsafe { run(stop, user) }, || unsafe { run(go_on, user) });
        let done = region.snapshot(&path, options, stop, go_on).map_err(of_snapshot)?;
        // SAFETY: it is null, or the caller vouches that it is valid for a write.
        if let Some(saved) = unsafe { saved.as_mut() } {
            saved.pause_ns = done.pause.as_nanos() as u64;
            saved.file_bytes = done.image.file_bytes;
        }
        Ok(())
    };
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on(region, "region", error, body) }
}

/// Has writes to a region tracked from the end of a save on, or not any more, which is how a region
/// begins. A save whose `base` is the image of the last one then reads and packs only the pages
/// written or evicted since. The first write to a page after a save costs a fault in the kernel.
/// Sending the region ends it, as does a save that fails: the next save reads all. Takes effect
/// with the next save.
///
/// # Safety
/// `region` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_track_saves(
    region: *const Region,
    yes: bool,
    error: *mut Error,
) -> Code {
    let body = |Region(region): &Region| {
        region.track_saves(yes);
        Ok(())
    };
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on(region, "region", error, body) }
}

/// Makes a region with the content of the image at `path`, of which only the index is read now. It
/// is as long as the image, rounded up. Pages come when they are touched, and those of a recorded
/// working set ahead of that. A touch of a page that is damaged raises SIGBUS:
/// pagoda_region_read_at returns an error in its place. The image must not be written as long as
/// the region lives.
///
/// # Safety
/// `manager` is a handle or null, `path` a string or null, `region` valid for a write or null,
/// `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_restore(
    manager: *const Manager,
    path: *const c_char,
    region: *mut *mut Region,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller keeps the handle open and the string unchanged during the call.
        let (manager, path) = unsafe { (shared(manager, "manager")?, string(path, "path")?) };
        manager.0.restore(to_path(path)).create().map(Region).map_err(of_restore)
    };
    // SAFETY: the caller vouches for `error` and `region`.
    unsafe { call(error, || hand_out(region, make)) }
}

/// Records what was read of the image that a region was restored from, in order, beside the image:
/// the next pagoda_region_restore reads it ahead.
///
/// # Safety
/// `region` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_record_working_set(region: *const Region, error: *mut Error) -> Code {
    let body = |Region(region): &Region| region.record_working_set().map_err(of_restore);
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on(region, "region", error, body) }
}

/// Makes a region with the content of the file at `path`, as a private mapping: writes stay in the
/// region and never reach the file. It is as long as the file, rounded up, with zeroes behind its
/// end. A touch of a page that can't be read raises SIGBUS. `buffered` is as in pagoda_file_map.
///
/// # Safety
/// `manager` is a handle or null, `path` a string or null, `region` valid for a write or null,
/// `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_map_private(
    manager: *const Manager,
    path: *const c_char,
    buffered: bool,
    region: *mut *mut Region,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller keeps the handle open and the string unchanged during the call.
        let (manager, path) = unsafe { (shared(manager, "manager")?, string(path, "path")?) };
        let builder = manager.0.map_file(to_path(path)).buffered(buffered);
        builder.map_private().map(Region).map_err(of_map)
    };
    // SAFETY: the caller vouches for `error` and `region`.
    unsafe { call(error, || hand_out(region, make)) }
}

/// The same of a part of an open file, as for pagoda_file_map_fd.
///
/// # Safety
/// `manager` is a handle or null, `region` valid for a write or null, `error` null or valid.
/// `descriptor` stays open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_map_private_fd(
    manager: *const Manager,
    descriptor: c_int,
    offset: u64,
    bytes: u64,
    buffered: bool,
    region: *mut *mut Region,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller keeps the handle and the descriptor open during the call.
        let builder = unsafe { part_of_open(shared(manager, "manager")?, descriptor, offset, bytes)? };
        builder.buffered(buffered).map_private().map(Region).map_err(of_map)
    };
    // SAFETY: the caller vouches for `error` and `region`.
    unsafe { call(error, || hand_out(region, make)) }
}

fn of_map(error: MapFileError) -> Failure {
    match error {
        MapFileError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        MapFileError::Region(error) => of_region(error),
        error => Failure::new(Code::File, error),
    }
}
