//! `libpagoda`: the library for C and C++. `pagoda.h` is made from this crate by cbindgen.
//!
//! Each call checks what it was given, does its work by the safe library, and turns the outcome
//! into a code and a message. What a caller can't be checked for, that a pointer is one of ours or
//! is valid for a length, is the caller's duty by the header. Nothing unwinds into C: a panic
//! becomes a code. This crate must never hand out a pointer to anything but a handle of its own, a
//! constant string, or the memory of a region.

mod adopted;
mod builder;
mod error;
mod file;
mod manager;
mod region;
mod stop;

use std::ffi::c_char;

/// The version of the library, like "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn pagoda_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Whether this machine lets this process make a manager in user mode: Linux 6.8 with userfaultfd.
#[unsafe(no_mangle)]
pub extern "C" fn pagoda_is_supported() -> bool {
    std::panic::catch_unwind(pagoda::userfaultfd_allows_managers).unwrap_or(false)
}
