//! Shared by the tests and the measurement: a manager that serves the kernel, and a guest.

#![allow(dead_code, reason = "each of the tests uses its own part")]

pub mod guest;

use pagoda::{Bytes, Manager};
use pagoda_linux::testing::skip::skip;

/// A manager whose memory KVM can use, if one can be had here.
pub fn manager(budget: Bytes) -> Option<Manager> {
    let manager = Manager::builder().budget(budget).spill_to("/var/tmp", Bytes::gib(1)).build();
    manager.map_err(|error| skip("guest memory for KVM", error)).ok()
}
