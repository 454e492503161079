//! Pagoda: a userspace virtual-memory manager.
#![forbid(unsafe_code)]

pub use manager::{Manager, ManagerBuilder, userfaultfd_allows_managers};
pub use pagoda_core::page::BasePage;
pub use pagoda_core::size::Bytes;
pub use region::{ForeignMemory, Region, RegionBuilder, RegionError};

mod adopt;
pub mod config;
pub mod counters;
mod engine;
pub mod error;
mod event;
mod fault;
mod fork;
mod gauges;
mod handler;
mod ledger;
pub mod manager;
pub mod pins;
mod reclaim;
mod reclaimer;
pub mod region;
pub mod store;
mod table;
mod watch;
mod zone;
