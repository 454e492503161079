//! `libpagoda`: the library for C and C++. `pagoda.h` is made from this crate by cbindgen.
//!
//! Each call checks its arguments, does its work by the safe library, and turns the outcome into a
//! code and a message. A call can't check that a pointer is a handle of ours, or valid for a
//! length: the header asks that of the caller. Nothing unwinds into C: a panic becomes a code. This
//! crate must never hand out a pointer to anything but a handle of its own, a constant string, or
//! the memory of a region.

mod adopted;
mod builder;
mod error;
mod file;
mod image;
mod manager;
mod migrate;
mod region;
mod stop;

use std::ffi::c_char;

// By the header any thread may use a handle, and several at once one that is const.
const fn used_by_any_thread<T: Send>() {}
const fn used_by_several_threads<T: Send + Sync>() {}
const _: () = {
    used_by_any_thread::<builder::Builder>();
    used_by_several_threads::<manager::Manager>();
    used_by_several_threads::<region::Region>();
    used_by_several_threads::<adopted::Adopted>();
    used_by_several_threads::<file::File>();
};

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
