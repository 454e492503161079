//! Moves memory images between processes and hosts: many channels, zero pages that cost nothing,
//! content that is checked.
//!
//! A [`Source`] is sent by [`send`], or a [`LiveSource`] by [`send_live`] while it is written, to a
//! [`Listener`], where [`receive`] puts it into a [`Destination`]. The messages on the wire, and
//! every decision about a page, are in [`pagoda_core::migrate`]; this crate connects, reads, packs
//! and writes. It is a crate of its own so that a program that merely has its memory managed
//! carries neither TLS nor codecs.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use std::path::Path;
//!
//! use pagoda_migrate::{ImageSource, SendOptions, send};
//!
//! let image = ImageSource::open(Path::new("mem.img"))?;
//! let to = "tcp://127.0.0.1:7000".parse()?;
//! let counts = send(&image, &to, &SendOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//! println!("{} pages with content, {} bytes on the wire", counts.data_pages, counts.wire_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`SharedMemory`] is a memfd that processes share: it is sent while they write it, and received
//! into.
//!
//! # Guarantees
//!
//! The source is only read, and keeps running after any failure. The destination shows nothing
//! until all of the image has arrived, matches its digests, and is on disk. Any failure, on either
//! side or between them, ends in one [`Error`] that says what to do.
//!
//! Every wait has a limit, and memory does not depend on the peer's messages: two stripes of 2 MiB
//! for each channel on either side, a third where a destination receives into frames of its own,
//! and the received map, one bit for each page. [`ReceiveOptions::memory_most`] is the bound of all
//! a peer can make a receiver hold.
//!
//! That holds until the switch of a migration by post-copy ([`Otherwise::PostCopy`],
//! [`receive_late`]), which both sides have to want. From then on the image lives at the
//! destination alone, and its *owed* pages (those still to be sent) exist only at the source. A
//! failure is [`Error::AfterSwitch`] there and an error of [`Remaining::receive`] here. No wrong
//! content is ever accepted, but pages that have not arrived are lost. If only the network failed,
//! both sides connect again within [`SendOptions::recover_for`] and
//! [`ReceiveOptions::recover_for`]: then nothing is lost.
#![forbid(unsafe_code)]

mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod live;
mod net;
mod progress;
mod receive;
mod send;
mod shared;
mod wire;
mod workers;

pub use error::Error;
pub use live::options::{LiveOptions, Moved, Otherwise, Pace, Writer};
pub use live::send_live;
pub use live::source::{Delayed, LiveReader, LiveSource, Room, SlowDown, TakePacked};
pub use net::endpoint::Endpoint;
pub use net::listener::Listener;
pub use net::tls::{ClientTls, Credentials, ServerTls};
pub use net::token::{Token, TokenTooShort};
pub use progress::{Counts, Progress};
pub use receive::destination::{Destination, ImageDestination, LateDestination, MemoryDestination};
pub use receive::options::{Event, ReceiveOptions};
pub use receive::page_requests::Wants;
pub use receive::postcopy_receive::{Arrivals, Remaining};
pub use receive::resumed_file::ResumedDestination;
pub use receive::{Arrived, receive, receive_late};
pub use send::source::{ImageSource, Source};
pub use send::{SendOptions, send};
pub use shared::SharedMemory;
pub use shared::arrival::SharedArrival;
pub use shared::log::{DirtyLog, DirtyPages};
pub use shared::own_writes::OwnWrites;
pub use wire::content::Content;

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

#[cfg(test)]
mod testing;
