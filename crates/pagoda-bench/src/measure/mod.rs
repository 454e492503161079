//! What every bench measures with: children, rounds and pairs, statistics, the machine.

pub(crate) mod histogram;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod pairs;
pub(crate) mod process;
pub(crate) mod scratch;
pub(crate) mod stats;
pub(crate) mod turns;
