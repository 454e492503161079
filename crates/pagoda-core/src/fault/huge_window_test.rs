use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::fault::fault_around::FaultAround;
use crate::page::BasePage;

const PAGE: u64 = 16;
const PLACE: u64 = 512;

/// The filled steps, and the places that came whole, of a stream that touches these OS pages
/// upwards.
fn touch(steps: impl Iterator<Item = u64>, places: Option<u64>) -> (BTreeSet<u64>, Vec<u64>) {
    let (mut around, mut cut) = (FaultAround::new(BasePage::K4), Places::new(PAGE, places));
    let (mut there, mut whole) = (BTreeSet::new(), Vec::new());
    for step in steps {
        if there.contains(&step) {
            continue;
        }
        let window = around.fault(step, 0..1 << 20, |step| !there.contains(&step));
        let filled = cut.cut(window.clone(), step % PAGE, around.goes_on(), |_| u32::MAX);
        around.ends_at(cut.end(&filled));
        assert!(filled.steps.start == step && filled.steps.end <= window.end && !filled.steps.is_empty());
        if filled.whole > 0 {
            assert!(filled.steps.end.is_multiple_of(PLACE) && filled.whole <= WHOLE_MOST);
            let first = filled.steps.end / PLACE;
            whole.extend(first..first + u64::from(filled.whole));
        }
        there.extend(filled.steps.start..cut.end(&filled));
    }
    (there, whole)
}

#[test]
fn a_dense_stream_gets_three_places_of_four_whole_at_first() {
    let (there, whole) = touch(0..16 * PLACE, Some(PLACE));
    assert_eq!(there.len() as u64, 16 * PLACE);
    assert_eq!(whole, [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15]);
    assert_eq!(touch(0..16 * PLACE, None).1, []);
}

#[test]
fn a_stream_that_was_dense_for_long_gets_more_of_them_at_once() {
    let (there, whole) = touch(0..256 * PLACE, Some(PLACE));
    assert!((0..256 * PLACE).all(|step| there.contains(&step)));
    // Places that did not come whole, and so many places come behind each.
    let shown: Vec<u64> = (0..256).filter(|place| !whole.contains(place)).collect();
    let behind: Vec<u64> = shown.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
    assert!(behind.is_sorted(), "{behind:?}");
    assert_eq!(behind.iter().take_while(|count| **count == u64::from(WHOLE_LEAST)).count(), 12);
    assert_eq!(behind.last(), Some(&u64::from(WHOLE_MOST)));
    // A jump starts a new stream.
    let (_, whole) = touch((0..64 * PLACE).chain(100 * PLACE..112 * PLACE), Some(PLACE));
    assert_eq!(
        whole.iter().filter(|place| **place > 100).take(4).collect::<Vec<_>>(),
        [&101, &102, &103, &105]
    );
}

#[test]
fn steps_of_a_base_page_have_nothing_to_show() {
    let mut places = Places::new(1, Some(32));
    let mut cut = |window, goes_on, free| {
        let cut = places.cut(window, 0, goes_on, |place| {
            assert_eq!(place, 2);
            free
        });
        (places.end(&cut), cut.steps, cut.whole)
    };
    assert_eq!(cut(60..92, true, 9), (160, 60..64, 3));
    assert_eq!(cut(60..92, true, 1), (96, 60..64, 1));
    assert_eq!(cut(32..64, true, 0), (64, 32..64, 0));
    assert_eq!(cut(60..91, true, 9), (64, 60..64, 0));
    assert_eq!(cut(60..92, false, 9), (64, 60..64, 0));
}

proptest! {
    #[test]
    fn touching_the_same_part_of_each_base_page_never_gets_one_whole(
        from in 0..PAGE, len in 1..PAGE, start in 0..2 * PLACE / PAGE
    ) {
        let part = |page: u64| page * PAGE + from..page * PAGE + PAGE.min(from + len);
        let (_, whole) = touch((start..8 * PLACE / PAGE).flat_map(part), Some(PLACE));
        prop_assert_eq!(whole, []);
    }

    #[test]
    fn a_stream_that_becomes_sparse_holds_a_bounded_number_too_much(
        dense in 1..120 * PLACE, every in prop::sample::select(vec![16u64, 64, 512]), other in 0..PAGE
    ) {
        // Always the same part of a base page, or another in each.
        let sparse = (dense.next_multiple_of(every)..160 * PLACE)
            .step_by(every as usize)
            .map(|page| page + page / every * other % PAGE);
        let (there, whole) = touch((0..dense).chain(sparse.clone()), Some(PLACE));
        let after = whole.iter().filter(|place| **place * PLACE >= dense).count();
        let more = dense.saturating_sub(LONG * PLACE) / SHARE;
        prop_assert!(after as u64 <= u64::from(WHOLE_LEAST) + more / PLACE, "{} after {}: {:?}", after, dense, whole);
        // Nor are the windows by OS pages behind the last of them more than half a place: a
        // stream that touches the next part in each base page meets several ends of them.
        let too_much = there.range(dense..).count() - sparse.count();
        let most = u64::from(WHOLE_LEAST) * PLACE + PLACE / 2 + more;
        prop_assert!(too_much as u64 <= most, "{} after {}, every {}", too_much, dense, every);
    }

    #[test]
    fn nothing_but_the_window_is_filled(
        windows in prop::collection::vec((0u64..1 << 40, 1u64..600, any::<bool>()), 1..40)
    ) {
        let mut places = Places::new(PAGE, Some(PLACE));
        for (start, len, goes_on) in windows {
            let cut = places.cut(start..start + len, start % PAGE, goes_on, |_| 1);
            prop_assert!(cut.steps.start == start && cut.steps.end <= start + len && !cut.steps.is_empty());
            prop_assert!(cut.whole == 0 || cut.steps.end.is_multiple_of(PLACE));
        }
    }
}
