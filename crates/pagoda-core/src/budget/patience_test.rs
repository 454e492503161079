//! Programs of several kinds, simulated: which of them are ended, and when.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// Looks at a program every `step_ns`, or later if there is a pause. `state` gives, for a time, the
/// account, the store's memory, and whether memory is lacking. Returns the time at which the
/// program is ended, and the number of looks.
fn run(step_ns: u64, last_ns: u64, mut state: impl FnMut(u64) -> (u64, u64, bool)) -> (Option<u64>, u64) {
    let (mut patience, mut gains, mut looks) = (Patience::default(), Gains::default(), 0);
    let mut now = 0;
    while now < last_ns {
        let (seen, store, lacks) = state(now);
        looks += 1;
        if gains.look(seen, store) {
            patience.renew();
        } else {
            patience.look(now, lacks, true, false);
        }
        if patience.is_over(GIVE_UP_NS) {
            return (Some(now), looks);
        }
        now += step_ns + patience.pause_ns();
    }
    (None, looks)
}

#[test]
fn a_page_that_goes_to_the_file_and_comes_back_is_no_gain() {
    // Once spilled, memory is not lacking until the fault has the page read again.
    let flaps = |now: u64| {
        let is_spilled = now / (50 * MS) % 2 == 1;
        (7, if is_spilled { 800 } else { 1000 }, !is_spilled || now % (50 * MS) > 10 * MS)
    };
    let (end, looks) = run(MS, 60 * S, flaps);
    let end = end.expect("it is ended");
    assert!((10 * S..16 * S).contains(&end), "after {end} ns");
    assert!(looks < 2000, "{looks} looks");
}

#[test]
fn a_store_that_shrinks_step_by_step_is_a_gain() {
    // A slow disk: a piece each 9 s.
    let (end, _) = run(MS, 100 * S, |now| (7, 1000 - now / (9 * S), true));
    assert_eq!(end, None);
}

#[test]
fn memory_that_is_enough_for_long_or_unasked_for_starts_anew() {
    let (end, _) = run(MS, 100 * S, |now| (7, 1000, now % (9 * S) > 3 * S / 2));
    assert_eq!(end, None);
    let mut patience = Patience::default();
    (0..900).for_each(|look| patience.look(look * 10 * MS, true, true, false));
    assert!(patience.waited_ns() > 8 * S);
    patience.look(9 * S, false, false, false);
    assert_eq!(patience, Patience::default());
}

#[test]
fn a_server_that_refuses_each_time_after_long_ends_it_as_soon() {
    let mut patience = Patience::default();
    (0..4).for_each(|look| patience.look(look * 4 * S, true, true, true));
    assert!(patience.is_over(GIVE_UP_NS));
}

proptest! {
    #[test]
    fn a_program_that_gains_now_and_then_is_never_ended(
        step_ms in 1u64..300,
        every_ms in 1u64..9_500,
        spilled in any::<u64>(),
    ) {
        let state = |now: u64| {
            (now / (every_ms * MS), spilled >> (now / (20 * MS) % 64) & 1, true)
        };
        prop_assert_eq!(run(step_ms * MS, 100 * S, state).0, None);
    }

    #[test]
    fn one_without_gain_is_ended_after_the_time_that_reclaim_ran(step_ms in 1u64..300) {
        let (end, looks) = run(step_ms * MS, 300 * S, |_| (7, 1000, true));
        let end = end.expect("it is ended");
        prop_assert!(end >= GIVE_UP_NS);
        prop_assert!(looks >= 200, "only {} looks", looks);
        if step_ms < 30 {
            prop_assert!(end < 11 * S, "after {end} ns");
        }
    }
}
