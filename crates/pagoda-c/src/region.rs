//! Regions: memory of the manager's own.
//!
//! This module must never make a slice of a length that it has not checked.

use std::ffi::c_void;

use pagoda::{AccessError, Bytes, PageOutError, RegionError};

use crate::builder::base_page;
use crate::error::{
    Code, Error, Failure, alone, call, check_part, drop_quietly, hand_out, shared, take_back,
};
use crate::manager::Manager;

/// Managed memory: it reads as zero, takes nothing until it is touched, and leaves memory where its
/// manager's budget is short.
pub struct Region(pagoda::Region);

/// For an error of making a region.
pub fn of_region(error: RegionError) -> Failure {
    match error {
        RegionError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        error => Failure::new(Code::Memory, error),
    }
}

/// For an error of an access.
pub fn of_access(error: AccessError) -> Failure {
    match error {
        AccessError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        error => Failure::new(Code::Access, error),
    }
}

/// For an error of paging out.
pub fn of_page_out(error: PageOutError) -> Failure {
    match error {
        PageOutError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        error => Failure::new(Code::Store, error),
    }
}

/// Makes a region of `bytes`, rounded up to whole base pages. `base_page_bytes` is 0 for the
/// manager's, or as in pagoda_builder_base_page. `limit_bytes` is 0, or the most that it may hold:
/// a region that reaches it fails alone.
///
/// # Safety
/// `manager` is a handle or null, `region` valid for a write or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_create(
    manager: *const Manager,
    bytes: u64,
    base_page_bytes: u64,
    limit_bytes: u64,
    region: *mut *mut Region,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller vouches for it.
        let mut builder = unsafe { shared(manager, "manager") }?.0.region(Bytes::new(bytes));
        if base_page_bytes != 0 {
            builder = builder.base_page(base_page(base_page_bytes)?);
        }
        if limit_bytes != 0 {
            builder = builder.limit(Bytes::new(limit_bytes));
        }
        builder.create().map(Region).map_err(of_region)
    };
    // SAFETY: the caller vouches for both.
    unsafe { call(error, || hand_out(region, make)) }
}

/// The first byte of the region, valid for reads and writes of its whole length until it is closed;
/// null for null. An access to a page that is swapped out waits until it is back.
///
/// # Safety
/// `region` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_address(region: *const Region) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { region.as_ref() }.map_or(std::ptr::null_mut(), |region| region.0.as_ptr().cast())
}

/// The length of the region in bytes; 0 for null.
///
/// # Safety
/// `region` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_bytes(region: *const Region) -> usize {
    // SAFETY: the caller vouches for it.
    unsafe { region.as_ref() }.map_or(0, |region| region.0.len())
}

/// Copies from the region.
///
/// # Safety
/// `region` is a handle or null; `into` is valid for writes of `bytes`, and no part of the region;
/// `error` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_read_at(
    region: *const Region,
    offset: usize,
    into: *mut c_void,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller vouches for it.
        let region = unsafe { shared(region, "region") }?;
        check_part(offset, bytes, region.0.len())?;
        // SAFETY: the caller vouches for it.
        region.0.read_at(offset, unsafe { bytes_mut(into, bytes) }?).map_err(of_access)
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Copies into the region.
///
/// # Safety
/// `region` is a handle or null, which no other call uses meanwhile; `from` is valid for reads of
/// `bytes`, and no part of the region; `error` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_write_at(
    region: *mut Region,
    offset: usize,
    from: *const c_void,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller vouches for it.
        let region = unsafe { alone(region, "region") }?;
        check_part(offset, bytes, region.0.len())?;
        // SAFETY: the caller vouches for it.
        region.0.write_at(offset, unsafe { bytes_of(from, bytes) }?).map_err(of_access)
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Discards whole OS pages (4096 bytes): they read zero afterwards and hold nothing.
///
/// # Safety
/// `region` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_discard(
    region: *const Region,
    offset: usize,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller vouches for it.
        let region = unsafe { shared(region, "region") }?;
        check_part(offset, bytes, region.0.len())?;
        region.0.discard(offset, bytes).map_err(|error| {
            Failure::new(
                Code::Memory,
                format!("could not discard a part of the region ({error}); give whole OS pages"),
            )
        })
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Stores the pages of a part and gives their memory to others: for pages that are not needed for a
/// while. Waits for the compression, and for the disk where that is full.
///
/// # Safety
/// `region` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_page_out(
    region: *const Region,
    offset: usize,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller vouches for it.
        let region = unsafe { shared(region, "region") }?;
        check_part(offset, bytes, region.0.len())?;
        if bytes == 0 { Ok(()) } else { region.0.page_out(offset, bytes).map_err(of_page_out) }
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Swaps the pages of a part in, up to a quarter of the budget.
///
/// # Safety
/// `region` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_prefetch(
    region: *const Region,
    offset: usize,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller vouches for it.
        let region = unsafe { shared(region, "region") }?;
        check_part(offset, bytes, region.0.len())?;
        if bytes == 0 { Ok(()) } else { region.0.prefetch(offset, bytes).map(drop).map_err(of_access) }
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Frees the region. Its addresses are no memory any more.
///
/// # Safety
/// `region` is a handle or null, and neither it nor its memory is used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_close(region: *mut Region) {
    // SAFETY: the caller vouches for it.
    drop_quietly(unsafe { take_back(region) });
}

/// The caller's memory, to be written.
///
/// # Safety
/// `into` is null or valid for writes of `bytes`, and nothing else uses it meanwhile.
pub unsafe fn bytes_mut<'a>(into: *mut c_void, bytes: usize) -> Result<&'a mut [u8], Failure> {
    match bytes {
        0 => Ok(&mut []),
        _ if into.is_null() => Err(Failure::argument("into", "is null; give memory of that length")),
        // SAFETY: it is not null, and the caller vouches for its length. Bytes of any value are
        // bytes; that they may be uninitialized matters to no one, for they are only written.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(into.cast(), bytes) }),
    }
}

/// The caller's memory, to be read.
///
/// # Safety
/// `from` is null or valid for reads of `bytes`, and nothing writes it meanwhile.
pub unsafe fn bytes_of<'a>(from: *const c_void, bytes: usize) -> Result<&'a [u8], Failure> {
    match bytes {
        0 => Ok(&[]),
        _ if from.is_null() => Err(Failure::argument("from", "is null; give memory of that length")),
        // SAFETY: it is not null, and the caller vouches for its length.
        _ => Ok(unsafe { std::slice::from_raw_parts(from.cast(), bytes) }),
    }
}
