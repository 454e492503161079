//! Memory of this process: ranges, copies, flags, and advice to the kernel about it.

pub mod absent;
pub(crate) mod aligned;
pub mod byte_store;
pub mod careful_copy;
pub mod clear;
pub mod contiguity;
pub mod guards;
pub mod huge_frames;
pub mod lock_all;
pub mod mincore;
pub mod node;
pub mod occupancy;
pub mod own_memory;
pub mod plain_memory;
pub mod range;
pub mod region_bytes;
pub mod region_memory;
pub mod reserved;
pub mod secret;
pub mod touch;
pub mod transparent_huge;
pub mod unforked;
pub mod wiped;
pub mod words;
pub mod zero_scan;
