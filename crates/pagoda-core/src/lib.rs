//! Policy of the Pagoda memory manager.
//!
//! Everything here is pure: no system call, no I/O, no `unsafe`, no clock of its own. So a seeded
//! simulator runs any policy in milliseconds, and a reader can swap one for another. This crate
//! decides; `pagoda-linux` acts on real memory; the `pagoda` crate joins the two.
#![forbid(unsafe_code)]

pub mod adopt;
mod bitset;
pub mod blocks;
pub mod buddy;
pub mod budget;
pub mod clear;
pub mod density;
pub mod entry;
pub mod extents;
pub mod fault_around;
pub mod fork_wait;
pub mod forking;
pub mod geometry;
pub mod latency;
pub mod lending;
pub mod memory_limit;
pub mod migrate;
pub mod pace;
pub mod page;
pub mod places;
pub mod radix;
pub mod ran_clock;
pub mod read_ahead;
pub mod rebuild;
pub mod release;
pub mod shares;
pub mod size;
pub mod stretch;
pub mod watermark;
pub mod zone;

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
