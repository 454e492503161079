//! Linux mechanism of the Pagoda memory manager: the home of `unsafe` and of system calls.
//!
//! Small safe wrappers with typed outcomes, one file for each thing of the kernel. Nothing here decides: what to
//! evict, how much to keep and whom to wait for is `pagoda-core`'s business. A port to another system is a sibling
//! of this crate.

pub mod shared_file;
