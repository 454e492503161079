//! Giving a forked child the memory that its parent has swapped out.
//!
//! The handler that reads the fork's event serves it, with the gate held exclusively until the
//! child has everything. The thread that forked waits outside of all locks (`inflight`).

pub(crate) mod copy;
pub(crate) mod handover;
pub(crate) mod hold;
pub(crate) mod inflight;
mod wiped;
