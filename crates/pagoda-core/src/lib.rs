//! Policy of the Pagoda memory manager.
//!
//! Everything here is pure: no system call, no I/O, no `unsafe`, no clock of its own. So a seeded
//! simulator runs any policy in milliseconds, and a reader can swap one for another. This crate
//! decides; `pagoda-linux` acts on real memory; the `pagoda` crate joins the two.
#![forbid(unsafe_code)]

pub mod adopt;
pub mod budget;
pub mod clear;
pub mod collapse;
pub mod fault;
pub mod fork;
pub mod geometry;
pub mod image;
pub mod migrate;
pub mod page;
pub mod page_entry;
pub mod release;
pub mod size;
pub mod space;
pub mod time;
pub mod zone;

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
