//! Bus errors of a program's own: memory of a file that is shorter than its mapping, and a handler
//! for them.
//!
//! Both end the process: neither may be used in one that goes on.

use std::ffi::c_int;
use std::io;

use super::mapping::{PAGE, map_raw};
use super::process::end_at_once;

/// The status with which [`end_on_bus_error`]'s handler ends the process.
pub const BUS_ERROR: i32 = 9;

extern "C" fn end(_: c_int) {
    end_at_once(BUS_ERROR);
}

/// From now on SIGBUS ends the process with status [`BUS_ERROR`].
///
/// # Errors
/// The kernel's.
pub fn end_on_bus_error() -> io::Result<()> {
    let handler: extern "C" fn(c_int) = end;
    // SAFETY: the handler makes one system call, which does not return.
    match unsafe { libc::signal(libc::SIGBUS, handler as libc::sighandler_t) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Reads a byte of a mapping that lies beyond the end of its file: SIGBUS.
///
/// # Errors
/// The kernel's, of making it.
pub fn touch_beyond_a_file() -> io::Result<u8> {
    // SAFETY: it takes a name that ends in NUL and makes a descriptor.
    let file = unsafe { libc::memfd_create(c"pagoda-test".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nothing is replaced: no flag here says where it has to be.
    let at = unsafe { map_raw(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, file) }?;
    // SAFETY: the page is mapped and never written; that the kernel has nothing to put there is the
    // point.
    Ok(unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() })
}
