//! Serves memory images to virtual machines in other processes, page by page.
//!
//! A VMM restores a snapshot in milliseconds if its memory comes when it is touched. Firecracker
//! leaves that to a handler: it sends its userfaultfd over a socket and runs at once. This crate
//! is such a handler, for many VMs and one image.
//!
//! ```text
//!                   supervisor: accepts, keeps each connection and its record
//!  VMM --socket--->    |  connection + record, over a pair of sockets
//!                   handler: reads the message, fills pages, prefetches
//! ```
//!
//! The handler is a process of its own. If it dies or stands still the supervisor starts another,
//! and gives it everything it keeps: the connection, in which the VMM's message still lies because
//! it was only looked at, and the record, a piece of shared memory with the pages that the guest
//! has discarded. So no guest stands still, and none gets a page back that it gave away.
//!
//! | file | has |
//! |---|---|
//! | `supervisor` | the listener, the handler's process, the table of guests |
//! | `handler` | the handler's process: a thread for each guest |
//! | `channel` | the messages between the two |
//! | `record` | the part of a guest that outlives a handler |
//! | `firecracker` | the VMM's message, untrusted |
//! | `cloud_hypervisor` | the other way round: a VM is restored by its local migration |
//! | `guest` | one guest: its faults, its discards, its prefetch |
//! | `source` | the image, and the cache that all guests share |
//! | `working_set` | the pages that a guest needs first |
#![forbid(unsafe_code)]

mod channel;
pub mod cloud_hypervisor;
pub mod firecracker;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod guest;
pub mod handler;
mod record;
pub mod source;
pub mod stats;
pub mod supervisor;
pub mod working_set;

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
