//! Threads, forks, rights and the marks of processes.

pub mod affinity;
pub(crate) mod caller;
pub mod child;
pub mod detached;
pub mod doorbell;
pub mod heap;
pub mod identity;
pub mod image_mark;
pub mod joinable;
pub mod last_thread;
pub mod last_words;
pub mod lock;
pub mod offer;
pub mod process_mark;
pub mod rights;
pub mod signal_again;
pub mod spare_descriptor;
pub mod tcb;
pub mod thread;
pub mod turns;
pub mod valgrind;
