//! Whether a range is registered whole, which a registration does not tell, for it passes over
//! holes; and whether a page is registered at all, at any time.
//!
//! A mapping that is made in such a hole afterwards is not registered. Pages can be moved out of it
//! all the same, and then the kernel fills the missing pages with zeroes and sends no event. So a
//! range is checked here before it is entered in a table, after its registration. The check is a
//! fill that anonymous memory never gets, after the kernel has looked where it would go. This
//! module must never report a range as whole without the kernel's answer.

use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater};

use crate::mem::range::PageRange;
use crate::uffd::{GROUP, Uffd, ZeroCall, raw};

/// `struct uffdio_continue` has the layout of `struct uffdio_zeropage`.
const UFFDIO_CONTINUE: Opcode = ioctl::opcode::read_write::<ZeroCall>(GROUP, 7);

/// How much of a range is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All of it lies in one registered mapping, and no event was unread at that moment: a mapping
    /// that goes from now on sends an event.
    Whole,
    /// A mapping is being changed or an event is unread: ask again when it was read.
    Changing,
    /// It is several mappings, or some of it is not registered or not mapped; or the kernel had no
    /// memory to tell.
    Parts,
}

impl Uffd {
    /// How much of `range`, private anonymous memory, is registered.
    #[must_use]
    pub fn coverage(&self, range: PageRange) -> Coverage {
        let mut call = ZeroCall { range: raw(range), mode: 0, zeroed: 0 };
        // SAFETY: the opcode is UFFDIO_CONTINUE, whose argument is a `struct uffdio_continue`, laid
        // out as ZeroCall. It maps pages of the page cache of a shared mapping; private anonymous
        // memory has none, so that it is refused and changes nothing.
        let done = unsafe { ioctl::ioctl(self, Updater::<UFFDIO_CONTINUE, ZeroCall>::new(&mut call)) };
        match done {
            // The kernel looks at changes first, then for one registered mapping (`ENOENT`), and
            // then at the kind of memory.
            Err(Errno::INVAL) => Coverage::Whole,
            Err(Errno::AGAIN) => Coverage::Changing,
            _ => Coverage::Parts,
        }
    }

    /// Whether the page at `address` is registered with another descriptor, also while mappings are
    /// being changed: the kernel then refuses to register it with this one (`EBUSY`). If it is not,
    /// its mapping is registered for writes for a moment, but nothing there is write-protected.
    #[must_use]
    pub fn is_registered_elsewhere(&self, address: usize) -> bool {
        let page = PageRange::page(address);
        // SAFETY: it asks for events that this descriptor has no feature for, and for writes to
        // pages that are not protected: no user of the page is held up. The registration ends here.
        match unsafe { self.follow(page) } {
            Ok(()) => {
                // Memory that is gone by now is not registered either.
                let _ = self.unregister(page);
                false
            }
            Err(errno) => errno == Errno::BUSY,
        }
    }
}

#[cfg(test)]
#[path = "coverage_test.rs"]
mod tests;
