//! How much of an entry is filled together: all of it, a block, or as much as is touched densely.
//!
//! `pagoda_core::fault::density` decides; this is the state that an array of entries keeps for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagoda_core::fault::density::{Chooser, Counters, Reason, Touched, Use, borne_out};
use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::process::lock::Lock;

use crate::stats::counters::Counter;

/// The current size of a first touch in a region, and its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fill {
    /// The most that a touch fills, aligned, where nothing is there. Less at a place of 2 MiB that
    /// was touched little, or sparsely.
    pub size: BasePage,
    /// How all looks so far ended.
    pub looks: Counters,
}

/// How much of an entry is filled together.
#[derive(Clone, Debug)]
pub(crate) enum Filling {
    /// All of it.
    Whole,
    /// As much of it as is touched densely; from the store it comes whole.
    ByDensity(Arc<Density>),
    /// Aligned blocks of this size, which is less.
    Blocks(BasePage),
}

/// How a region is filled by density.
pub(crate) struct Density {
    /// The granules that a place begins with, unless the region has shrunk below them.
    start: AtomicU32,
    pub(super) granules: AtomicU32,
    pub(super) faults: AtomicU32,
    /// Of the pages that were stored since the last look: their number, and the number of their OS
    /// pages that were not zero.
    pub(super) stored: AtomicU64,
    pub(super) used: AtomicU64,
    chooser: Lock<Chooser>,
}

impl Density {
    pub(crate) fn new(purpose: Use, len: Bytes, base: BasePage) -> Self {
        Self::of(Chooser::new(purpose, len).up_to(base.min(BasePage::K64)))
    }

    /// Of memory that is in use, of which nothing is known yet: whole base pages.
    pub(crate) fn in_use(len: Bytes) -> Self {
        Self::of(Chooser::in_use(len, &Touched::default()))
    }

    fn of(chooser: Chooser) -> Self {
        Self {
            start: AtomicU32::new(granules(chooser.size())),
            granules: AtomicU32::new(granules(chooser.size())),
            faults: AtomicU32::new(0),
            stored: AtomicU64::new(0),
            used: AtomicU64::new(0),
            chooser: Lock::new(chooser),
        }
    }

    pub(crate) fn fill(&self) -> Fill {
        let chooser = self.chooser.lock();
        Fill { size: chooser.size(), looks: chooser.counters() }
    }

    /// These are its pages in use. It begins anew with the size that they bear out.
    pub(crate) fn begin(&self, len: Bytes, touched: &Touched) {
        let mut chooser = self.chooser.lock();
        *chooser = Chooser::in_use(len, touched);
        self.start.store(granules(chooser.size()), Ordering::Relaxed);
        self.granules.store(granules(chooser.size()), Ordering::Relaxed);
    }

    /// The size of a first touch at a place with these touches.
    pub(super) fn size_at(&self, here: impl FnOnce() -> Touched) -> BasePage {
        let (start, most) = (of_granules(&self.start), of_granules(&self.granules));
        if most <= start { most } else { borne_out(start, most, &here()) }
    }

    pub(super) fn look(&self, touched: &Touched) -> Option<Counter> {
        let mut chooser = self.chooser.lock();
        let reason = chooser.look(touched);
        self.granules.store(granules(chooser.size()), Ordering::Relaxed);
        match reason {
            Reason::Dense => Some(Counter::FillsGrown),
            Reason::Sparse => Some(Counter::FillsShrunk),
            Reason::Unconfirmed | Reason::Settled | Reason::TooLittle => None,
        }
    }
}

impl std::fmt::Debug for Density {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Density").field(&self.fill()).finish()
    }
}

/// The base page of this size, or its entries.
pub(crate) fn of_entry(bytes: usize) -> BasePage {
    BasePage::ALL.into_iter().rev().find(|size| size.bytes() <= bytes).unwrap_or(BasePage::K4)
}

fn of_granules(granules: &AtomicU32) -> BasePage {
    of_entry(granules.load(Ordering::Relaxed) as usize * OS_PAGE)
}

pub(crate) fn granules(size: BasePage) -> u32 {
    (size.bytes() / OS_PAGE) as u32
}

/// Blocks of an entry that come with the one a sequential reader touches: so many that the wake-up
/// is paid once for a few, so few that little is lost if the reader stops.
pub(crate) const AHEAD_BLOCKS: usize = 4;
