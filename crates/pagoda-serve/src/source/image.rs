//! An image of `pagoda image pack`: zeroes known without a read, blocks checked by their digests.
//!
//! This module must never give a block that its image has not checked.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use pagoda_image::{Content, Image, ImageError, Key, Touch, WorkingSet};

use crate::source::{Source, SourceError};
use crate::working_set;

/// Packed bytes of the working set that are read at once: from a file, and by requests that run at
/// the same time.
const READ_BYTES: (u64, u64) = (1 << 20, 8 << 20);

/// An open image.
pub struct ImageSource {
    image: Image,
    set: Option<WorkingSet>,
}

impl ImageSource {
    /// Opens it with its key, or the one beside it.
    ///
    /// # Errors
    /// Those of the image; [`ImageError::NotAnImage`] of any other file.
    pub fn open(path: &Path, key: Option<Key>) -> Result<Self, ImageError> {
        Image::open(path, key).map(Self::new)
    }

    /// With an open image.
    #[must_use]
    pub fn new(image: Image) -> Self {
        let set = image.working_set();
        Self { image, set }
    }

    fn block_of(&self, offset: u64) -> u64 {
        offset / u64::from(self.image.block_bytes())
    }
}

impl Source for ImageSource {
    fn len_bytes(&self) -> u64 {
        self.image.len_bytes()
    }

    fn block_bytes(&self) -> usize {
        self.image.block_bytes() as usize
    }

    fn is_zero(&self, offset: u64, len_bytes: u64) -> bool {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        self.image.content_at(offset, len) == Content::Zero
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let there = self.len_bytes().saturating_sub(offset).min(into.len() as u64) as usize;
        let (content, beyond) = into.split_at_mut(there);
        beyond.fill(0);
        self.image.read_at(offset, content).map_err(|error| SourceError(error.to_string()))
    }

    fn read_ahead(&self, each: &mut dyn FnMut(u64, &[u8]) -> bool) {
        let Some(set) = &self.set else { return };
        let count = set.touches().len();
        let most = if self.image.is_remote() { READ_BYTES.1 } else { READ_BYTES.0 };
        let (mut from, mut goes_on) = (0, true);
        while goes_on && from < count {
            let mut to = from + 1;
            while to < count && set.packed_bytes(from..to + 1) <= most {
                to += 1;
            }
            let read = set.read(&self.image, from..to, &mut |touch, content| {
                goes_on = goes_on && each(touch.block, content);
            });
            // The set is damaged: the image itself is asked for each block.
            goes_on &= read.is_ok();
            from = to;
        }
    }

    fn announce(&self, offset: u64, len_bytes: u64) {
        self.image.announce(offset, usize::try_from(len_bytes).unwrap_or(usize::MAX));
    }

    fn identity(&self) -> String {
        self.image.root().0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn working_set(&self) -> Vec<Range<u64>> {
        let block_bytes = u64::from(self.image.block_bytes());
        let part = |touch: &Touch| touch.block * block_bytes..(touch.block + 1) * block_bytes;
        self.set.iter().flat_map(|set| set.touches().iter().map(part)).collect()
    }

    fn keep_working_set(&self, touches: &[working_set::Touch]) -> Result<(), SourceError> {
        let mut seen = HashSet::new();
        let touches = touches.iter().map(|touch| (self.block_of(touch.offset), touch.at_us));
        let touches = touches.filter(|(block, _)| seen.insert(*block));
        let touches: Vec<Touch> = touches.map(|(block, at_us)| Touch { block, at_us }).collect();
        WorkingSet::record(&self.image, &touches).map_err(|error| SourceError(error.to_string()))
    }
}
