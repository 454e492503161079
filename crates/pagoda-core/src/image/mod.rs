//! The format of a memory image in a file: blocks that are compressed and known by keyed digests.
//!
//! ```text
//!   0      header        fixed fields, padded to 4 KiB (`header`)
//!   4096   blocks        the packed content of stored blocks, one after the other
//!   index  table         one digest for each chunk of 256 blocks (`index`)
//!          received map  runs of pages that were received (`runs`)
//!          chunks        the entries of their blocks (`entry`); uniform chunks are left out
//! ```
//!
//! The content is cut into blocks of 4 to 64 KiB. An entry says where a block's content is:
//! nowhere, for zeroes and for one word over and over; packed in the file; or in the image that
//! this one is a difference to.
//!
//! Digests form a tree under one key (`digest`): the header's root covers the
//! header, the table and the received map, a table's digest covers a chunk, and an entry's covers
//! the content of a block. So the index is had by one read, and each chunk is checked when it is
//! used first.
//!
//! Every decoder here is total: any bytes give a value or an error, none of them a panic. Nothing
//! here may use a length that was not compared with the file.

pub mod digest;
pub mod entry;
pub mod header;
pub mod index;
pub mod runs;

pub use digest::{BlockDigest, Key, KeyError, Root};
pub use entry::Entry;
pub use header::{Header, HeaderError};

/// The block size of an image for which none was chosen, in bytes: a fault's small read and a good
/// ratio both.
pub const BLOCK_BYTES_DEFAULT: u32 = 16 << 10;

/// The smallest block, in bytes: one OS page.
pub const BLOCK_BYTES_LEAST: u32 = 4 << 10;

/// The largest block, in bytes: the largest base page of one entry.
pub const BLOCK_BYTES_MOST: u32 = 64 << 10;

/// The longest content of an image: 16 TiB, the reach of a block's place in its file.
pub const LEN_BYTES_MOST: u64 = 1 << 44;

/// The longest index, in bytes: that of 2.7 TiB of dense memory in blocks of 16 KiB.
pub const INDEX_BYTES_MOST: u64 = 4 << 30;

/// Whether a block may be of so many bytes.
#[must_use]
pub const fn is_block_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= BLOCK_BYTES_LEAST && bytes <= BLOCK_BYTES_MOST
}
