//! The benches, one module each. Each must leave the machine as it was, and never report a run that
//! failed.

pub(crate) mod all;
pub(crate) mod base_page;
pub(crate) mod budget;
pub(crate) mod clear;
pub(crate) mod counters;
pub(crate) mod migrate;
pub(crate) mod programs;
pub(crate) mod release;
pub(crate) mod snapshot;
pub(crate) mod tree;
pub(crate) mod zones;
