//! Linux mechanism of the Pagoda memory manager: the home of `unsafe` and of system calls.
//!
//! Small safe wrappers with typed outcomes, one file for each thing of the kernel. Nothing here decides: what to
//! evict, how much to keep and whom to wait for is `pagoda-core`'s business. A port to another system is a sibling
//! of this crate.

mod aligned;
pub mod byte_store;
pub mod careful_copy;
pub mod cgroup;
pub mod clear;
pub mod contiguity;
pub mod coverage;
pub mod direct_file;
pub mod doorbell;
pub mod fault_address;
pub mod fault_signal;
pub mod file_mapping;
pub mod guards;
pub mod holds;
pub mod huge_arena;
mod huge_break;
pub mod huge_frames;
pub mod identity;
pub mod image_mark;
pub mod last_thread;
pub mod lock;
pub mod lock_all;
pub mod locked;
pub mod lz4;
pub mod mapped_file;
pub mod maps;
pub mod memcg;
pub mod mincore;
mod moves;
pub mod node;
pub mod occupancy;
pub mod offer;
pub mod own_memory;
pub mod pack;
pub mod pagemap;
pub mod perf;
pub mod plain_memory;
pub mod probe;
pub mod process;
pub mod process_mark;
pub mod proportional;
pub mod range;
mod raw_syscall;
pub mod region_memory;
pub mod rights;
pub mod ring;
pub mod secret;
pub mod shared_file;
mod smaps;
pub mod space;
pub mod sparse_file;
pub mod statm;
pub mod swapfile;
pub mod tcb;
pub mod tcp;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod thread;
pub mod touch;
pub mod transparent_huge;
pub mod uffd;
pub mod unfinished_file;
pub mod unforked;
pub mod usage;
pub mod valgrind;
pub mod wait;
pub mod wiped;
pub mod words;
pub mod zero_scan;
pub mod zram;
pub mod zstd;

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
