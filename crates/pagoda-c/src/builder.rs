//! The choices that a manager is made with.
//!
//! This module must never make a choice of its own: the defaults are those of the Rust library.

use std::ffi::{CStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use pagoda::{BasePage, Bytes, ManagerBuilder};

use crate::error::{Code, Error, Failure, call, call_alone, drop_quietly, hand_out, string, take_back};
use crate::manager::Manager;

/// The choices that a manager is made with.
pub struct Builder(ManagerBuilder);

/// The base page that has this many bytes.
pub fn base_page(bytes: u64) -> Result<BasePage, Failure> {
    let found = BasePage::ALL.into_iter().find(|page| page.bytes() as u64 == bytes);
    found.ok_or_else(|| Failure::argument("the base page", "is none of 4096, 16384, 65536 and 2097152 bytes"))
}

/// Changes the choices behind a handle.
///
/// # Safety
/// As for [`call_alone`].
unsafe fn change(
    builder: *mut Builder,
    error: *mut Error,
    change: impl FnOnce(ManagerBuilder) -> Result<ManagerBuilder, Failure>,
) -> Code {
    let body = |builder: &mut Builder| {
        builder.0 = change(builder.0.clone())?;
        Ok(())
    };
    // SAFETY: this function's contract is that of the call.
    unsafe { call_alone(builder, "builder", error, body) }
}

/// Begins a manager: 256 MiB, base pages of 64 KiB, no file, faults of system calls served, too.
/// pagoda_builder_build makes the manager; pagoda_builder_close closes the builder without one.
///
/// # Safety
/// `builder` is valid for a write or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_new(builder: *mut *mut Builder, error: *mut Error) -> Code {
    // SAFETY: the caller vouches for `error` and `builder`.
    unsafe { call(error, || hand_out(builder, || Ok(Builder(pagoda::Manager::builder())))) }
}

/// All the memory that the manager's regions, frames and compressed pages may take.
///
/// # Safety
/// `builder` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_budget(builder: *mut Builder, bytes: u64, error: *mut Error) -> Code {
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { change(builder, error, |builder| Ok(builder.budget(Bytes::new(bytes)))) }
}

/// The unit of management: 4096, 16384, 65536 or 2097152 bytes. Without it touches bring 4, 16 or
/// 64 KiB by their density.
///
/// # Safety
/// As pagoda_builder_budget.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_base_page(
    builder: *mut Builder,
    bytes: u64,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { change(builder, error, |builder| Ok(builder.base_page(base_page(bytes)?))) }
}

/// Spills content that does not fit compressed to an unlinked file of at most `limit_bytes` in
/// `directory`, which must be on a disk.
///
/// # Safety
/// As pagoda_builder_budget; `directory` is a string or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_spill_to(
    builder: *mut Builder,
    directory: *const c_char,
    limit_bytes: u64,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller vouches for the handle, the string and `error`.
    unsafe {
        change(builder, error, |builder| {
            let directory = to_path(string(directory, "directory")?);
            Ok(builder.spill_to(directory, Bytes::new(limit_bytes)))
        })
    }
}

/// Serves faults of the program's own code only, which needs no privilege. A system call that is
/// handed an address in a region fails with EFAULT then, where its page is swapped out:
/// pagoda_region_read_at and pagoda_region_write_at don't.
///
/// # Safety
/// As pagoda_builder_budget.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_user_mode_only(
    builder: *mut Builder,
    yes: bool,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { change(builder, error, |builder| Ok(builder.user_mode_only(yes))) }
}

/// Serves each fault in the faulting thread, by SIGBUS, which is the library's then. No thread that
/// touches a region blocks that signal, and each has 64 KiB of its stack left.
///
/// # Safety
/// As pagoda_builder_budget.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_serve_in_thread(
    builder: *mut Builder,
    yes: bool,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { change(builder, error, |builder| Ok(builder.serve_in_thread(yes))) }
}

/// Shows the manager to `pagoda top` and `pagoda export` of the same user.
///
/// # Safety
/// As pagoda_builder_budget.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_publish(builder: *mut Builder, yes: bool, error: *mut Error) -> Code {
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { change(builder, error, |builder| Ok(builder.publish(yes))) }
}

/// Makes the manager and starts its threads. Closes the builder also where that fails.
///
/// # Safety
/// `builder` is a handle or null, and not used again; `manager` is valid for a write or null,
/// `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_build(
    builder: *mut Builder,
    manager: *mut *mut Manager,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller does not use the handle again.
    let builder = unsafe { take_back(builder) };
    let make = || {
        let builder = builder.ok_or_else(|| Failure::null_handle("builder"))?;
        builder.0.build().map(Manager).map_err(|error| Failure::new(Code::Start, error))
    };
    // SAFETY: the caller vouches for `error` and `manager`.
    unsafe { call(error, || hand_out(manager, make)) }
}

/// Closes the builder without a manager.
///
/// # Safety
/// `builder` is a handle or null, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_builder_close(builder: *mut Builder) {
    // SAFETY: the caller does not use the handle again.
    drop_quietly(unsafe { take_back(builder) });
}

/// A path of the caller's, of any bytes.
pub fn to_path(text: &CStr) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(text.to_bytes()))
}
