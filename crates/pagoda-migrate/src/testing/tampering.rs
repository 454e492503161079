//! Changes that malice or a bad cable makes to a channel's bytes.

use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Truncate,
    Overwrite,
    Insert,
    Remove,
    Leave,
}

/// One thing that happens somewhere.
#[derive(Clone, Debug)]
pub(crate) struct Tampering {
    how: How,
    at: Index,
    noise: Vec<u8>,
}

impl Tampering {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        const HOWS: [How; 5] = [How::Truncate, How::Overwrite, How::Insert, How::Remove, How::Leave];
        let noise = prop::collection::vec(any::<u8>(), 1..100);
        (prop::sample::select(&HOWS[..]), any::<Index>(), noise).prop_map(|(how, at, noise)| Self {
            how,
            at,
            noise,
        })
    }

    pub(crate) fn happen_to(&self, says: &mut Vec<u8>) {
        let at = self.at.index(says.len());
        let until = says.len().min(at + self.noise.len());
        match self.how {
            How::Truncate => says.truncate(at),
            How::Overwrite => says[at..until].copy_from_slice(&self.noise[..until - at]),
            How::Insert => drop(says.splice(at..at, self.noise.iter().copied())),
            How::Remove => drop(says.drain(at..until)),
            How::Leave => {}
        }
    }

    /// Whether it may be the reason of an error.
    pub(crate) fn changes_something(&self) -> bool {
        self.how != How::Leave
    }
}
