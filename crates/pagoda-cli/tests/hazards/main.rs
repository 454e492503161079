//! Programs that did harm, or came to harm, under `pagoda run`: small ones in C, each run natively
//! and managed.
//!
//! A test is named after its fault. It compares the managed run with the native one, so that a
//! program that the machine itself does not support fails neither. Every program checks its own
//! memory.

mod chaos;
mod core_dump;
mod ctrl_z;
mod descriptors;
mod give_way;
mod grown_fork;
#[path = "../support/impatient.rs"]
mod impatient;
mod last_thread;
mod limits;
mod members;
mod memory_group;
mod namespaces;
mod noexec;
mod outlived;
mod preloaded;
mod processors;
mod program;
mod raw_advice;
mod reasons;
mod replaced;
mod rights;
mod sanitizers;
mod symbols;
