//! How a fork waits, how forks in progress are counted, and how copies on write are paced.

pub mod in_progress;
pub mod pace;
pub mod wait;
