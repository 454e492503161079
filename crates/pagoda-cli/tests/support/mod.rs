//! Shared by the tests that run a program under `pagoda run`, of their own or a well-known one.
//! Their own is themselves, executed again: an ordinary one whose memory is managed by the
//! preloaded engine.

#![allow(dead_code, unused_imports, reason = "each of the tests uses its own part")]

pub mod comparison;
pub mod content;
pub mod impatient;
pub mod managed;
pub mod memory;
pub mod redis;
pub mod suite;
pub mod tree;

pub use pagoda_linux::testing::random;
