//! What benches measure with beside the engine: the processor's performance counters.

pub mod perf;
