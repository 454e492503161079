//! A core dump that waits until everything is back (`mapping::core_dump`).
//!
//! The signal handler that waits uses these atomics alone.

use std::sync::atomic::AtomicBool;

/// Whether a core dump waits, and whether it does so in vain.
#[derive(Debug, Default)]
pub(crate) struct CoreDump {
    pub(crate) is_requested: AtomicBool,
    pub(crate) is_declined: AtomicBool,
}
