//! Frames of the arena and the zones that they belong to.

pub(crate) mod allocate;
pub(crate) mod huge_pool;
pub(crate) mod huge_turns;
pub(crate) mod levels;
pub(crate) mod pool;
pub(crate) mod stats;
pub(crate) mod turn_caches;
pub(crate) mod turns;
pub(crate) mod zone_config;
pub mod zones;
