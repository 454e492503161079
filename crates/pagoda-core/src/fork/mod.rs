//! How a fork waits, and how forks in progress are counted.

pub mod in_progress;
pub mod wait;
