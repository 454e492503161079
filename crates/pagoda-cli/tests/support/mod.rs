//! What the tests share that run a program of their own under `pagoda run`: they execute themselves again as that
//! program, which is then an ordinary one whose memory is managed by the preloaded engine.

#![allow(dead_code, reason = "each of the tests uses its own part")]

pub mod content;
pub mod managed;
pub mod memory;
pub mod random;
pub mod suite;
pub mod tree;
