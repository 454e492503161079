//! What a forked child gets of what its parent has swapped out.

pub(crate) mod copy;
pub(crate) mod handover;
pub(crate) mod inflight;
