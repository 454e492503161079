//! Files as memory, through the manager's budget.
//!
//! This module must never report a file as safe whose sync has failed.

use std::ffi::{c_char, c_void};

use pagoda::{FileError, FileRegion, MapFileError};

use crate::builder::path;
use crate::error::{Code, Error, Failure, call, hand_out, shared, string, take_back};
use crate::manager::Manager;
use crate::region::{bytes_mut, bytes_of};

/// A file as memory. Any number of threads may use it at once.
pub struct File(FileRegion);

fn of_file(error: FileError) -> Failure {
    match error {
        FileError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        FileError::BeyondEnd { .. } => Failure::new(Code::Argument, error),
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
/// `manager` is a handle or null, `name` a string or null, `file` valid for a write or null,
/// `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_map(
    manager: *const Manager,
    name: *const c_char,
    writable: bool,
    buffered: bool,
    file: *mut *mut File,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller vouches for both.
        let (manager, name) = unsafe { (shared(manager, "manager")?, string(name, "name")?) };
        let builder = manager.0.map_file(path(name)).writable(writable).buffered(buffered);
        builder.map().map(File).map_err(of_map)
    };
    // SAFETY: the caller vouches for both.
    unsafe { call(error, || hand_out(file, make)) }
}

/// The first byte of the file in memory; null for null. A page that can't be read raises SIGBUS:
/// pagoda_file_read_at returns an error in its place.
///
/// # Safety
/// `file` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_address(file: *const File) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { file.as_ref() }.map_or(std::ptr::null_mut(), |file| file.0.as_ptr().cast())
}

/// The file's length when it was mapped, in bytes; 0 for null.
///
/// # Safety
/// `file` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_bytes(file: *const File) -> usize {
    // SAFETY: the caller vouches for it.
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
    let body = || {
        // SAFETY: the caller vouches for both.
        let (file, into) = unsafe { (shared(file, "file")?, bytes_mut(into, bytes)?) };
        file.0.read_at(offset, into).map_err(of_file)
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Copies into the file's memory. It is safe on the disk after pagoda_file_sync.
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
    let body = || {
        // SAFETY: the caller vouches for both.
        let (file, from) = unsafe { (shared(file, "file")?, bytes_of(from, bytes)?) };
        file.0.write_at(offset, from).map_err(of_file)
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Returns when all earlier writes are on stable storage.
///
/// # Safety
/// `file` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_sync(file: *const File, error: *mut Error) -> Code {
    // SAFETY: the caller vouches for both.
    unsafe { call(error, || shared(file, "file")?.0.sync().map_err(of_file)) }
}

/// Makes everything safe, as pagoda_file_sync does, and closes the handle whatever comes of it.
///
/// # Safety
/// `file` is a handle or null, and neither it nor its memory is used again; `error` is null or
/// valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_file_close(file: *mut File, error: *mut Error) -> Code {
    // SAFETY: the caller vouches for it.
    let file = unsafe { take_back(file) };
    let body = || match file {
        Some(File(file)) => file.close().map_err(of_file),
        None => Ok(()),
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}
