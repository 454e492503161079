//! Write protection: to see writes, and to hold them.
//!
//! With [`feature::WP_ASYNC`](super::feature::WP_ASYNC) the kernel lets a write to a protected page
//! through and notes it. Without, the writing thread waits, and a message comes as for a missing
//! page. A descriptor does the one or the other for all of its ranges. This module must never
//! change content.

use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater};

use super::{GROUP, REGISTER_MODE_MISSING, REGISTER_MODE_WP, RangeCall, Uffd, raw};
use crate::mem::range::PageRange;

const MODE_PROTECT: u64 = 1;

#[repr(C)]
struct ProtectCall {
    range: RangeCall,
    mode: u64,
}

const UFFDIO_WRITEPROTECT: Opcode = ioctl::opcode::read_write::<ProtectCall>(GROUP, 6);

impl Uffd {
    /// As [`register`](Self::register), and lets the pages of `range` be protected, to track writes
    /// or to hold them. It may have been registered before.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # Safety
    /// As for [`register`](Self::register).
    pub unsafe fn register_tracked(&self, range: PageRange) -> Result<(), Errno> {
        self.register_mode(range, REGISTER_MODE_MISSING | REGISTER_MODE_WP)
    }

    /// Holds writes to the present pages of `range`, which was registered to be tracked, without
    /// [`feature::WP_ASYNC`](super::feature::WP_ASYNC): a thread that writes to one waits until it
    /// is unprotected. A page that is moved or discarded is protected no more.
    ///
    /// # Errors
    /// `EAGAIN`: a mapping is being changed or an event is unread. `ENOENT`: a part is not
    /// registered any more; what lies below it may be protected.
    pub fn protect(&self, range: PageRange) -> Result<(), Errno> {
        self.set_protection(range, MODE_PROTECT)
    }

    /// Takes the protection off all pages of `range`, which was registered to be tracked, and wakes
    /// threads that wait there.
    ///
    /// # Errors
    /// As [`protect`](Self::protect). No thread is woken then.
    pub fn unprotect(&self, range: PageRange) -> Result<(), Errno> {
        self.set_protection(range, 0)
    }

    /// As [`unprotect`](Self::unprotect), and wakes threads also where nothing is registered any
    /// more: they find out by themselves. False if an event is unread: read it, then try again.
    pub fn let_writes(&self, range: PageRange) -> bool {
        match self.unprotect(range) {
            Ok(()) => true,
            Err(Errno::AGAIN) => false,
            Err(_) => {
                self.wake(range);
                true
            }
        }
    }

    fn set_protection(&self, range: PageRange, mode: u64) -> Result<(), Errno> {
        let mut call = ProtectCall { range: raw(range), mode };
        // SAFETY: the opcode is UFFDIO_WRITEPROTECT, whose argument is a
        // `struct uffdio_writeprotect`, laid out as ProtectCall. It changes where writes are
        // reported, and no content.
        unsafe { ioctl::ioctl(&self.fd, Updater::<UFFDIO_WRITEPROTECT, ProtectCall>::new(&mut call)) }
    }
}
