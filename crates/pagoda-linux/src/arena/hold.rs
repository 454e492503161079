//! Holding writes to managed memory, so that the copies that they make can be paced.
//!
//! This module must never decide which, nor for how long.

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{GRANULES, Granules};

use crate::arena::Space;
use crate::mem::range::PageRange;
use crate::uffd::Errno;

impl Space {
    /// Holds writes to the present pages of `range`, managed memory. False if an event is unread:
    /// read it, then try again. Memory that is not registered any more is left alone.
    pub fn hold_writes(&self, range: PageRange) -> bool {
        !self.can_hold || self.uffd.protect(range) != Err(Errno::AGAIN)
    }

    /// Lets writes to `range`, managed memory, go on. False if an event is unread: read it, then
    /// try again.
    pub fn let_writes(&self, range: PageRange) -> bool {
        self.uffd.let_writes(range)
    }

    /// Which OS pages of `range`, sixteen at most, are present and mapped by another process, too;
    /// all of them, where the kernel does not say.
    #[must_use]
    pub fn shared_pages(&self, range: PageRange) -> Granules {
        let all = Granules::range(0, (range.len() / OS_PAGE) as u32);
        self.occupancy.shared(range).unwrap_or(all)
    }

    /// The longest part of `within` around `range` of which no OS page is shared: `range` itself
    /// has none. It asks for at most `within`, sixteen pages at a time.
    #[must_use]
    pub fn unshared_around(&self, range: PageRange, within: PageRange) -> PageRange {
        let step = GRANULES as usize * OS_PAGE;
        let (mut start, mut end) = (range.start(), range.end());
        while let Some(next) = PageRange::new(end, within.end().min(end + step)) {
            if !self.shared_pages(next).is_empty() {
                break;
            }
            end = next.end();
        }
        while let Some(next) = PageRange::new(within.start().max(start.saturating_sub(step)), start) {
            if !self.shared_pages(next).is_empty() {
                break;
            }
            start = next.start();
        }
        PageRange::at(start, end - start)
    }
}
