//! Memory images in files: written from any memory, read block by block.
//!
//! The format is [`pagoda_core::image`]. This crate reads and writes its files:
//!
//! | folder | does |
//! |---|---|
//! | `read` | opens an image, reads and checks its blocks |
//! | `write` | packs memory into an image, which replaces an older one only when it is whole |
//! | `import` | raw memory files, and QEMU's mapped-ram migration files, as memory to pack |
//! | `working_set` | the blocks that were touched first, in order, beside the image |
//! | `unpack` | a block, whichever way it is packed |
//! | `key_file` | the key of an image, in a file beside it |
//! | `backing` | the file of an image, here or elsewhere |
//! | `open_file` | opens a file without waiting for a pipe's writer |
//!
//! An image is untrusted: every length is compared with its file, and no byte of content is given
//! before its digest was checked. Nothing here may give bytes of another block, or damaged ones.
#![forbid(unsafe_code)]

mod backing;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod import;
mod key_file;
mod open_file;
mod read;
mod unpack;
mod working_set;
mod write;

pub use backing::RemoteFile;
pub use error::ImageError;
pub use key_file::{key_path, load_key, make_key};
pub use pagoda_core::image::{Key, Root};
pub use pagoda_core::migrate::handshake::Codec;
pub use read::{Content, Image, Totals};
pub use working_set::{SetPart, TOUCHES_MOST, Touch, WorkingSet};
pub use write::{PackOptions, Progress, Writer, Written, pack};

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
