use proptest::prelude::*;

use super::*;
use crate::page::BasePage;

fn marks() -> Watermarks {
    Watermarks::of_share(Bytes::mib(256), BasePage::M2, 2)
}

const PLENTY: Bytes = Bytes::mib(200);

#[test]
fn pages_that_are_there_at_two_looks_in_a_row_are_joined() {
    let mut broken = Broken::default();
    for (seen, verdict) in [
        (Seen::All, Verdict::Wait),
        (Seen::Part, Verdict::Wait),
        (Seen::All, Verdict::Wait),
        (Seen::All, Verdict::Join),
    ] {
        assert_eq!(broken.look(seen, PLENTY, &marks()), verdict);
    }
    assert_eq!(broken.look(Seen::Gone, PLENTY, &marks()), Verdict::Forget);
}

#[test]
fn nothing_is_joined_that_would_wake_reclaim() {
    let marks = marks();
    let least = marks.high.saturating_add(Bytes::mib(4));
    let mut broken = Broken::default();
    for _ in 0..5 {
        assert_eq!(broken.look(Seen::All, least.saturating_sub(Bytes::new(1)), &marks), Verdict::Wait);
    }
    assert_eq!(broken.look(Seen::All, least, &marks), Verdict::Join);
}

#[test]
fn a_refused_collapse_is_asked_for_ever_more_seldom() {
    let mut broken = Broken::default();
    let mut looks_until_join = || {
        let looks = (1..).find(|_| broken.look(Seen::All, PLENTY, &marks()) == Verdict::Join);
        broken.refused();
        looks.expect("at some time")
    };
    let looks: Vec<u32> = (0..9).map(|_| looks_until_join()).collect();
    assert_eq!(looks, [2, 4, 6, 10, 18, 34, 66, 66, 66]);
}

proptest! {
    #[test]
    fn it_is_joined_only_with_all_of_it_there_and_room_for_it(
        looks in prop::collection::vec((0..3u8, 0u64..64 << 20, any::<bool>()), 1..200)
    ) {
        let marks = marks();
        let mut broken = Broken::default();
        for (seen, free, is_refused) in looks {
            let seen = [Seen::Gone, Seen::Part, Seen::All][usize::from(seen)];
            let verdict = broken.look(seen, Bytes::new(free), &marks);
            prop_assert_eq!(verdict == Verdict::Forget, seen == Seen::Gone);
            if verdict == Verdict::Join {
                prop_assert!(seen == Seen::All && free >= marks.high.get() + (4 << 20));
                if is_refused { broken.refused(); }
            }
        }
    }
}
