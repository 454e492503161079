//! Adopted regions: managed memory that the caller has mapped, and gets back.
//!
//! This module must never unmap memory.

use std::ffi::c_void;

use pagoda::{AdoptedRegion, ForeignMemory};

use crate::error::{Code, Error, Failure, call, drop_quietly, hand_out, shared, take_back};
use crate::manager::Manager;
use crate::region::of_region;

/// Managed memory that the caller has mapped.
pub struct Adopted(AdoptedRegion);

/// Takes memory that the caller has mapped under management, with its content. It is read and
/// written by its address, as before. `start` and `bytes` are whole OS pages.
///
/// # Safety
/// `manager` is a handle or null, `adopted` valid for a write or null, `error` null or valid. As
/// long as the memory is adopted, the caller keeps it as it is:
/// - It is one private anonymous mapping, readable and writable, not locked, not executable, and
///   without huge pages (MADV_NOHUGEPAGE).
/// - No stack, no heap and no thread's control block lies in it, of any thread that calls Pagoda.
/// - A thread that unmaps or moves it holds no lock of the manager, and nothing else is mapped in
///   its place before it is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_adopt(
    manager: *const Manager,
    start: *mut c_void,
    bytes: usize,
    adopted: *mut *mut Adopted,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller keeps the handle open during the call.
        let manager = unsafe { shared(manager, "manager") }?;
        // SAFETY: the caller vouches for the memory as long as it is adopted, by the list above,
        // which has all that `ForeignMemory` asks for.
        let memory = unsafe { ForeignMemory::new(start.cast(), bytes) };
        let memory =
            memory.ok_or_else(|| Failure::argument("the memory", "is not whole OS pages of 4096 bytes"))?;
        manager.0.adopt(memory).map(Adopted).map_err(of_region)
    };
    // SAFETY: the caller vouches for `error` and `adopted`.
    unsafe { call(error, || hand_out(adopted, make)) }
}

/// Swaps everything in, whatever the budget says, and leaves the memory to the caller.
///
/// # Safety
/// `adopted` is a handle or null, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_adopted_close(adopted: *mut Adopted) {
    // SAFETY: the caller does not use the handle again.
    drop_quietly(unsafe { take_back(adopted) });
}

/// Gives the content up and leaves the memory to the caller, reading as zero. Closes the handle
/// also where that fails.
///
/// # Safety
/// `adopted` is a handle or null, and not used again; `error` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_adopted_forget(adopted: *mut Adopted, error: *mut Error) -> Code {
    // SAFETY: the caller does not use the handle again.
    let adopted = unsafe { take_back(adopted) };
    let body = || {
        let Adopted(adopted) = adopted.ok_or_else(|| Failure::null_handle("adopted"))?;
        adopted.forget().map_err(|error| {
            let advice = "unlock the memory, and discard it";
            Failure::giving_back("could not give up all of the content", error, advice)
        })
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}
