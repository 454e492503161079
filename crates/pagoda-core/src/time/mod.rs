//! Intervals, patience and latencies: numbers of a clock that the caller reads.

pub mod latency;
pub mod poll_interval;
pub mod ran_clock;
