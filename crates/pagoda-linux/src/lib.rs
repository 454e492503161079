//! Linux mechanism of the Pagoda memory manager: the home of `unsafe` and of system calls.
//!
//! Small safe wrappers with typed outcomes, one file for each thing of the kernel. Nothing here
//! decides: which page to evict, how much to keep and which thread to wait for is `pagoda-core`'s
//! business. A port to another system is a sibling of this crate.

pub mod arena;
pub mod baseline;
pub mod codec;
pub mod io;
pub mod mem;
pub mod probe;
pub mod process;
pub mod procfs;
mod raw_syscall;
pub mod swap;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod uffd;

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
