//! The pages that a guest touches first: recorded from one guest, prefetched for those after it.
//!
//! A set only orders reads. A wrong or stale one costs time, and never changes a byte.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Touches that are kept: 4 GiB in OS pages. Later ones are left out.
pub const TOUCHES_MOST: usize = 1 << 20;

/// The first touch of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Where it is in the image, in bytes.
    pub offset: u64,
    /// When, in microseconds after the guest's connection.
    pub at_us: u32,
}

/// Records the first touches of one guest, in order.
#[derive(Debug)]
pub struct Recorder {
    since: Instant,
    touches: Mutex<Touches>,
}

#[derive(Debug, Default)]
struct Touches {
    seen: HashSet<u64>,
    order: Vec<Touch>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { since: Instant::now(), touches: Mutex::default() }
    }
}

impl Recorder {
    /// Notes a fault at this offset of the image, in bytes.
    pub(crate) fn touch(&self, offset: u64) {
        let mut touches = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
        if touches.order.len() < TOUCHES_MOST && touches.seen.insert(offset) {
            let at_us = u32::try_from(self.since.elapsed().as_micros()).unwrap_or(u32::MAX);
            touches.order.push(Touch { offset, at_us });
        }
    }

    /// The touches so far, in order.
    #[must_use]
    pub fn touches(&self) -> Vec<Touch> {
        self.touches.lock().unwrap_or_else(PoisonError::into_inner).order.clone()
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

/// Reads the set of a raw file: a line for each touch, its offset in bytes and its time. A line
/// without an offset ends it.
pub(crate) fn parse(text: &str, len_bytes: u64, part_bytes: u64) -> Vec<Range<u64>> {
    let offset = |line: &str| line.split(' ').next()?.parse::<u64>().ok();
    let offsets = text.lines().take(TOUCHES_MOST).map_while(offset);
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
        let offsets: Vec<_> = recorder.touches().iter().map(|touch| touch.offset).collect();
        assert_eq!(offsets, [8192, 0, 4096, 65536]);
        assert!(recorder.touches().is_sorted_by_key(|touch| touch.at_us));
        let text = "8192 3\n0 3\n4096 17\n65536";
        assert_eq!(parse(text, 1 << 20, 4096), [8192..12288, 0..8192, 65536..69632]);
        assert_eq!(parse("4096\nnonsense\n0", 1 << 20, 4096).len(), 1);
        assert!(parse("18446744073709551615", 1 << 20, 4096).is_empty());
    }
}
