//! This process in `/proc`: mappings, pages, counts.

pub mod locked;
pub mod maps;
pub mod memcg;
pub mod pagemap;
pub mod proportional;
pub(crate) mod smaps;
pub mod statm;
pub mod usage;
