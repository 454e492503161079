//! What is asked of a live migration, who is stopped for it, and what it took.

use std::time::Duration;

use pagoda_core::size::Bytes;

#[cfg(doc)]
use crate::error::Error;
use crate::progress::Counts;
use crate::send::SendOptions;

/// How to send live memory.
#[derive(Clone)]
pub struct LiveOptions {
    /// The connection.
    pub send: SendOptions,
    /// How long the writer may stand still at the end, as far as it can be foretold.
    pub downtime: Duration,
    /// After so many rounds what is left is not waited for any more; at least 1, or 0 with [`Otherwise::PostCopy`] to send
    /// nothing before the writer is stopped.
    pub rounds: u32,
    /// What happens then.
    pub otherwise: Otherwise,
}

/// What happens when rounds don't bring what is left within the downtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// The writer is stopped for longer.
    StopForLonger,
    /// It ends with [`Error::TooMuchWritten`], and the writer goes on as if nothing had been.
    GiveUp,
    /// The writer is stopped, the other side goes on at once, and what is left is sent as it is asked for and in the background.
    /// The receiver has to agree to that from the start, which [`receive`](crate::receive) does not. There is no way back from the
    /// switch: if either side or the connection is lost before all has arrived, so is what has not.
    PostCopy,
}

/// Who writes to the memory that is sent.
pub trait Writer {
    /// Asks to be slowed down by so many percent of its time: it writes faster than is sent. It may be passed over.
    fn throttle(&mut self, percent: u8);

    /// Stops it: when this returns nobody writes to the memory, discards or unmaps any of it, until the migration has returned. It
    /// may go on then unless the migration succeeded or ended in [`Error::Unconfirmed`] or [`Error::AfterSwitch`]. Must return
    /// well within the stall.
    fn stop(&mut self);
}

/// How a live migration goes, as of its last round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Rounds that are done.
    pub rounds: u32,
    /// What was left after the last.
    pub left: Bytes,
    /// How much is written in a second, counting whole pages, each once a round. What came back into memory counts as written:
    /// nobody can tell. What only left it does not.
    pub written_per_s: Bytes,
    /// How much is sent in a second, before it is packed.
    pub sent_per_s: Bytes,
    /// How long the writer would have to stand still for what is left.
    pub downtime: Duration,
}

/// What a live migration took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The counters at its end.
    pub counts: Counts,
    /// How it went until the writer was stopped.
    pub pace: Pace,
    /// How long nobody could write: from when the writer was asked to stop until the receiver had confirmed all, or that it goes
    /// on.
    pub downtime: Duration,
    /// How long it took from then until the receiver had all that was owed. None if nothing was.
    pub owed_for: Option<Duration>,
}
