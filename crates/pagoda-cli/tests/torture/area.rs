//! A mapping with its shadow: one stamp for each OS page.

use std::io;
use std::ops::Range;

use crate::support::content::Stamp;
use crate::support::memory::{Mapping, PAGE};
use crate::support::random::Random;

/// A mapping and the expected content of each of its pages.
pub struct Area {
    pub mapping: Mapping,
    pub shadow: Vec<Stamp>,
}

/// Something that is not as it should be, and where, if that is a page of an area.
pub struct Wrong {
    pub address: Option<usize>,
    pub what: String,
}

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self { address: None, what }
    }
}

/// The kernel's answer when a range is no longer one mapping to it (the engine registers the part
/// it has seen, and more may have been mapped since): nothing has moved.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EINVAL | libc::ENOMEM))
}

impl Area {
    pub fn new(pages: usize, populated: bool) -> Self {
        let mapping = if populated { Mapping::populated(pages) } else { Mapping::new(pages) };
        Self { mapping: mapping.expect("memory"), shadow: vec![Stamp::ZERO; pages] }
    }
    pub fn pages(&self) -> usize {
        self.shadow.len()
    }

    /// Writes new content all over these pages.
    pub fn write(&mut self, pages: Range<usize>, random: &mut Random) {
        for page in pages {
            let stamp = Stamp { head: random.next(), body: random.stamp() };
            self.shadow[page] = stamp;
            stamp.fill(self.mapping.page_mut(page));
        }
    }
    /// Writes eight bytes of one page.
    pub fn poke(&mut self, page: usize, head: u64) {
        self.shadow[page].head = head;
        self.mapping.page_mut(page)[0] = head;
    }
    /// Checks every byte of these pages.
    pub fn check(&self, pages: Range<usize>) -> Result<(), Wrong> {
        for page in pages {
            if let Some(wrong) = self.shadow[page].wrong(self.mapping.page(page)) {
                return Err(self.told(page, &wrong));
            }
        }
        Ok(())
    }
    fn told(&self, page: usize, wrong: &str) -> Wrong {
        let address = self.mapping.start() + page * PAGE;
        let (pages, expected) = (self.pages(), self.shadow[page]);
        Wrong {
            address: Some(address),
            what: format!("page {page} of {pages} at {address:#x}: {wrong}; expected {expected:x?}"),
        }
    }

    /// Unmaps these pages; the pages above them become an area of their own.
    pub fn unmap(mut self, pages: Range<usize>) -> Vec<Self> {
        let mut above = self.mapping.split_off(pages.start);
        let rest = above.split_off(pages.len());
        drop(above);
        let rest_shadow = self.shadow.split_off(pages.end);
        self.shadow.truncate(pages.start);
        let rest = Self { mapping: rest, shadow: rest_shadow };
        [self, rest].into_iter().filter(|area| area.pages() > 0).collect()
    }

    /// Grows, shrinks or moves it. False if it stays as it was.
    pub fn remap(self, pages: usize) -> (Self, bool) {
        let Self { mapping, mut shadow } = self;
        match mapping.remap(pages) {
            Ok(mapping) => {
                shadow.resize(pages, Stamp::ZERO);
                (Self { mapping, shadow }, true)
            }
            Err((mapping, error)) => {
                assert!(is_refusal(&error), "mremap: {error}");
                (Self { mapping, shadow }, false)
            }
        }
    }

    /// Moves it onto `target`, whose content goes. None if the kernel refused, and both are lost:
    /// their memory was registered in part, just now.
    pub fn remap_onto(self, target: Self) -> Option<Self> {
        let Self { mapping, mut shadow } = self;
        let pages = target.pages();
        match mapping.remap_onto(target.mapping) {
            Ok(mapping) => {
                shadow.resize(pages, Stamp::ZERO);
                Some(Self { mapping, shadow })
            }
            Err(error) => {
                assert!(is_refusal(&error), "mremap onto: {error}");
                None
            }
        }
    }

    /// Replaces these pages by a fresh mapping on top of them.
    pub fn replace(&mut self, pages: Range<usize>) {
        self.mapping.replace(pages.clone()).expect("mmap onto");
        self.shadow[pages].fill(Stamp::ZERO);
    }
    /// MADV_DONTNEED: they read zero from now on.
    pub fn discard(&mut self, pages: Range<usize>) {
        self.mapping.advise(pages.clone(), libc::MADV_DONTNEED).expect("madvise(MADV_DONTNEED)");
        self.shadow[pages].fill(Stamp::ZERO);
    }
    /// MADV_FREE: each page is as it was or zero, until it is written.
    pub fn free(&mut self, pages: Range<usize>, random: &mut Random) -> Result<(), Wrong> {
        self.mapping.advise(pages.clone(), libc::MADV_FREE).expect("madvise(MADV_FREE)");
        for page in pages.clone() {
            let content = self.mapping.page(page);
            if let Some(wrong) = self.shadow[page].wrong(content)
                && Stamp::ZERO.wrong(content).is_some()
            {
                return Err(self.told(page, &format!("neither as it was nor zero after MADV_FREE: {wrong}")));
            }
        }
        let middle = random.between(pages.start, pages.end);
        self.write(pages.start..middle, random);
        if middle < pages.end {
            self.discard(middle..pages.end);
        }
        Ok(())
    }
}
