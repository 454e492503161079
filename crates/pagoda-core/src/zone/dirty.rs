//! How much of a zone may be dirty: written, and not in its file yet.
//!
//! A dirty frame can't be reused before it is written back, so the next allocation in a zone full
//! of them waits for a disk. A writer beyond the limit waits for write-back; before that,
//! write-back goes on in the background. The shares are those of Linux (vm.dirty_ratio and
//! vm.dirty_background_ratio). This module must never measure: the caller passes sizes.

use crate::size::Bytes;

/// The part of a zone that may be dirty: one in so many.
const LIMIT_SHARE: u64 = 5;

/// The part from which on it is written back when nothing else is to be done.
const BACKGROUND_SHARE: u64 = 10;

/// The most of a zone of this size that may be dirty.
#[must_use]
pub const fn limit(zone: Bytes) -> Bytes {
    Bytes::new(zone.get() / LIMIT_SHARE)
}

/// Background write-back leaves this much of a zone of this size dirty.
#[must_use]
pub const fn background(zone: Bytes) -> Bytes {
    Bytes::new(zone.get() / BACKGROUND_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_back_begins_before_a_writer_waits() {
        assert_eq!((limit(Bytes::mib(100)), background(Bytes::mib(100))), (Bytes::mib(20), Bytes::mib(10)));
    }
}
