//! Pinned parts of regions: memory that is there, and stays.
//!
//! A pin is entered before the pages are brought in, so that none leaves in between. The pinned
//! bytes of all regions of a manager together are bounded by a part of its budget: memory that
//! can't be evicted is missing wherever else memory is wanted. This module must never wait with a
//! pin that its caller does not know of.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;

use super::access::AccessError;
use crate::engine::Engine;
use crate::error::other_process::OtherProcess;
use crate::state::pins::Pinner;

/// At most one part in so many of the budget is pinned.
const SHARE: u64 = 4;

/// Tells pins of regions apart. A number comes again when four billion others were given out.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Why a part of a region could not be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// It could not be brought in.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// More than a quarter of the budget would be pinned.
    #[error(
        "could not pin {asked} with {pinned} pinned already, of {most} at most; drop pins, or give the manager a larger \
         budget"
    )]
    TooMuch {
        /// How much was to be pinned.
        asked: Bytes,
        /// How much is pinned.
        pinned: Bytes,
        /// The most that may be: a quarter of the budget.
        most: Bytes,
    },
    /// There are 32,768 pins already.
    #[error("there are too many pins; pin larger parts, or drop pins")]
    TooMany,
}

impl From<OtherProcess> for PinError {
    fn from(error: OtherProcess) -> Self {
        Self::Access(error.into())
    }
}

/// Pinned memory: none of its pages is evicted as long as this lives. Made by
/// [`Managed::pin`](super::Managed::pin).
#[must_use = "the memory is pinned as long as this lives"]
pub struct Pinned<'a> {
    engine: &'a Engine,
    pinner: Pinner,
    /// Counted towards the bound.
    bytes: u64,
}

impl<'a> Pinned<'a> {
    /// Pins `range`, whether its pages are there or not, for the time of one look and access. None
    /// if there are too many pins.
    pub(super) fn for_a_moment(engine: &'a Engine, range: PageRange) -> Option<Self> {
        let pinner = Pinner::Region(NEXT.fetch_add(1, Ordering::Relaxed));
        engine.pins.pin(pinner, range).then_some(Self { engine, pinner, bytes: 0 })
    }

    /// The same for as long as the user likes.
    pub(super) fn for_good(engine: &'a Engine, range: PageRange) -> Result<Self, PinError> {
        let most = engine.ledger.budget_bytes() / SHARE;
        let asked = range.len() as u64;
        let pinned = &engine.pinned_bytes;
        let fits = |pinned: u64| pinned.checked_add(asked).filter(|sum| *sum <= most);
        pinned.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).map_err(|pinned| {
            let [asked, pinned, most] = [asked, pinned, most].map(Bytes::new);
            PinError::TooMuch { asked, pinned, most }
        })?;
        match Self::for_a_moment(engine, range) {
            Some(mut pin) => {
                pin.bytes = asked;
                Ok(pin)
            }
            None => {
                release(pinned, asked);
                Err(PinError::TooMany)
            }
        }
    }
}

fn release(pinned: &AtomicU64, bytes: u64) {
    pinned.fetch_sub(bytes, Ordering::AcqRel);
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.engine.pins.unpin(self.pinner);
        release(&self.engine.pinned_bytes, self.bytes);
    }
}
