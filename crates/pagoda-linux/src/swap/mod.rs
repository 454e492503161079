//! The kernel's own swapping for one group of processes: memory cgroups, zram and swap files.
//!
//! The benches compare with it, and `pagoda run --backend kernel` runs programs by it. All that is
//! set up here carries a name or label of its maker. This module must never touch swap or groups of
//! others.

pub mod cgroup;
pub mod freezer;
pub mod side;
pub mod swapfile;
pub mod zram;
