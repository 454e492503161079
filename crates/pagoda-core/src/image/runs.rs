//! A received map as it lies in a file: runs of OS pages that were received, in order.
//!
//! A run is 16 bytes: its first page and how many there are. Two runs have a gap between them, so
//! that a map has one form only. All other pages are zero, and nothing was ever said about them.

use std::ops::Range;

use crate::migrate::received::ReceivedMap;

/// Bytes of a run.
pub const RUN_BYTES: usize = 16;

/// The bytes of all runs of a map.
#[must_use]
pub fn encode(map: &ReceivedMap) -> Vec<u8> {
    let both = |run: Range<u64>| [run.start, run.end - run.start];
    map.runs().flat_map(both).flat_map(u64::to_le_bytes).collect()
}

/// The run of these bytes, within `pages` pages and behind the run before. None if they are none.
fn decode_one(bytes: &[u8; RUN_BYTES], before: Option<u64>, pages: u64) -> Option<Range<u64>> {
    let (words, _) = bytes.as_chunks();
    let [first, count] = [0, 1].map(|i| u64::from_le_bytes(words[i]));
    let end = first.checked_add(count)?;
    let is_behind = before.is_none_or(|end| first > end);
    (count > 0 && is_behind && end <= pages).then_some(first..end)
}

/// The runs of these bytes, of a map of `pages` pages; None for bytes that are none. It ends with
/// the first of those.
pub fn decode(bytes: &[u8], pages: u64) -> impl Iterator<Item = Option<Range<u64>>> {
    let (runs, rest) = bytes.as_chunks::<RUN_BYTES>();
    let (mut before, mut is_right) = (None, rest.is_empty());
    runs.iter().map_while(move |run| {
        if !is_right {
            return None;
        }
        let run = decode_one(run, before, pages);
        before = run.as_ref().map(|run| run.end);
        is_right = run.is_some();
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::migrate::geometry::Extent;
    use crate::migrate::received::words_for;
    use proptest::prelude::*;

    fn run(first: u64, count: u64) -> [u8; RUN_BYTES] {
        let words = [first, count].map(u64::to_le_bytes);
        words.concat().try_into().expect("two words")
    }

    #[test]
    fn runs_that_touch_or_overlap_or_go_beyond_are_none() {
        for wrong in
            [[run(3, 1), run(4, 1)], [run(3, 2), run(4, 1)], [run(3, 1), run(9, 2)], [run(3, 0), run(5, 1)]]
        {
            assert!(decode(wrong.as_flattened(), 10).any(|run| run.is_none()), "{wrong:?}");
        }
        assert!(decode(&run(u64::MAX, 2), 10).any(|run| run.is_none()));
        let right = [run(0, 3), run(5, 5)];
        let runs: Option<Vec<_>> = decode(right.as_flattened(), 10).collect();
        assert_eq!(runs, Some(vec![0..3, 5..10]));
    }

    proptest! {
        #[test]
        fn a_map_reads_back(extents in prop::collection::vec((0u64..512, 1u32..70), 0..12)) {
            let map = ReceivedMap::new((0..words_for(512)).map(|_| AtomicU64::new(0)).collect(), 512);
            let mut model = vec![false; 512];
            for (first, count) in extents {
                let count = count.min((512 - first) as u32);
                let Ok(()) = map.mark(Extent::new(first, count).expect("an extent"), |_, _| Ok::<_, Infallible>(()));
                model[first as usize..][..count as usize].fill(true);
            }
            let runs: Option<Vec<_>> = decode(&encode(&map), 512).collect();
            let mut back = vec![false; 512];
            for run in runs.expect("all are runs") {
                back[run.start as usize..run.end as usize].fill(true);
            }
            prop_assert_eq!(back, model);
        }
    }
}
