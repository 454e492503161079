//! Shared memory whose pages come in large folios, whatever the machine does with memfds: a file of
//! a tmpfs of its own.
//!
//! Nothing here may be mounted where another process sees it.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use linux_raw_sys::general as raw;
use rustix::fs::{Mode, OFlags, openat};

use crate::raw_syscall::{syscall3, syscall6};

const SET_STRING: usize = 1;
const CREATE: usize = 6;

/// A file of so many bytes, all zero, whose first touch in 2 MiB makes all of them where they are
/// all of the file.
///
/// # Errors
/// The kernel's: mounts take a privilege, and it may have no large pages
/// ([`Unsupported`](io::ErrorKind::Unsupported)).
pub fn file(len_bytes: u64) -> io::Result<File> {
    let at = |text: &std::ffi::CStr| text.as_ptr().expose_provenance();
    // SAFETY: these calls read the texts, which are constants, and make descriptors that nothing
    // else knows.
    let mount = unsafe {
        let context = owned(syscall3(raw::__NR_fsopen, at(c"tmpfs"), 1, 0)?);
        let number = std::os::fd::AsRawFd::as_raw_fd(&context) as usize;
        syscall6(raw::__NR_fsconfig, [number, SET_STRING, at(c"huge"), at(c"always"), 0, 0])?;
        syscall6(raw::__NR_fsconfig, [number, CREATE, 0, 0, 0, 0])?;
        owned(syscall3(raw::__NR_fsmount, number, 1, 0)?)
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = File::from(openat(&mount, c"file", flags, Mode::RUSR | Mode::WUSR)?);
    file.set_len(len_bytes)?;
    file.write_all_at(&[1], 0)?;
    let is_large = file.metadata()?.blocks() * 512 >= 2 << 20;
    file.set_len(0)?;
    file.set_len(len_bytes)?;
    if is_large {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::Unsupported, "no large pages in tmpfs"))
    }
}

/// # Safety
/// The number is that of a descriptor without another owner.
unsafe fn owned(number: usize) -> OwnedFd {
    // SAFETY: the caller vouches for it.
    unsafe { OwnedFd::from_raw_fd(number as i32) }
}
