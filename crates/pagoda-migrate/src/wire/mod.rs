//! Frames on a channel: written, read, packed, and checked one by one.

pub(crate) mod codec;
pub(crate) mod content;
pub(crate) mod frame_reader;
pub(crate) mod frame_writer;
pub(crate) mod stripe_digest;
