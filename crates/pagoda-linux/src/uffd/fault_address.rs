//! Where a thread faulted: the exact byte, as far as the kernel tells it, and the OS page of that.
//!
//! Pages come and go as pages: entries, fills, wake-ups and traces take
//! [`page`](FaultAddress::page). Only code that clears a frame for the awaited byte takes
//! [`byte`](FaultAddress::byte). A type of its own, so that neither is ever taken for the other:
//! the kernel at best refuses a byte in a page's place.

use pagoda_core::page::OS_PAGE;

use crate::mem::range::PageRange;

/// The address of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultAddress(usize);

impl FaultAddress {
    /// The fault of an access to this byte. If only the page is known it is the first byte.
    #[must_use]
    pub const fn of_byte(address: usize) -> Self {
        Self(address)
    }

    /// The byte that was touched. Without [`EXACT_ADDRESS`](crate::uffd::feature::EXACT_ADDRESS)
    /// the kernel names the first one of its OS page in its place. Of an access across the boundary
    /// of two pages it is the first one that lies in the missing page.
    #[must_use]
    pub const fn byte(self) -> usize {
        self.0
    }

    /// The address of its OS page.
    #[must_use]
    pub const fn page(self) -> usize {
        self.0 & !(OS_PAGE - 1)
    }

    /// Its OS page.
    #[must_use]
    pub const fn page_range(self) -> PageRange {
        PageRange::page(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_of_its_page() {
        for (byte, page) in [(0x5000, 0x5000), (0x5001, 0x5000), (0x5fff, 0x5000), (0x6000, 0x6000)] {
            let at = FaultAddress::of_byte(byte);
            assert_eq!((at.byte(), at.page(), at.page_range()), (byte, page, PageRange::at(page, OS_PAGE)));
        }
        // The last byte there is has a page, and that needs no address behind it.
        assert_eq!(FaultAddress::of_byte(usize::MAX).page(), usize::MAX - (OS_PAGE - 1));
    }
}
