//! Pagoda: a userspace virtual-memory manager.
#![forbid(unsafe_code)]

pub mod counters;
