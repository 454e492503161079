//! Regions: memory that the manager has mapped.
//!
//! This module must never make a slice of a length that it has not checked.

use std::ffi::c_void;

use pagoda::{AccessError, Bytes, PageOutError, RegionError};

use crate::builder::base_page;
use crate::error::{
    Code, Error, Failure, call, call_alone, call_on, check_part, drop_quietly, hand_out, shared, take_back,
};
use crate::manager::Manager;

/// Managed memory: it reads as zero, takes no memory until it is touched, and is evicted where the
/// budget of its manager is short.
pub struct Region(pub(crate) pagoda::Region);

/// The failure to make a region.
pub fn of_region(error: RegionError) -> Failure {
    match error {
        RegionError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        error => Failure::new(Code::Memory, error),
    }
}

/// The failure of an access.
fn of_access(error: AccessError) -> Failure {
    match error {
        AccessError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
        error => Failure::new(Code::Access, error),
    }
}

/// The failure to page out.
fn of_page_out(error: PageOutError) -> Failure {
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
        // SAFETY: the caller keeps the handle open during the call.
        let mut builder = unsafe { shared(manager, "manager") }?.0.region(Bytes::new(bytes));
        if base_page_bytes != 0 {
            builder = builder.base_page(base_page(base_page_bytes)?);
        }
        if limit_bytes != 0 {
            builder = builder.limit(Bytes::new(limit_bytes));
        }
        builder.create().map(Region).map_err(of_region)
    };
    // SAFETY: the caller vouches for `error` and `region`.
    unsafe { call(error, || hand_out(region, make)) }
}

/// The first byte of the region, valid for reads and writes of its whole length until it is closed;
/// null for null. An access to a page that is swapped out waits until it is back.
///
/// # Safety
/// `region` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_address(region: *const Region) -> *mut c_void {
    // SAFETY: the handle is null, or the caller keeps it open during the call.
    unsafe { region.as_ref() }.map_or(std::ptr::null_mut(), |region| region.0.as_ptr().cast())
}

/// The length of the region in bytes; 0 for null.
///
/// # Safety
/// `region` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_bytes(region: *const Region) -> usize {
    // SAFETY: the handle is null, or the caller keeps it open during the call.
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
    // SAFETY: the header asks the caller for the contracts of both calls, in the same words.
    unsafe {
        call_on_part(region, (offset, bytes), error, |region| {
            region.read_at(offset, bytes_mut(into, bytes)?).map_err(of_access)
        })
    }
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
    // SAFETY: the header asks the caller for the contracts of both calls, in the same words.
    unsafe {
        call_alone(region, "region", error, |Region(region)| {
            check_part(offset, bytes, region.len())?;
            region.write_at(offset, bytes_of(from, bytes)?).map_err(of_access)
        })
    }
}

/// Runs the body of a call on a part of a region, if the part is within the region.
///
/// # Safety
/// As for [`call_on`].
unsafe fn call_on_part(
    region: *const Region,
    (offset, bytes): (usize, usize),
    error: *mut Error,
    body: impl FnOnce(&pagoda::Region) -> Result<(), Failure>,
) -> Code {
    // SAFETY: this function's contract is that of the call.
    unsafe {
        call_on(region, "region", error, |Region(region)| {
            check_part(offset, bytes, region.len())?;
            body(region)
        })
    }
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
    let discard = |region: &pagoda::Region| {
        region.discard(offset, bytes).map_err(|error| {
            Failure::giving_back("could not discard a part of the region", error, "give whole OS pages")
        })
    };
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on_part(region, (offset, bytes), error, discard) }
}

/// Stores the pages of a part and gives their memory to others: for pages that are not needed for a
/// while. Waits for the compression, and for the disk where the store's memory is full.
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
    let page_out = |region: &pagoda::Region| match bytes {
        0 => Ok(()),
        _ => region.page_out(offset, bytes).map_err(of_page_out),
    };
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on_part(region, (offset, bytes), error, page_out) }
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
    let prefetch = |region: &pagoda::Region| match bytes {
        0 => Ok(()),
        _ => region.prefetch(offset, bytes).map(drop).map_err(of_access),
    };
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on_part(region, (offset, bytes), error, prefetch) }
}

/// Frees the region. Its addresses are not mapped afterwards.
///
/// # Safety
/// `region` is a handle or null, and neither it nor its memory is used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_close(region: *mut Region) {
    // SAFETY: the caller does not use the handle again, nor the memory behind it.
    drop_quietly(unsafe { take_back(region) });
}

/// The caller's memory, to be written.
///
/// # Safety
/// `into` is null or valid for writes of `bytes`, and nothing else uses it meanwhile. `bytes` is at
/// most the length of a mapping.
pub unsafe fn bytes_mut<'a>(into: *mut c_void, bytes: usize) -> Result<&'a mut [u8], Failure> {
    match bytes {
        0 => Ok(&mut []),
        _ if into.is_null() => Err(Failure::argument("into", "is null; give memory of that length")),
        // SAFETY: it is not null, and by this function's contract valid for writes of this length,
        // which is below the greatest of a slice. C may not have initialized it. Each byte has some
        // value all the same, since this library is compiled apart from the C code, and the calls
        // that take the slice only write it.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(into.cast(), bytes) }),
    }
}

/// The caller's memory, to be read.
///
/// # Safety
/// `from` is null or valid for reads of `bytes`, and nothing writes it meanwhile. `bytes` is at
/// most the length of a mapping.
pub unsafe fn bytes_of<'a>(from: *const c_void, bytes: usize) -> Result<&'a [u8], Failure> {
    match bytes {
        0 => Ok(&[]),
        _ if from.is_null() => Err(Failure::argument("from", "is null; give memory of that length")),
        // SAFETY: it is not null, and by this function's contract valid for reads of this length,
        // which is below the greatest of a slice. Nothing writes it meanwhile.
        _ => Ok(unsafe { std::slice::from_raw_parts(from.cast(), bytes) }),
    }
}
