//! Base pages on real userfaultfd: their cost by count, and that a program can't tell them from 4
//! KiB.

mod density;
#[cfg(target_arch = "x86_64")]
mod differential;
mod discards;
mod faults;
mod onwards;
mod pages;
mod regions;
mod sparse;
