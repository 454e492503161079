//! How much of a zone may be dirty: written by somebody, and not in its file yet.
//!
//! A frame that is dirty can't be had before it is written, so that a zone full of them is a zone whose next allocation waits
//! for a disk. Who writes beyond the limit waits for write-back himself, and before that it goes on in the background. The
//! shares are those of Linux (vm.dirty_ratio and vm.dirty_background_ratio). This module must never measure: it is told
//! sizes.

use crate::size::Bytes;

/// The part of a zone that may be dirty: one in so many.
const LIMIT_SHARE: u64 = 5;

/// The part from which on it is written back when nothing else is to be done.
const BACKGROUND_SHARE: u64 = 10;

/// What of a zone of this size may be dirty.
#[must_use]
pub const fn limit(zone: Bytes) -> Bytes {
    Bytes::new(zone.get() / LIMIT_SHARE)
}

/// What of a zone of this size is left dirty by who has nothing else to do.
#[must_use]
pub const fn background(zone: Bytes) -> Bytes {
    Bytes::new(zone.get() / BACKGROUND_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_back_begins_before_anybody_waits() {
        assert_eq!((limit(Bytes::mib(100)), background(Bytes::mib(100))), (Bytes::mib(20), Bytes::mib(10)));
    }
}
