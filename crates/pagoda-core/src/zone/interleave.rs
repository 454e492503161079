//! Weighted interleave: Linux's MPOL_WEIGHTED_INTERLEAVE, from 6.9 on.
//!
//! Each zone in turn, local or remote, is preferred for as many frames as its *weight* says. So the
//! traffic of a program is divided among kinds of memory by their bandwidths, where `fair` divides
//! it by their sizes. A preferred zone without a frame to spare has had its frame all the same, and
//! the first other zone gives it. This module must never ask what a zone has.

use std::num::NonZeroU8;

/// The weights, and whose turn it is.
#[derive(Clone, Debug)]
pub(super) struct Interleave {
    /// One of each zone.
    weights: Vec<NonZeroU8>,
    current: usize,
    /// Frames that the current zone is still preferred for.
    left: u8,
}

impl Interleave {
    /// The same weight for each of so many zones. Panics if there is none.
    pub(super) fn new(zones: usize) -> Self {
        assert!(zones > 0, "no zones to interleave");
        Self { weights: vec![NonZeroU8::MIN; zones], current: zones - 1, left: 0 }
    }

    /// Sets the weights from the next zone on. Panics unless there is one for each zone.
    pub(super) fn set(&mut self, weights: &[NonZeroU8]) {
        self.weights.copy_from_slice(weights);
    }

    /// The zone that is preferred for the next frame.
    pub(super) fn next(&mut self) -> usize {
        if self.left == 0 {
            self.current = (self.current + 1) % self.weights.len();
            self.left = self.weights[self.current].get();
        }
        self.left -= 1;
        self.current
    }
}
