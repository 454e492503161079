//! The content of a moved region, and the digest by which both ends compare it. The same for all
//! sides. Never times anything.

use std::io;

use pagoda::Region;
use pagoda_core::size::Bytes;

use crate::load::data::{PAGE_BYTES, PAGE_WORDS, Pages};

/// The piece of memory that a digest reads at once.
const LOOK_BYTES: usize = 1 << 20;

/// The size of a huge frame, of which `sparse` uses one OS page.
pub const HUGE_BYTES: usize = 2 << 20;

/// The compression ratios of the content: incompressible, and as a program's memory.
pub const INCOMPRESSIBLE: f64 = 1.0;
pub const USUAL: f64 = 3.0;

/// The content of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    /// Nothing was ever touched.
    Untouched,
    /// Every page was written, with zeroes.
    ResidentZeros,
    /// One page in 32 is used, in runs of 2 MiB; the others were, and are zero.
    Idle,
    /// Seven eighths are used, and can't be compressed; the others were, and are zero.
    Full,
    /// One OS page in each 2 MiB is used, and nothing else was touched.
    Sparse,
}

impl Case {
    pub const ALL: [Self; 5] = [Self::Untouched, Self::ResidentZeros, Self::Idle, Self::Full, Self::Sparse];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Untouched => "untouched",
            Self::ResidentZeros => "resident-zeros",
            Self::Idle => "idle",
            Self::Full => "full",
            Self::Sparse => "sparse",
        }
    }

    /// Whether a page has content; `None` if it was never touched.
    pub const fn uses(self, page: usize) -> Option<bool> {
        let huge = page * PAGE_BYTES / HUGE_BYTES;
        match self {
            Self::Untouched => None,
            Self::ResidentZeros => Some(false),
            Self::Idle => Some(huge.is_multiple_of(32)),
            Self::Full => Some(huge % 8 != 7),
            Self::Sparse if page.is_multiple_of(HUGE_BYTES / PAGE_BYTES) => Some(true),
            Self::Sparse => None,
        }
    }

    /// Whether a part of the memory was never touched.
    pub const fn leaves_untouched(self) -> bool {
        matches!(self, Self::Untouched | Self::Sparse)
    }

    /// Fills a fresh region.
    pub fn fill(self, region: &mut Region) {
        let pages = Pages::new(1, INCOMPRESSIBLE);
        for page in 0..region.len() / PAGE_BYTES {
            match self.uses(page) {
                None => {}
                Some(false) => region.write_at(page * PAGE_BYTES, &[0; PAGE_BYTES]).expect("written"),
                Some(true) => write_page(region, &pages, page, 0),
            }
        }
    }
}

/// Writes a page of `pages`.
pub fn write_page(region: &Region, pages: &Pages, page: usize, version: u8) {
    let (mut words, mut bytes) = ([0; PAGE_WORDS], [[0; 8]; PAGE_WORDS]);
    pages.write(page as u64, version, &mut words);
    bytes.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_ne_bytes());
    region.write_words(page * PAGE_BYTES, bytes.as_flattened()).expect("written");
}

/// A digest of `size` bytes of content, which `read` reads.
pub fn digest(size: Bytes, read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> io::Result<u64> {
    let mut room = vec![0; LOOK_BYTES];
    let mut digest = 0u64;
    for offset in (0..size.get()).step_by(LOOK_BYTES) {
        let len = LOOK_BYTES.min((size.get() - offset) as usize);
        read(offset, &mut room[..len])?;
        for word in room[..len].as_chunks().0 {
            digest = (digest.rotate_left(5) ^ u64::from_ne_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    Ok(digest)
}

/// The digest of `size` bytes of `full`, without memory that holds them.
pub fn digest_of_full(size: Bytes) -> io::Result<u64> {
    let pages = Pages::new(1, INCOMPRESSIBLE);
    digest(size, |offset, into| {
        let first = Bytes::new(offset).as_usize() / PAGE_BYTES;
        match Case::Full.uses(first) {
            Some(true) => pages.fill(first as u64, into),
            _ => into.fill(0),
        }
        Ok(())
    })
}

/// The digest of a region of this process.
pub fn digest_of(region: &Region) -> io::Result<u64> {
    digest(Bytes::new(region.len() as u64), |offset, into| {
        region.read_at(Bytes::new(offset).as_usize(), into).expect("read");
        Ok(())
    })
}
