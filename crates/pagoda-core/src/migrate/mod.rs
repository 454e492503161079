//! How memory moves to another process or host: the messages on the wire, and how they are applied.
//!
//! The image is cut into *stripes* of 2 MiB, and each stripe belongs to one channel (`geometry`).
//! So no two channels ever touch the same page or share a huge frame, and a page's older content
//! can't overtake its newer. From a *last* frame on the channels share all stripes: a sender of
//! live memory lets each page be named by one of them in a round, and begins no round before all of
//! the one before has arrived. If it can't switch it does so after an empty round, stripe by
//! stripe; and piece by piece once its writer is stopped. A channel carries a sequence of frames
//! (`frame`), and a small state machine notices any lost, doubled, swapped or missing frame
//! (`channel`). Before that both sides agree on all of it (`handshake`).
//!
//! The destination is fresh, and fresh memory is zero: a page that is never named stays untouched,
//! and a zero page that arrives first is not even touched. The received map (`received`) knows
//! which those are, and `zero` has a policy for the others.
//!
//! ```text
//!   receiver                     sender, on each channel
//!   Greeting  ------------------>
//!             <------------------  Hello
//!   Answer    ------------------>
//!             <------------------  Data, Stored, Packed, Filled, Zero ... Sync
//!                                  a round, and maybe more rounds
//!   Synced    ------------------>
//!             <------------------  Last, Data, Stored, Packed, Filled, Zero ... Sync
//!                                  of live memory: the remaining pages, of any stripe
//!   Synced    ------------------>
//!             <------------------  End
//!
//!             <------------------  Commit     on channel 0, when all have ended
//!   Working ... Finished ------->
//! ```
//!
//! If it may *switch* (post-copy), a stopped sender says in its last round which pages it owes, and
//! then `Switch` in place of `Commit`. The image is used from then on, and a thread that touches an
//! owed page waits for it:
//!
//! ```text
//!             <------------------  Owed ... Zero ... Sync, End
//!                                  on each channel: the last round
//!             <------------------  Switch     on channel 0, when all have ended
//!   Switched  ------------------>             the sender's writer must not run again
//!             <------------------  Data, Stored, Packed, Filled, Zero, Sync, End
//!                                  on each channel: owed pages that no request named
//!   Synced    ------------------>
//!
//!   Wanted    ------------------>             on channels of their own, by waiting threads
//!             <------------------  Data, Stored, Packed, Filled, Zero ... Sync
//!                                  the owed pages of the page's group, maybe none
//!   Working ... Finished ------->             nothing is owed any more
//! ```
//!
//! An owed page is named once more, by the channel that takes it first at the sender. So it can't
//! be brought twice, and a receiver refuses a frame that would overwrite newer writes.
//!
//! If channels die after the switch both sides keep all they have. The sender connects all of them
//! once more, with the same session and a higher attempt. The receiver then tells, on each channel
//! that carries stripes, which of their pages have not arrived (`missing`). From there it goes on
//! as behind `Switched`, and all numbers begin again:
//!
//! ```text
//!   Greeting  ------------------>
//!             <------------------  Hello      with the next attempt, on each channel
//!   Answer    ------------------>
//!   Missing ... Missing -------->             of each stripe that lacks pages, and the end
//!             <------------------  Data, Stored, Packed, Filled, Zero, Sync, End
//! ```
//!
//! A receiver of a file may have a part of it from an earlier transfer. If the sender *resumes*,
//! the receiver offers stripes by their digests (`kept`). The sender names those that it has, too,
//! and sends the others; a page that is neither named nor sent is zero:
//!
//! ```text
//!   Answer    ------------------>
//!   Kept ... Kept -------------->             on each channel, and the end
//!             <------------------  Kept, Data, Stored, Packed, Filled, Zero ... Sync
//! ```
//!
//! A sender that has heard `Finished` says so by one more round, an empty one. Without it the
//! receiver can't know, and lets the sender connect once more for a moment.
//!
//! Every decoder here is total: any bytes give a value or an error, none of them a panic or an
//! allocation. This module must never trust a length that came from outside.

pub mod channel;
pub mod convergence;
pub mod digest;
pub(crate) mod fields;
pub mod frame;
pub mod geometry;
pub mod handshake;
pub mod kept;
pub mod missing;
pub mod packing;
pub mod pages;
pub mod rate;
pub mod received;
pub mod reply;
pub mod throttle;
pub mod wanted;
pub mod zero;
