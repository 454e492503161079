//! A range of whole OS pages of this address space: plain numbers, which give no right to touch the
//! memory there.

use pagoda_core::page::OS_PAGE;

/// `start..end`, both at OS page boundaries, `start < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRange {
    start: usize,
    end: usize,
}

impl PageRange {
    /// The range, if it is one: aligned, and not empty.
    #[must_use]
    pub const fn new(start: usize, end: usize) -> Option<Self> {
        if start.is_multiple_of(OS_PAGE) && end.is_multiple_of(OS_PAGE) && start < end {
            Some(Self { start, end })
        } else {
            None
        }
    }
    /// The whole pages that cover `start..end`; none if that is empty.
    #[must_use]
    pub const fn covering(start: usize, end: usize) -> Option<Self> {
        let Some(end) = end.checked_next_multiple_of(OS_PAGE) else { return None };
        Self::new(start & !(OS_PAGE - 1), end)
    }
    /// `len` bytes from `start`. Panics if that is no whole number of pages, empty, or past the
    /// address space.
    #[must_use]
    pub const fn at(start: usize, len: usize) -> Self {
        match Self::new(start, start.checked_add(len).expect("a range ends within the address space")) {
            Some(range) => range,
            None => panic!("a page range is aligned and not empty"),
        }
    }
    /// The OS page at `address`.
    #[must_use]
    pub const fn page(address: usize) -> Self {
        let start = address & !(OS_PAGE - 1);
        Self { start, end: start + OS_PAGE }
    }
    /// Its first byte's address.
    #[must_use]
    pub const fn start(self) -> usize {
        self.start
    }
    /// One past its last byte's address.
    #[must_use]
    pub const fn end(self) -> usize {
        self.end
    }
    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a page range is never empty")]
    pub const fn len(self) -> usize {
        self.end - self.start
    }
    /// Whether `address` lies in it.
    #[must_use]
    pub const fn contains(self, address: usize) -> bool {
        self.start <= address && address < self.end
    }
    /// The common part of both.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_make_a_range() {
        assert_eq!(PageRange::new(4096, 4096), None);
        assert_eq!(PageRange::new(4096, 8191), None);
        assert_eq!(PageRange::covering(4097, 8193), PageRange::new(4096, 12288));
        assert_eq!(PageRange::covering(1, usize::MAX), None);
        let range = PageRange::at(8192, 8192);
        assert!(range.contains(8192) && range.contains(16383) && !range.contains(16384));
        assert_eq!(range.intersection(PageRange::page(12300)), Some(PageRange::page(12288)));
        assert_eq!(range.intersection(PageRange::page(16384)), None);
    }
}
