use proptest::prelude::*;

use super::*;

fn base() -> impl Strategy<Value = BasePage> {
    prop::sample::select(BasePage::ALL.as_slice())
}

fn marks(budget: Bytes) -> Watermarks {
    Watermarks::new(budget, BasePage::K64, 4).expect("large enough")
}

proptest! {
    #[test]
    fn ordered_within_a_quarter_of_the_budget_and_monotone(
        base in base(),
        handlers in 1..=HANDLERS_MAX,
        more in 0u64..1 << 36,
        yet_more in 0u64..1 << 36,
    ) {
        let least = Watermarks::least_budget(base, handlers);
        let marks = |more| Watermarks::new(least.saturating_add(Bytes::new(more)), base, handlers).unwrap();
        let (smaller, larger) = (marks(more), marks(more + yet_more));
        for marks in [smaller, larger] {
            prop_assert!(marks.min <= marks.low && marks.low <= marks.high);
            prop_assert!(marks.high.get() <= marks.budget().get() / 4);
            prop_assert!(marks.min.get() >= u64::from(handlers) * base.bytes() as u64);
        }
        prop_assert!(smaller.min <= larger.min && smaller.low <= larger.low && smaller.high <= larger.high);
    }

    #[test]
    fn one_byte_less_than_the_least_budget_is_refused(base in base(), handlers in 1..=HANDLERS_MAX) {
        let least = Watermarks::least_budget(base, handlers);
        let budget = least.saturating_sub(Bytes::new(1));
        prop_assert_eq!(Watermarks::new(budget, base, handlers), Err(BudgetTooSmall { budget, least }));
    }

    #[test]
    fn a_share_of_any_size_keeps_its_order_and_frames_for_all_handlers(
        base in base(),
        handlers in 1..=HANDLERS_MAX,
        share in 0u64..1 << 30,
        more in 0u64..1 << 30,
    ) {
        let marks = |share| Watermarks::of_share(Bytes::new(share), base, handlers);
        let (smaller, larger) = (marks(share), marks(share + more));
        for marks in [smaller, larger] {
            prop_assert!(marks.min <= marks.low && marks.low <= marks.high);
            prop_assert!(marks.high.get() <= marks.budget().get() / 4);
            prop_assert!(marks.min.get() >= u64::from(handlers) * base.bytes() as u64);
        }
        prop_assert!(smaller.min <= larger.min && smaller.low <= larger.low && smaller.high <= larger.high);
        prop_assert_eq!(larger.budget(), Bytes::new(share + more).max(Watermarks::least_share(base, handlers)));
    }

    #[test]
    fn pressure_is_on_below_low_off_from_high_and_else_as_it_was(
        frees in prop::collection::vec(0u64..100 << 20, 1..100),
    ) {
        let marks = marks(Bytes::gib(1));
        let mut pressure = Pressure::new(marks);
        let mut before = false;
        for free in frees.into_iter().map(Bytes::new) {
            let now = pressure.update(free);
            prop_assert_eq!(now, pressure.is_on());
            prop_assert!(free >= marks.low || now);
            prop_assert!(free < marks.high || !now);
            if free >= marks.low && free < marks.high {
                prop_assert_eq!(now, before);
            }
            before = now;
        }
    }

    #[test]
    fn taking_the_target_lifts_free_memory_to_high(held in 0u64..4 << 30) {
        let (marks, held) = (marks(Bytes::gib(1)), Bytes::new(held));
        let target = marks.reclaim_target_held(held);
        let after = marks.free(held.saturating_sub(target));
        prop_assert!(after == marks.high || (target == Bytes::ZERO && after > marks.high));
        if held <= marks.budget() {
            prop_assert_eq!(target, marks.reclaim_target(marks.free(held)));
        }
    }
}

#[test]
fn levels_change_at_the_marks_themselves() {
    let marks = marks(Bytes::mib(256));
    assert_eq!((marks.min, marks.low, marks.high), (Bytes::mib(1), Bytes::mib(4), Bytes::mib(8)));
    let less = |mark: Bytes| mark.saturating_sub(Bytes::new(1));
    assert_eq!(marks.level(Bytes::ZERO), Level::BelowMin);
    assert_eq!((marks.level(less(marks.min)), marks.level(marks.min)), (Level::BelowMin, Level::Low));
    assert_eq!((marks.level(less(marks.low)), marks.level(marks.low)), (Level::Low, Level::Plenty));
}

#[test]
fn a_budget_that_is_too_small_says_what_would_do() {
    let error = Watermarks::new(Bytes::mib(8), BasePage::K64, 2).unwrap_err().to_string();
    assert_eq!(error, "a budget of 8 MiB is below what serving faults needs; give at least 16 MiB");
}
