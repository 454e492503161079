//! Test support: the kernel's and the C library's functions for tests, as safe functions.
//!
//! Only with the feature `testing`; no product code may use it. Nothing here may use the engine or
//! know of it: the programs that are managed in tests are made of this, and have to be ordinary
//! ones.

#[cfg(target_arch = "x86_64")]
pub mod access;
pub mod address;
#[cfg(target_arch = "x86_64")]
pub mod area;
pub mod atomic_words;
pub mod bus;
pub mod compiled;
pub mod directory;
pub mod disk;
pub mod doomed;
pub mod foreign;
pub mod growing;
pub mod guest_code;
pub mod handed_on;
pub mod heap;
pub mod http_server;
pub mod large_pages;
pub mod length;
pub mod mapping;
pub mod page_cache;
pub mod pinned;
pub mod process;
pub mod random;
pub mod redis;
pub mod redis_cluster;
pub mod robust;
pub mod sandbox;
pub mod shared;
pub mod signals;
pub mod skip;
pub mod stir;
pub mod terminal;
pub mod threads;
pub mod together;
pub mod unwound;
pub mod userfault;
pub mod wait;
