//! Options of a live migration, its writer, and its outcome.

use std::time::Duration;

use pagoda_core::migrate::convergence::THROTTLE_MOST_PERCENT;
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
    /// How long the writer may stand still at the end, as far as it can be predicted.
    pub downtime: Duration,
    /// After so many rounds the remaining pages are not waited for any more; at least 1, or 0 with
    /// [`Otherwise::PostCopy`] to send nothing before the writer is stopped.
    pub rounds: u32,
    /// The action then.
    pub otherwise: Otherwise,
    /// How much of their time threads lose at most, in percent, where rounds don't help: then some
    /// of the pages that were written fault once more, and those faults wait, 10 ms each at most. A
    /// thread that reads such a page waits as well. 0: none waits; more than 90 counts as 90.
    /// [`SLOW_MOST_PERCENT`](Self::SLOW_MOST_PERCENT) is enough for most writers. A source that
    /// can't do so passes it over.
    pub slow_most_percent: u8,
}

impl LiveOptions {
    /// The most that a migration ever slows a writer down, in percent of its time.
    pub const SLOW_MOST_PERCENT: u8 = THROTTLE_MOST_PERCENT;
}

/// The action when rounds don't bring the remaining pages within the downtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// The writer is stopped for longer.
    StopForLonger,
    /// It ends with [`Error::TooMuchWritten`], and the writer runs on undisturbed.
    GiveUp,
    /// The writer is stopped, the other side runs at once, and the remaining pages are sent on
    /// request and in the background. The receiver has to agree to that from the start, which
    /// [`receive`](crate::receive) does not. There is no way back from the switch: if either side
    /// ends before all has arrived, the remaining pages are lost. If the connection is, it is made
    /// again within [`SendOptions::recover_for`].
    PostCopy,
}

/// The writer of the memory that is sent.
pub trait Writer {
    /// Asks to be slowed down by so many percent of its time: it writes faster than the sender
    /// sends. It may be ignored, as where its faults slow it down anyway
    /// ([`LiveOptions::slow_most_percent`]).
    fn throttle(&mut self, percent: u8);

    /// Stops it: after this returns no thread writes to the memory, discards or unmaps any of it,
    /// until the migration has returned. It may run again then unless the migration succeeded or
    /// ended in [`Error::Unconfirmed`] or [`Error::AfterSwitch`]. Must return well within the
    /// stall.
    fn stop(&mut self);
}

/// How a live migration goes, as of its last round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Rounds that are done.
    pub rounds: u32,
    /// The bytes left after the last round.
    pub left: Bytes,
    /// How much is written in a second, counting whole pages, each once a round. A page that was
    /// swapped in counts as written, because that can't be told apart. A page that was only swapped
    /// out does not.
    pub written_per_s: Bytes,
    /// How much is sent in a second, before it is packed.
    pub sent_per_s: Bytes,
    /// How long the writer would have to stop for the remaining pages.
    pub downtime: Duration,
    /// Faults that have waited so far to slow a thread down.
    pub delayed_faults: u64,
    /// How long they have waited in all, of all threads together.
    pub delayed: Duration,
}

/// The outcome of a live migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The counters at its end.
    pub counts: Counts,
    /// How it went until the writer was stopped.
    pub pace: Pace,
    /// How long the writer was stopped: from the request to stop until the receiver had confirmed
    /// all, or had started its own.
    pub downtime: Duration,
    /// How long it took from then until the receiver had all that was owed. None if nothing was.
    pub owed_for: Option<Duration>,
}
