//! Frames of zeroes: base frames, contiguous ones and huge ones.

pub(crate) mod contiguous;
pub(crate) mod huge;
pub(crate) mod huge_state;
pub(crate) mod zero_frame;
