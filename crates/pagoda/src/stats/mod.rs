//! The counters of the engine, for tables, `pagoda top` and traces.
//!
//! Any thread counts, with or without locks: a counter is one atomic addition. Nothing here
//! decides.

pub mod account;
pub mod counters;
pub mod fault_kind;
pub(crate) mod gauges;
pub mod latencies;
pub(crate) mod migration;
mod shared_counters;
pub mod trace;
