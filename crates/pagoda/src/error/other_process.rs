//! The error of a handle that a forked child uses.

/// The handle is of the process that this one was forked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a forked child can't use its parent's manager or regions; build a manager in the child, or use them in the parent"
)]
pub struct OtherProcess;
