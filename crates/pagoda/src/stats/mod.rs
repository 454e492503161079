//! What the engine counts, for tables, `pagoda top` and traces.

pub mod account;
pub mod counters;
pub mod fault_kind;
pub(crate) mod gauges;
pub mod latencies;
pub(crate) mod migration;
pub mod trace;
