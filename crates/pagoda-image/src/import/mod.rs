//! Memory to pack: as a raw file, or in QEMU's mapped-ram migration file.
//!
//! A file here may be a stranger's: its lengths and places are bounded and checked. Nothing here
//! may read beyond the file, or take bytes of the file that are not memory for memory.

mod mapped_ram;
mod raw;

use std::ops::Range;

use crate::error::ImageError;
pub use mapped_ram::{MappedRam, is_mapped_ram};
pub use raw::RawFile;

/// Memory that does not change while it is packed.
pub trait RawMemory {
    /// Its length, in bytes.
    fn len_bytes(&self) -> u64;

    /// The first range within `range` that may hold something else than zeroes; None if there is
    /// none. Bytes before it are never read.
    ///
    /// # Errors
    /// If it can't be known.
    fn data_in(&self, range: Range<u64>) -> Result<Option<Range<u64>>, ImageError>;

    /// Reads `into.len()` bytes at `offset`, all within its length. May block for a disk.
    ///
    /// # Errors
    /// If they can't be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError>;
}

impl RawMemory for Vec<u8> {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }
    fn data_in(&self, range: Range<u64>) -> Result<Option<Range<u64>>, ImageError> {
        Ok((!range.is_empty()).then_some(range))
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        into.copy_from_slice(&self[offset as usize..][..into.len()]);
        Ok(())
    }
}
