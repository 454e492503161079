//! The loops of the engine's threads. They call the steps; no step calls a loop.

pub(crate) mod handler;
pub(crate) mod prezero;
pub(crate) mod publisher;
pub(crate) mod reclaimer;
pub(crate) mod scan;
pub(crate) mod sigbus;
pub(crate) mod watcher;
