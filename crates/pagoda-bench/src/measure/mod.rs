//! The tools of every measurement: children, rounds and pairs, statistics, the machine. One
//! implementation, so that all benches measure alike. Never knows a bench.

pub(crate) mod histogram;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod pairs;
pub(crate) mod process;
pub(crate) mod scratch;
pub(crate) mod stats;
pub(crate) mod turns;
