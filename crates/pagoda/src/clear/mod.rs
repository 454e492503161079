//! Frames of zeroes: base frames, contiguous ones and huge ones.
//!
//! Faults and the prezeroing thread call in. No lock is held while a frame is cleared, and never
//! the gate. No module here gives out a frame that holds data.

pub(crate) mod contiguous;
pub(crate) mod huge;
pub(crate) mod huge_state;
pub(crate) mod zero_frame;
