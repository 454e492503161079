//! Files as memory, through the manager's budget.
//!
//! This module must never report a sync as done that has failed.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;

use pagoda::{Bytes, FileError, FileRegion, FileRegionBuilder, MapFileError};

use crate::builder::to_path;
use crate::error::{Code, Error, Failure, call, call_on, check_part, hand_out, shared, string, take_back};
use crate::manager::Manager;
use crate::region::{bytes_mut, bytes_of};

/// A file as memory. Any number of threads may use it at once.
pub struct File(FileRegion);

fn of_file(error: FileError) -> Failure {
    match error {
        FileError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        error => Failure::new(Code::File, error),
    }
}

fn of_map(error: MapFileError) -> Failure {
    match error {
        MapFileError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        error => Failure::new(Code::File, error),
    }
}

/// Maps all of the file at `path`, to be read, or also to be written. `buffered` goes through the
/// kernel's page cache, for file systems without direct I/O: pages in that cache are in no budget.
///
/// # Safety
/// `manager` is a handle or null, `path` a string or null, `file` valid for a write or null,
/// `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_map(
    manager: *const Manager,
    path: *const c_char,
    writable: bool,
    buffered: bool,
    file: *mut *mut File,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller keeps the handle open and the string unchanged during the call.
        let (manager, path) = unsafe { (shared(manager, "manager")?, string(path, "path")?) };
        let builder = manager.0.map_file(to_path(path)).writable(writable).buffered(buffered);
        builder.map().map(File).map_err(of_map)
    };
    // SAFETY: the caller vouches for `error` and `file`.
    unsafe { call(error, || hand_out(file, make)) }
}

/// The same of an open file, which may be closed afterwards: it is opened anew. Maps `bytes` from
/// `offset` on, a multiple of 4 KiB; all up to the file's end for 0. All offsets of the handle's
/// calls count from there.
///
/// # Safety
/// `manager` is a handle or null, `file` valid for a write or null, `error` null or valid.
/// `descriptor` stays open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_map_fd(
    manager: *const Manager,
    descriptor: c_int,
    offset: u64,
    bytes: u64,
    writable: bool,
    buffered: bool,
    file: *mut *mut File,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller keeps the handle and the descriptor open during the call.
        let builder = unsafe { part_of_open(shared(manager, "manager")?, descriptor, offset, bytes)? };
        builder.writable(writable).buffered(buffered).map().map(File).map_err(of_map)
    };
    // SAFETY: the caller vouches for `error` and `file`.
    unsafe { call(error, || hand_out(file, make)) }
}

/// A part of an open file; of all up to its end for no `bytes`.
///
/// # Safety
/// `descriptor` stays open during the call, or is none.
pub unsafe fn part_of_open(
    manager: &Manager,
    descriptor: c_int,
    offset: u64,
    bytes: u64,
) -> Result<FileRegionBuilder, Failure> {
    if descriptor < 0 {
        return Err(Failure::argument("descriptor", "is none; give one of an open file"));
    }
    // SAFETY: the caller keeps it open during the call; one that is not is an error of dup(2).
    let open = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let builder = manager.0.map_open_file(open).map_err(|error| Failure::new(Code::File, error))?;
    let builder = builder.offset(Bytes::new(offset));
    Ok(if bytes == 0 { builder } else { builder.length(Bytes::new(bytes)) })
}

/// The first byte of the file in memory; null for null. A page that can't be read raises SIGBUS:
/// pagoda_file_read_at returns an error in its place.
///
/// # Safety
/// `file` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_address(file: *const File) -> *mut c_void {
    // SAFETY: the handle is null, or the caller keeps it open during the call.
    unsafe { file.as_ref() }.map_or(std::ptr::null_mut(), |file| file.0.as_ptr().cast())
}

/// The file's length when it was mapped, in bytes; 0 for null.
///
/// # Safety
/// `file` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_bytes(file: *const File) -> usize {
    // SAFETY: the handle is null, or the caller keeps it open during the call.
    unsafe { file.as_ref() }.map_or(0, |file| file.0.len())
}

/// Copies from the file.
///
/// # Safety
/// `file` is a handle or null; `into` is valid for writes of `bytes`, and no part of the file's
/// memory; `error` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_read_at(
    file: *const File,
    offset: usize,
    into: *mut c_void,
    bytes: usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the header asks the caller for the contracts of both calls, in the same words.
    unsafe {
        call_on(file, "file", error, |File(file)| {
            check_part(offset, bytes, file.len())?;
            file.read_at(offset, bytes_mut(into, bytes)?).map_err(of_file)
        })
    }
}

/// Copies into the file's memory. pagoda_file_sync returns when it is on stable storage.
///
/// # Safety
/// `file` is a handle or null; `from` is valid for reads of `bytes`, and no part of the file's
/// memory; `error` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_write_at(
    file: *const File,
    offset: usize,
    from: *const c_void,
    bytes: usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the header asks the caller for the contracts of both calls, in the same words.
    unsafe {
        call_on(file, "file", error, |File(file)| {
            check_part(offset, bytes, file.len())?;
            file.write_at(offset, bytes_of(from, bytes)?).map_err(of_file)
        })
    }
}

/// Returns when all earlier writes are on stable storage.
///
/// # Safety
/// `file` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_sync(file: *const File, error: *mut Error) -> Code {
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on(file, "file", error, |File(file)| file.sync().map_err(of_file)) }
}

/// Syncs as pagoda_file_sync does, and closes the handle also where that fails.
///
/// # Safety
/// `file` is a handle or null, and neither it nor its memory is used again; `error` is null or
/// valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_close(file: *mut File, error: *mut Error) -> Code {
    // SAFETY: the caller does not use the handle again, nor the memory behind it.
    let file = unsafe { take_back(file) };
    let body = || match file {
        Some(File(file)) => file.close().map_err(of_file),
        None => Ok(()),
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}
