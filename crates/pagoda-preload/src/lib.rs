//! Puts the memory of an unmodified program under the Pagoda engine: `pagoda run` preloads this
//! library.
//!
//! Its constructor starts the engine on raw threads before `main` runs. From then on the library is
//! a handful of hooks that tell the engine facts that the kernel does not: where a new thread's
//! control block is, where robust mutexes are, and that a fork is about to happen. All unsafe code
//! here is this thin extern surface.
//!
//! It must never use the program's heap, print, or change anything that the program can see.

mod alloc;
mod alone;
mod c_library;
mod config_text;
mod current;
mod end;
mod hooks;
mod room;
mod start;
mod unwind;

#[global_allocator]
static HEAP: alloc::OwnHeap = alloc::OwnHeap::new();
