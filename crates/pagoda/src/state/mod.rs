//! State of the engine that knows no engine: plain types, each with its own lock or none.

pub(crate) mod ledger;
pub mod pins;
pub(crate) mod wakeup;
