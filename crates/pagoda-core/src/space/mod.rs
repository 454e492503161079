//! Which numbers are free: slots, blocks, extents of files.

pub(crate) mod bitset;
pub mod blocks;
pub mod buddy;
pub mod extent_leases;
pub mod extents;
pub mod radix;
