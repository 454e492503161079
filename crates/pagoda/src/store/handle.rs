//! The name of a stored page, small enough for a page-table entry.
//!
//! It never changes while the page is stored, wherever the content moves.

/// Says that the low 32 bits are a pattern, not an object number.
const SAME_FILLED: u64 = 1 << 35;

/// Says that the page is an image's, where it is not same-filled: a page number below the image's.
const OF_IMAGE: u64 = 1 << 34;

/// Bits of a page's number in an image: 4 TiB of base pages of 64 KiB.
const IMAGE_PAGE_BITS: u32 = 26;

/// The most images that are open at once.
#[cfg(feature = "image")]
pub(crate) const IMAGES_MOST: usize = 1 << 8;

/// The most pages of an image that a handle can name.
pub(crate) const IMAGE_PAGES_MOST: u64 = 1 << IMAGE_PAGE_BITS;

/// A page of an open image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImagePage {
    /// The image.
    pub(crate) number: u8,
    /// The page, less than [`IMAGE_PAGES_MOST`].
    pub(crate) page: u32,
}

/// A stored page: 36 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(u64);

/// The meaning of a handle.
pub(super) enum Meaning {
    /// The page is this word over and over.
    SameFilled(u32),
    /// The page is this object.
    Object(u32),
    /// The page is this one of an image.
    Image(ImagePage),
}

impl Handle {
    /// A zero page, for a caller that needs a handle.
    pub(crate) const ZEROES: Self = Self(SAME_FILLED);

    /// Its 36 bits.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }
    /// The handle of these bits; higher bits are dropped. Bits that no handle gave make a handle of
    /// nothing.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & ((SAME_FILLED << 1) - 1))
    }

    /// Whether the page is one word over and over, and so takes no room.
    #[must_use]
    pub fn is_same_filled(self) -> bool {
        self.0 & SAME_FILLED != 0
    }

    /// Whether the page takes room of the store's, which is to be freed.
    pub(crate) fn takes_room(self) -> bool {
        matches!(self.meaning(), Meaning::Object(_))
    }

    /// A page of an image.
    #[cfg(feature = "image")]
    pub(super) fn image(of: ImagePage) -> Self {
        Self(OF_IMAGE | u64::from(of.number) << IMAGE_PAGE_BITS | u64::from(of.page))
    }
    pub(super) fn same_filled(pattern: u32) -> Self {
        Self(SAME_FILLED | u64::from(pattern))
    }
    pub(super) fn object(id: u32) -> Self {
        Self(u64::from(id))
    }
    pub(super) fn meaning(self) -> Meaning {
        let low = self.0 as u32;
        if self.is_same_filled() {
            Meaning::SameFilled(low)
        } else if self.0 & OF_IMAGE != 0 {
            let page = low & (IMAGE_PAGES_MOST - 1) as u32;
            Meaning::Image(ImagePage { number: (self.0 >> IMAGE_PAGE_BITS) as u8, page })
        } else {
            Meaning::Object(low)
        }
    }
}

/// The word that a page repeats, if it does.
pub(super) fn repeated_word(page: &[u8]) -> Option<u32> {
    let pattern: [u8; 4] = page.get(..4)?.try_into().ok()?;
    let word = u64::from(u32::from_ne_bytes(pattern));
    let wide = word << 32 | word;
    // Most pages differ in their first line; the others are worth whole vectors.
    let same = page.chunks_exact(64).all(|line| {
        let words = line.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
        words.fold(0, |different, word| different | (word ^ wide)) == 0
    });
    same.then(|| u32::from_ne_bytes(pattern))
}

/// Fills a page with a word.
pub(super) fn fill(page: &mut [u8], pattern: u32) {
    for word in page.chunks_exact_mut(4) {
        word.copy_from_slice(&pattern.to_ne_bytes());
    }
}
