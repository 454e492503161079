//! How many pages one fault brings in, and which pages are read ahead of the next.

pub mod density;
pub mod fault_around;
pub mod huge_window;
pub mod promotion;
pub mod read_cluster;
pub mod readahead;
pub mod streak;
pub mod swap_in;
