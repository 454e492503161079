//! Frames: which slots of the arena are empty or ready, and which zone gives the next frame.
//!
//! Faults, readahead and arrivals take frames here, with the gate held shared or not at all;
//! reclaim puts them back. The locks of zones and turns are innermost: nothing here waits.

pub(crate) mod allocate;
pub(crate) mod huge_pool;
pub(crate) mod huge_turns;
pub(crate) mod levels;
pub(crate) mod pool;
pub(crate) mod stats;
pub(crate) mod tier_notes;
pub(crate) mod tiers;
pub(crate) mod turn_caches;
pub(crate) mod turns;
pub(crate) mod zone_config;
pub mod zones;
