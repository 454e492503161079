//! How memory moves to another process or host: what is said on the wire, and what is done with what arrives.
//!
//! The image is cut into *stripes* of 2 MiB, and each stripe belongs to one channel (`geometry`). So no two channels ever touch
//! the same page or share a huge frame, a page's older content can't overtake its newer, and no round needs a barrier between
//! channels. Only in the *last* round of live memory, when its writer is stopped and all before it has arrived, the channels
//! share what is left, wherever it is: each page is then named by one of them. What a channel carries is a sequence of frames (`frame`), watched by a
//! small machine that notices whatever is lost, doubled, swapped or cut off (`channel`). Before that both sides agree
//! on all of it (`handshake`).
//!
//! The destination is fresh, and fresh memory is zero: what is never named stays as it is, and a zero page that
//! arrives first is not even touched. The received map (`received`) knows which those are, `zero` says what each policy
//! does with the others.
//!
//! ```text
//!   receiver                     sender, on each channel
//!   Greeting  ------------------>
//!             <------------------  Hello
//!   Answer    ------------------>
//!             <------------------  Data, Stored, Packed, Filled, Zero ... Sync   a round, and maybe more rounds
//!   Synced    ------------------>
//!             <------------------  Last, Data, Stored, Packed, Filled, Zero ... Sync   of live memory: what is left, of any stripe
//!   Synced    ------------------>
//!             <------------------  End
//!
//!             <------------------  Commit                                    on channel 0, when all have ended
//!   Working ... Finished ------->
//! ```
//!
//! If it may *switch*, a sender that was stopped says in its last round which pages it owes, and then `Switch` in place of
//! `Commit`. The image is used from then on, and whoever touches a page that is owed waits for it:
//!
//! ```text
//!             <------------------  Owed ... Zero ... Sync, End                   on each channel: the last round
//!             <------------------  Switch                                        on channel 0, when all have ended
//!   Switched  ------------------>                                                the sender's writer must not go on
//!             <------------------  Data, Stored, Packed, Filled, Zero, Sync, End on each channel: what is owed and was not asked for
//!   Synced    ------------------>
//!
//!   Wanted    ------------------>                                                on channels of their own, by who waits
//!             <------------------  Data, Stored, Packed, Filled, Zero ... Sync   what is owed of the page's group, maybe nothing
//!   Working ... Finished ------->                                                nothing is owed any more
//! ```
//!
//! A page that is owed is named once more, by whichever channel takes it first at the sender; so it can't be brought
//! twice, and a receiver refuses what would overwrite what was written there since.
//!
//! Every decoder here is total: any bytes give a value or an error, none of them a panic or an allocation. This
//! module must never trust a length that came from outside.

pub mod channel;
pub mod convergence;
mod fields;
pub mod frame;
pub mod geometry;
pub mod handshake;
pub mod pages;
pub mod rate;
pub mod received;
pub mod reply;
pub mod wanted;
pub mod zero;
