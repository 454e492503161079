use proptest::prelude::*;

use super::*;

fn base() -> impl Strategy<Value = BasePage> {
    prop::sample::select(BasePage::ALL.as_slice())
}

/// The windows of a reader that touches all pages of `mapping` upwards.
fn read_all(base: BasePage, mapping: Range<u64>) -> Vec<u64> {
    let mut around = FaultAround::new(base);
    let (mut at, mut windows) = (mapping.start, Vec::new());
    while at < mapping.end {
        let window = around.fault(at, mapping.clone(), |_| true);
        windows.push(window.end - window.start);
        at = window.end;
    }
    windows
}

#[test]
fn a_stream_doubles_up_to_two_mebibytes() {
    assert_eq!(read_all(BasePage::K64, 100..200), [1, 2, 4, 8, 16, 32, 32, 5]);
    assert_eq!(read_all(BasePage::M2, 0..3), [1, 1, 1]);
    assert_eq!(read_all(BasePage::K4, 0..4096).iter().max(), Some(&512));
}

#[test]
fn a_jump_begins_anew() {
    let mut around = FaultAround::new(BasePage::K64);
    let mut fault = |page| around.fault(page, 0..1000, |_| true);
    assert_eq!((fault(0), fault(1), fault(3)), (0..1, 1..3, 3..7));
    // Far away, backwards, and with a gap that was never filled.
    assert_eq!((fault(500), fault(501), fault(2)), (500..501, 501..503, 2..3));
    assert_eq!((fault(4), fault(5)), (4..5, 5..7));
    let expected = [(6, false), (7, true), (7 + 32, true), (7 + 33, false)];
    assert_eq!(expected.map(|(page, _)| (page, around.may_go_on_at(page))), expected);
    assert!(!FaultAround::new(BasePage::K64).may_go_on_at(0), "there was no fault yet");
}

#[test]
fn passing_the_end_of_a_window_that_was_cut_short_is_not_sequential() {
    for (next, window) in [(13, 13..29), (14, 14..15), (15, 15..16)] {
        let mut around = FaultAround::new(BasePage::K64);
        let mut fault = |page| around.fault(page, 0..1000, |_| true);
        assert_eq!((fault(0), fault(1), fault(3), fault(7)), (0..1, 1..3, 3..7, 7..15));
        around.ends_at(13);
        assert_eq!(around.fault(next, 0..1000, |_| true), window);
    }
}

#[test]
fn resident_pages_on_the_way_are_no_jump() {
    let mut around = FaultAround::new(BasePage::K64);
    let mut fault = |page| around.fault(page, 0..1000, |page| !(3..6).contains(&page));
    assert_eq!((fault(0), fault(1), fault(6)), (0..1, 1..3, 6..10));
}

proptest! {
    #[test]
    fn only_mapped_and_allowed_pages_and_at_most_two_mebibytes(
        base in base(),
        start in prop_oneof![Just(0), 0u64..1 << 40, Just(u64::MAX - 64)],
        length in 1u64..64,
        refused in prop::collection::hash_set(0u64..64, 0..16),
        faults in prop::collection::vec((any::<bool>(), 0u64..64), 1..60),
    ) {
        let mut around = FaultAround::new(base);
        let mapping = start..start + length;
        let mut end_before = start;
        for (go_on, offset) in faults {
            let page = if go_on && mapping.contains(&end_before) { end_before } else { start + offset % length };
            let mut asked = Vec::new();
            let window = around.fault(page, mapping.clone(), |page| {
                asked.push(page);
                !refused.contains(&(page - start))
            });
            prop_assert_eq!(window.start, page);
            prop_assert!(page < window.end && window.end <= mapping.end);
            prop_assert!((window.end - page) * base.bytes() as u64 <= WINDOW_MOST.get());
            prop_assert!((page + 1..window.end).all(|ahead| !refused.contains(&(ahead - start))));
            prop_assert!(asked.iter().all(|page| mapping.contains(page)));
            end_before = window.end;
        }
    }

    /// Pages that no fault asked for: none, for random access.
    #[test]
    fn random_faults_bring_in_one_page_each(faults in prop::collection::vec(0u64..1 << 30, 1..60)) {
        let mut around = FaultAround::new(BasePage::K64);
        let mut next = None;
        for page in faults {
            prop_assume!(next != Some(page));
            next = Some(page + 1);
            prop_assert_eq!(around.fault(page, 0..1 << 30, |_| true), page..page + 1);
        }
    }

    /// A stream takes at most log2(window) faults more than its length in windows.
    #[test]
    fn a_stream_faults_once_for_each_window(base in base(), length in 1u64..5000) {
        let windows = read_all(base, 0..length);
        let most = WINDOW_MOST.get() / base.bytes() as u64;
        prop_assert_eq!(windows.iter().sum::<u64>(), length);
        prop_assert!(windows.len() as u64 <= length / most + u64::from(most.ilog2()) + 1);
    }
}
