//! The parts of a restored region that live as long as it does: its open image, and its prefetch.

use std::any::Any;
use std::sync::Arc;

use super::prefetch::Prefetch;
use crate::store::OpenImage;

/// The image of a restored region.
pub(crate) struct Restored {
    pub(super) open: Arc<OpenImage>,
    pub(super) prefetch: Option<Prefetch>,
}

impl Restored {
    /// The image: a page of the region that is busy may still be read from it.
    pub(crate) fn keeps(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.open) as _
    }

    /// Ends prefetching, and waits for that.
    pub(crate) fn end_prefetch(&mut self) {
        self.prefetch = None;
    }
}
