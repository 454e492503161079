//! The functions of the C library that this library stands in for, and the engine's part of each.
//!
//! Every hook calls the real function with the same arguments and returns its result. In a process
//! that is not managed (a child, a program that runs unmanaged) it does nothing else. A hook runs
//! on a thread of the program, and must never use the program's heap.

mod advice;
pub mod core_dump;
pub mod fork;
pub mod give_way;
mod ids;
mod lend;
pub mod limits;
mod lock;
pub mod mutexes;
mod namespaces;
mod processors;
pub mod real;
pub mod threads;
