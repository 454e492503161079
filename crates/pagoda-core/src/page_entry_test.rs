use super::*;
use proptest::prelude::*;

#[test]
fn untouched_memory_is_an_empty_entry() {
    assert_eq!(Word::EMPTY.bits(), 0);
    assert_eq!((Word::EMPTY.backing(), Word::EMPTY.resident()), (Backing::None, Granules::NONE));
    assert!(!Word::EMPTY.is_busy());
}

fn backing() -> impl Strategy<Value = Backing> {
    prop_oneof![
        Just(Backing::None),
        any::<u32>().prop_map(Backing::Slot),
        (0..1u64 << PAYLOAD_BITS).prop_map(Backing::Handle)
    ]
}

proptest! {
    #[test]
    fn each_field_keeps_its_value_when_others_change(
        resident: u16, backing in backing(), warmth in 0u8..4, other in backing(), busy: bool, huge: bool, zone in 0..ZONES
    ) {
        let mut word = Word::EMPTY.with_huge(huge).with_backing(other).with_resident(Granules(resident)).with_warmth(warmth);
        word = word.with_zone(zone);
        if busy { word = word.busy(); }
        word = word.with_backing(backing);
        prop_assert_eq!(word.backing(), backing);
        prop_assert_eq!(word.resident().bits(), resident);
        prop_assert_eq!(word.warmth(), warmth);
        prop_assert_eq!((word.is_busy(), word.is_huge()), (busy, huge));
        prop_assert_eq!(word.zone(), if resident == 0 { 0 } else { zone });
        prop_assert_eq!(word.with_resident(Granules::NONE).zone(), 0);
        prop_assert_eq!(word.busy().idle(), word.idle());
        prop_assert_eq!(word.with_sent().without_sent(), word);
    }

    #[test]
    fn swapped_out_content_stays_sent_until_it_changes(resident: u16, then: u16, backing in backing(), warmth in 0u8..4) {
        let word = Word::EMPTY.with_backing(backing).with_resident(Granules(resident)).with_sent();
        prop_assert!(word.busy().with_warmth(warmth).idle().is_sent());
        prop_assert_eq!(word.with_resident(Granules(then)).is_sent(), resident & !then == 0);
        prop_assert!(!word.with_backing(backing).is_sent());
    }

    #[test]
    fn runs_cover_the_set_exactly_and_never_touch(bits: u16) {
        let set = Granules(bits);
        let mut covered = Granules::NONE;
        let mut end_before = None;
        for (from, to) in set.runs() {
            prop_assert!(from < to && end_before.is_none_or(|end| end < from));
            end_before = Some(to);
            covered = covered.or(Granules::range(from, to));
            for i in from..to { prop_assert_eq!(set.run_around(i), Granules::range(from, to)); }
        }
        prop_assert_eq!(covered, set);
    }
}
