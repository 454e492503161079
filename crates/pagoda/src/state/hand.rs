//! Where reclaim is: the hand that goes round the regions, and the queue of staged pages by age.
//!
//! The queue has at most one element for each staging since its oldest element was staged. This
//! module must never move a page.

use std::collections::VecDeque;

use crate::store::PutError;
use crate::table::Entries;

/// A page that was staged, if it still is.
pub(crate) struct Staged {
    pub(crate) entries: Entries,
    pub(crate) index: usize,
    pub(crate) slot: u32,
}

/// The state of reclaim: the clock's hand, and the staged pages, oldest first. Each staged page is
/// in the queue, from right after its entry says so. A stale element is dropped when it comes up;
/// all are dropped once the queue is twice as long as it was after the last time.
#[derive(Default)]
pub(crate) struct Hand {
    pub(crate) address: usize,
    pub(crate) queue: VecDeque<Staged>,
    /// The length from which stale elements are dropped. So a push costs a few looks on average.
    pub(crate) queue_most: usize,
    /// Steps since the last that found something to evict.
    pub(crate) fruitless: u32,
    /// Steps while far more was staged than is to be.
    pub(crate) steps: u32,
}

/// The outcome of one step of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame became ready.
    FrameReady,
    /// Pages were staged.
    Staged,
    /// Nothing yet; go on.
    Looking,
    /// An event is unread: it must be read before pages can move.
    Again,
    /// A whole round found nothing to evict, and nothing is staged.
    Exhausted,
    /// The store takes no more.
    Full(PutError),
}
