//! Memory images on servers: read by ranges over HTTP or from S3, with a bounded cache on disk.
//!
//! A server is not trusted. An image checks every byte by its own digests; this crate bounds what a
//! server can cost: memory, time, and the hosts that are asked.
//!
//! | file | does |
//! |---|---|
//! | `address` | addresses, and those of the files beside |
//! | `transport` | requests over HTTP, every answer checked |
//! | `store` | the parts of one file: tries, versions, the thread of all requests |
//! | `pieces` | pieces in memory or on their way, each had once |
//! | `disk` | pieces in a directory, for all processes that share it |
//! | `file` | the file that an image reads |
//! | `fuzzing` | a server that answers as a fuzzer says |
#![forbid(unsafe_code)]

mod address;
mod disk;
mod failure;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod pieces;
mod store;
mod transport;

pub use failure::Failure;
pub use file::{Options, open};

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
