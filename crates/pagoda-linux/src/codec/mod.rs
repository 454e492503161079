//! Compression of pages by the C libraries.

pub mod lz4;
pub mod pack;
pub mod zstd;
