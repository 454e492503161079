//! The pages that a guest touches first: recorded from one guest, prefetched for those after it.
//!
//! A set only orders reads. A wrong or stale one costs time, and never changes a byte.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Touches that are kept: 4 GiB in OS pages. Later ones are left out.
pub const TOUCHES_MOST: usize = 1 << 20;

/// Records the first touches of one guest, in order.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Touches>);

#[derive(Debug, Default)]
struct Touches {
    seen: HashSet<u64>,
    order: Vec<u64>,
}

impl Recorder {
    /// Notes a fault at this offset of the image, in bytes.
    pub(crate) fn touch(&self, offset: u64) {
        let mut touches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if touches.order.len() < TOUCHES_MOST && touches.seen.insert(offset) {
            touches.order.push(offset);
        }
    }

    /// The offsets so far, in the order of their first touch.
    #[must_use]
    pub fn touches(&self) -> Vec<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).order.clone()
    }
}

/// Joins parts that follow each other, so that they are read at once.
#[must_use]
pub fn joined(parts: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => joined.push(part),
        }
    }
    joined
}

/// Reads the set of a raw file: a line for each touch, its offset in bytes. A line that is no
/// offset ends it.
pub(crate) fn parse(text: &str, len_bytes: u64, part_bytes: u64) -> Vec<Range<u64>> {
    let offsets = text.lines().take(TOUCHES_MOST).map_while(|line| line.parse::<u64>().ok());
    joined(
        offsets.filter(|offset| *offset < len_bytes).map(|offset| offset..offset.saturating_add(part_bytes)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_touches_come_back_in_order_and_joined() {
        let recorder = Recorder::default();
        for offset in [8192, 0, 4096, 0, 8192, 65536] {
            recorder.touch(offset);
        }
        assert_eq!(recorder.touches(), [8192, 0, 4096, 65536]);
        let text = recorder.touches().iter().map(u64::to_string).collect::<Vec<_>>().join("\n");
        assert_eq!(parse(&text, 1 << 20, 4096), [8192..12288, 0..8192, 65536..69632]);
        assert_eq!(parse("4096\nnonsense\n0", 1 << 20, 4096).len(), 1);
        assert!(parse("18446744073709551615", 1 << 20, 4096).is_empty());
    }
}
