//! The loops of the engine's threads. A loop calls steps (`fault`, `reclaim`, `mapping`, `clear`);
//! no step calls a loop.
//!
//! | thread | how many | waits for |
//! |---|---|---|
//! | `handler` | as many as processors, 2 to 4; in SIGBUS mode 1 | the descriptor, 100 ms at most |
//! | `reclaimer` | 1 | a bell, 100 ms at most |
//! | `watcher`, with `scan` | 1 in a process, none in a library | a sleep of 1 to 20 ms |
//! | `prezero` | 1 in a library, unless it is told not to | a bell, 100 ms at most |
//! | `publisher` | 1 in a library that publishes | a bell, 100 ms at most |
//!
//! In SIGBUS mode the handler thread reads events alone. In a library the reclaimer watches.
//! `sigbus` is the handler of faults in the thread that has them. Other modules have threads of
//! their own: the keeper and the release worker (`store`), arrivals (`migrate`), readahead
//! (`file`), and the one that lifts protected pages (`state/lift.rs`).
//!
//! A loop holds nothing while it waits.

pub(crate) mod guarded;
pub(crate) mod handler;
pub(crate) mod prezero;
pub(crate) mod publisher;
pub(crate) mod reclaimer;
pub(crate) mod scan;
pub(crate) mod sigbus;
pub(crate) mod watcher;
