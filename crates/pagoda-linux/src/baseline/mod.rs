//! The kernel's own means that benches compare with: swap areas, zram, memory cgroups, performance
//! counters.

pub mod cgroup;
pub mod perf;
pub mod side;
pub mod swapfile;
pub mod zram;
