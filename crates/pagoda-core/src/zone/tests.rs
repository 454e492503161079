//! The policies' promises, over random zones and schedules, and the counts of the reference cases.
//!
//! 1. Local zones give in proportion to their batches.
//! 2. Remote zones have no part in the cycle and hold up no reset.
//! 3. Zones that are short of frames cause no reset.
//! 4. Batches have a sign; one is used up if and only if it is 0 or less.
//! 5. Spilling to remote zones comes before reclaim.
//! 6. After a reset the search starts again from the first zone.
//! 7. A reset sets each local batch to the distance of its watermarks, exactly.

use proptest::prelude::*;

use super::cases::{Case, LOCAL_ZONES};
use super::*;
use crate::size::Bytes;

fn zone(free_frames: u64, low_frames: u64, batch_frames: u64) -> Zone {
    Zone { free_frames, low_frames, high_frames: low_frames + batch_frames }
}

/// Small, so that schedules reach every watermark and every end of a batch.
fn zones(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<Zone>> {
    prop::collection::vec((0u64..200, 0u64..40, 1u64..50).prop_map(|(f, l, b)| zone(f, l, b)), count)
}

fn plentiful(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<Zone>> {
    prop::collection::vec((1u64..200).prop_map(|batch| zone(1 << 40, 10, batch)), count)
}

fn policy() -> impl Strategy<Value = ZonePolicy> {
    prop::sample::select(ZonePolicy::ALL.as_slice())
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { most: u32 },
    GiveBack { which: prop::sample::Index },
}

fn schedule() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1u32..20).prop_map(|most| Step::Allocate { most }),
        1 => any::<prop::sample::Index>().prop_map(|which| Step::GiveBack { which }),
    ];
    prop::collection::vec(step, 1..200)
}

/// Plays a schedule; `check` sees each allocation with the zones before and after it.
fn play(
    mut zones: Zones,
    schedule: &[Step],
    mut check: impl FnMut(&Zones, Result<Grant, Shortage>, &Zones) -> Result<(), TestCaseError>,
) -> Result<(Zones, Vec<Grant>), TestCaseError> {
    let mut held: Vec<Grant> = Vec::new();
    for step in schedule {
        match step {
            Step::Allocate { most } => {
                let before = zones.clone();
                let result = zones.allocate(*most);
                check(&before, result, &zones)?;
                held.extend(result);
            }
            Step::GiveBack { which } if !held.is_empty() => {
                zones.give_back(held.swap_remove(which.index(held.len())));
            }
            Step::GiveBack { .. } => {}
        }
    }
    Ok((zones, held))
}

/// The local zones that have both a turn and a frame to spare.
fn takers(zones: &Zones) -> impl Iterator<Item = usize> {
    (0..zones.local).filter(|&index| !zones.zones[index].is_used_up() && zones.zones[index].has_to_spare())
}

fn spares(zones: &Zones, range: std::ops::Range<usize>) -> Option<usize> {
    range.into_iter().find(|&index| zones.zones[index].has_to_spare())
}

proptest! {
    /// 1. After any number of allocations, no zone is further from its share than one batch; after
    ///    whole cycles it has exactly its share. However many frames are taken at once.
    #[test]
    fn shares_are_in_proportion_to_the_batches(local in plentiful(1..=5), mosts in prop::collection::vec(1u32..64, 500)) {
        let mut zones = Zones::new(ZonePolicy::Fair, &local, &[zone(1 << 40, 0, 7)]);
        let cycle: i64 = zones.zones[..zones.local].iter().map(|zone| zone.full_batch).sum();
        for most in mosts {
            zones.allocate(most).expect("plenty");
            let Counters { allocated_frames, resets, .. } = zones.counters();
            let total: u64 = allocated_frames.iter().sum();
            for (state, allocated) in zones.zones[..zones.local].iter().zip(allocated_frames) {
                let ideal = total as f64 * state.full_batch as f64 / cycle as f64;
                prop_assert!((*allocated as f64 - ideal).abs() <= state.full_batch as f64);
                prop_assert!((0..=state.full_batch).contains(&state.batch));
                let taken_this_cycle = state.full_batch - state.batch;
                prop_assert_eq!(*allocated as i64, *resets as i64 * state.full_batch + taken_this_cycle);
            }
        }
    }

    /// A grant that is taken back was never made: the next caller gets the same frames, and shares
    /// are of used frames.
    #[test]
    fn frames_taken_back_are_of_their_zones_turn_again(
        local in plentiful(1..=4), steps in prop::collection::vec((1u32..64, 0u32..64), 1..300)
    ) {
        let mut zones = Zones::new(ZonePolicy::Fair, &local, &[zone(1 << 40, 0, 7)]);
        let mut alone = zones.clone();
        for (most, unused) in steps {
            let Grant { zone, frames } = zones.allocate(most).expect("plenty");
            prop_assert!(frames <= most && u64::from(frames) <= zones.zones[zone.0].full_batch as u64);
            let unused = unused.min(frames);
            zones.take_back(Grant { zone, frames: unused });
            for _ in unused..frames {
                prop_assert_eq!(alone.allocate(1).expect("plenty").zone, zone);
            }
            if unused < frames {
                prop_assert_eq!(&zones.counters.allocated_frames, &alone.counters.allocated_frames);
                let batches = |zones: &Zones| zones.zones.iter().map(|zone| zone.batch).collect::<Vec<_>>();
                prop_assert_eq!(batches(&zones), batches(&alone));
            }
        }
    }

    /// An observation of a zone counts for the next allocation, and ends no turn.
    #[test]
    fn an_observation_counts_at_once_and_costs_no_turn(
        local in zones(1..=4), later in prop::collection::vec(zones(4), 1..50)
    ) {
        let mut zones = Zones::new(ZonePolicy::Fair, &local, &[]);
        for now in later {
            let batches: Vec<i64> = zones.zones.iter().map(|state| state.batch).collect();
            for (id, now) in zones.ids().collect::<Vec<_>>().into_iter().zip(&now) {
                zones.observe(id, now);
            }
            prop_assert_eq!(&batches, &zones.zones.iter().map(|state| state.batch).collect::<Vec<_>>());
            let resets = zones.counters().resets;
            let taker = takers(&zones).next();
            match zones.allocate(1) {
                Ok(Grant { zone, .. }) => {
                    let Zone { free_frames, low_frames, .. } = now[zone.index()];
                    prop_assert!(free_frames > low_frames);
                    prop_assert!(taker.is_none() || taker == Some(zone.index()));
                }
                Err(Shortage) => {
                    prop_assert!(now[..local.len()].iter().all(|zone| zone.free_frames <= zone.low_frames));
                }
            }
            if zones.counters().resets > resets {
                for (state, now) in zones.zones.iter().zip(&now) {
                    let left = state.full_batch - state.batch;
                    prop_assert!(state.full_batch == (now.high_frames - now.low_frames) as i64 && (0..=1).contains(&left));
                }
            }
        }
    }

    /// Parts of a budget have their parts of its watermarks, and batches in proportion to a frame's
    /// rounding.
    #[test]
    fn parts_have_their_parts_of_the_watermarks(budget in 32u64 << 20..1 << 40, parts in prop::collection::vec(1u64..100, 1..=8)) {
        let marks = crate::budget::watermark::Watermarks::new(Bytes::new(budget), crate::page::BasePage::K64, 2).expect("large enough");
        let sum: u64 = parts.iter().sum();
        let frame = 64 << 10;
        let zones: Vec<Zone> = parts
            .iter()
            .map(|&part| Zone::of_part(&marks, Bytes::new(part), Bytes::new(sum), Bytes::new(frame * part), frame))
            .collect();
        prop_assert!(zones.iter().map(|zone| zone.low_frames).sum::<u64>() * frame <= marks.low.get());
        for (zone, part) in zones.iter().zip(parts) {
            let ideal = (marks.high.get() - marks.low.get()) as f64 * part as f64 / sum as f64 / frame as f64;
            let batch = (zone.high_frames - zone.low_frames) as f64;
            prop_assert!(batch >= 1.0 && (batch - ideal).abs() <= 1.0, "{} for {}", batch, ideal);
            prop_assert_eq!(zone.free_frames, part);
        }
    }

    /// 2. The number and state of remote zones change no local choice and no reset.
    #[test]
    fn remote_zones_have_no_part_in_the_cycle(local in zones(1..=4), remote in zones(1..=3), schedule in schedule()) {
        let mut alone = Zones::new(ZonePolicy::Fair, &local, &[]);
        let mut beside = Zones::new(ZonePolicy::Fair, &local, &remote);
        let mut held = Vec::new();
        for step in &schedule {
            match step {
                Step::Allocate { most } => match (alone.allocate(*most), beside.allocate(*most)) {
                    (Ok(one), Ok(other)) => {
                        prop_assert_eq!(one, other);
                        held.push(one);
                    }
                    (Err(_), other) => prop_assert!(other.map_or(true, |grant| grant.zone.0 >= beside.local)),
                    (one, other) => prop_assert!(false, "{one:?} alone, {other:?} beside remote zones"),
                },
                Step::GiveBack { which } if !held.is_empty() => {
                    let grant = held.swap_remove(which.index(held.len()));
                    alone.give_back(grant);
                    beside.give_back(grant);
                }
                Step::GiveBack { .. } => {}
            }
            prop_assert_eq!(alone.counters().resets, beside.counters().resets);
            prop_assert_eq!(alone.counters().skips, beside.counters().skips);
        }
    }

    /// 3, 4, 6, 7. Which zones are skipped, when batches are reset and to which value, and where
    /// the search continues.
    #[test]
    fn batches_are_reset_exactly_when_one_is_used_up_and_no_zone_can_take_its_turn(
        local in zones(1..=4), remote in zones(0..=3), schedule in schedule(),
    ) {
        play(Zones::new(ZonePolicy::Fair, &local, &remote), &schedule, |before, result, after| {
            let taker = takers(before).next();
            let used_up = before.zones[..before.local].iter().filter(|zone| zone.batch <= 0).count();
            let resets = after.counters.resets - before.counters.resets;
            prop_assert_eq!(resets, u64::from(taker.is_none() && used_up > 0));
            if let Some(taker) = taker {
                prop_assert_eq!(result.expect("there is one").zone.0, taker);
            } else {
                // From the first zone again, and only now with the remote ones.
                let first = spares(before, 0..before.zones.len());
                prop_assert_eq!(result.ok().map(|grant| grant.zone.0), first);
            }
            for (index, (old, new)) in before.zones.iter().zip(&after.zones).enumerate() {
                let given = match result {
                    Ok(grant) if grant.zone.0 == index => i64::from(grant.frames),
                    _ => 0,
                };
                let is_reset = resets == 1 && index < before.local;
                prop_assert_eq!(new.batch, if is_reset { old.full_batch } else { old.batch } - given);
            }
            Ok(())
        })?;
    }

    /// 5. A remote zone gives only when no local one can, or in its turn if zones are interleaved;
    /// reclaim is woken, once, only when no zone can.
    #[test]
    fn spilling_comes_after_local_zones_and_before_reclaim(
        policy in policy(), local in zones(1..=4), remote in zones(0..=3), schedule in schedule(),
    ) {
        play(Zones::new(policy, &local, &remote), &schedule, |before, result, after| {
            let count = before.zones.len();
            let spilled = after.counters.spilled_frames - before.counters.spilled_frames;
            let woken = after.counters.wake_ups - before.counters.wake_ups;
            match result {
                Ok(grant) => {
                    let is_remote = grant.zone.0 >= before.local;
                    let has_turn = policy == ZonePolicy::WeightedInterleave;
                    prop_assert!(!is_remote || has_turn || spares(before, 0..before.local).is_none());
                    prop_assert_eq!(spilled, if is_remote { u64::from(grant.frames) } else { 0 });
                    prop_assert_eq!(woken, 0);
                }
                Err(Shortage) => {
                    prop_assert_eq!(spares(before, 0..count), None);
                    prop_assert_eq!((spilled, woken), (0, 1));
                }
            }
            Ok(())
        })?;
    }

    /// Under every policy.
    #[test]
    fn frames_are_conserved_and_low_watermarks_kept(
        policy in policy(), local in zones(1..=4), remote in zones(0..=3), schedule in schedule(),
    ) {
        let (mut zones, held) = play(Zones::new(policy, &local, &remote), &schedule, |before, result, after| {
            if let Ok(Grant { zone, frames }) = result {
                prop_assert!(frames > 0);
                prop_assert_eq!(after.free_frames(zone) + u64::from(frames), before.free_frames(zone));
                prop_assert!(after.free_frames(zone) >= after.zones[zone.0].low);
            }
            prop_assert!(after.counters.scans - before.counters.scans <= 2);
            Ok(())
        })?;
        for grant in held {
            zones.give_back(grant);
        }
        let free: Vec<u64> = zones.ids().map(|id| zones.free_frames(id)).collect();
        prop_assert_eq!(free, local.iter().chain(&remote).map(|zone| zone.free_frames).collect::<Vec<_>>());
    }

    #[test]
    fn a_zone_has_the_batch_of_its_watermarks(more in 0u64..1 << 36, base in prop::sample::select(BasePage::ALL.as_slice())) {
        let budget = Watermarks::least_budget(base, 4).saturating_add(Bytes::new(more));
        let marks = Watermarks::new(budget, base, 4).expect("large enough");
        let (zone, bytes) = (Zone::new(&marks, base), base.bytes() as u64);
        prop_assert!(zone.low_frames * bytes >= marks.low.get());
        prop_assert_eq!(zone.high_frames - zone.low_frames, (marks.high.get() - marks.low.get()) / bytes);
        let mut zones = Zones::new(ZonePolicy::Fair, &[zone], &[]);
        while zones.allocate(1 << 20).is_ok() {}
        prop_assert!(zones.free_frames(ZoneId(0)) * bytes >= marks.low.get());
    }
}

/// Resets, scans and the local shares of a case.
fn counts(case: Case, policy: ZonePolicy) -> (u64, u64, [u64; LOCAL_ZONES]) {
    let Counters { resets, scans, allocated_frames, .. } = case.run(policy);
    (resets, scans, [allocated_frames[0], allocated_frames[1]])
}

#[test]
fn a_lack_of_frames_is_no_reason_to_reset() {
    assert_eq!(counts(Case::A, ZonePolicy::ResetOnFailure), (1000, 2000, [0, 0]));
    assert_eq!(counts(Case::A, ZonePolicy::FirstVersion), (0, 2000, [0, 0]));
    assert_eq!(counts(Case::A, ZonePolicy::Fair), (0, 1000, [0, 0]));
    for policy in [ZonePolicy::FirstFit, ZonePolicy::GlobalList] {
        assert_eq!(counts(Case::A, policy), (0, 1000, [0, 0]));
    }
    for policy in ZonePolicy::ALL {
        assert_eq!(Case::A.run(policy).wake_ups, 1000, "{}", policy.name());
    }
}

#[test]
fn a_blocked_zone_does_not_hold_up_the_reset() {
    assert_eq!(counts(Case::B, ZonePolicy::ResetOnFailure), (10, 1010, [0, 1000]));
    assert_eq!(counts(Case::B, ZonePolicy::FirstVersion), (0, 2000, [0, 1000]));
    assert_eq!(counts(Case::B, ZonePolicy::Fair), (10, 1010, [0, 1000]));
    for policy in [ZonePolicy::FirstFit, ZonePolicy::GlobalList] {
        assert_eq!(counts(Case::B, policy), (0, 1000, [0, 1000]));
    }
}

#[test]
fn a_remote_zone_does_not_hold_up_the_reset_but_in_the_first_version() {
    assert_eq!(counts(Case::C, ZonePolicy::ResetOnFailure), (19, 8019, [6000, 2000]));
    assert_eq!(counts(Case::C, ZonePolicy::FirstVersion), (0, 15_600, [7900, 100]));
    assert_eq!(counts(Case::C, ZonePolicy::Fair), (19, 8019, [6000, 2000]));
    for policy in [ZonePolicy::FirstFit, ZonePolicy::GlobalList] {
        assert_eq!(counts(Case::C, policy), (0, 8000, [8000, 0]));
    }
    // Interleaved, remote zones are no spill.
    let spills = |policy: &ZonePolicy| *policy != ZonePolicy::WeightedInterleave;
    for policy in ZonePolicy::ALL.into_iter().filter(spills) {
        assert_eq!(Case::C.run(policy).spilled_frames, 0, "{}", policy.name());
    }
    // 6000 allocations look at one zone, 2000 at two, and 19 passes find both used up. Others then
    // look at the remote one.
    let visits = |policy| Case::C.run(policy).zone_visits;
    assert_eq!((visits(ZonePolicy::Fair), visits(ZonePolicy::ResetOnFailure)), (10_038, 10_038 + 19));
}

#[test]
fn without_pressure_all_that_share_do_it_alike() {
    for policy in [ZonePolicy::ResetOnFailure, ZonePolicy::FirstVersion, ZonePolicy::Fair] {
        assert_eq!(counts(Case::D, policy), (19, 8019, [6000, 2000]), "{}", policy.name());
    }
    for policy in [ZonePolicy::FirstFit, ZonePolicy::GlobalList] {
        assert_eq!(counts(Case::D, policy), (0, 8000, [8000, 0]));
    }
}

#[test]
fn zones_that_stay_short_of_frames_are_reset_once_and_then_scanned_once_each_time() {
    // Both short, the first used up: one reset, and two scans only this once.
    let mut zones = Zones::new(ZonePolicy::Fair, &[zone(13, 10, 3), zone(10, 10, 5)], &[]);
    assert_eq!(zones.allocate(9), Ok(Grant { zone: ZoneId(0), frames: 3 }));
    assert_eq!((zones.allocate(1), zones.allocate(1)), (Err(Shortage), Err(Shortage)));
    let Counters { resets, scans, skips, zone_visits, wake_ups, .. } = zones.counters().clone();
    assert_eq!((resets, scans, skips, zone_visits, wake_ups), (1, 4, 1, 1 + 2 + 2 + 2, 2));
}

#[test]
fn one_list_for_local_zones_under_the_global_policy_alone() {
    let lists = |policy| {
        let zones = Zones::new(policy, &[zone(9, 1, 1); 2], &[zone(9, 1, 1); 2]);
        zones.ids().map(|id| zones.list_of(id).index()).collect::<Vec<_>>()
    };
    assert_eq!(lists(ZonePolicy::GlobalList), [0, 0, 2, 3]);
    assert_eq!(lists(ZonePolicy::Fair), [0, 1, 2, 3]);
}

#[test]
fn out_of_turn_frames_are_granted_one_by_one() {
    // Without turns, of a remote zone, and where a zone that has had its turn gives all the same:
    // in each case another may be next.
    for policy in [ZonePolicy::FirstFit, ZonePolicy::GlobalList] {
        let mut zones = Zones::new(policy, &[zone(100, 10, 20)], &[]);
        assert_eq!(zones.allocate(16), Ok(Grant { zone: ZoneId(0), frames: 1 }), "{policy}");
    }
    let mut zones = Zones::new(ZonePolicy::Fair, &[zone(10, 10, 20)], &[zone(100, 10, 20)]);
    assert_eq!(zones.allocate(16), Ok(Grant { zone: ZoneId(1), frames: 1 }));
    let mut zones = Zones::new(ZonePolicy::FirstVersion, &[zone(100, 10, 2)], &[zone(100, 10, 20)]);
    assert_eq!(
        [zones.allocate(16), zones.allocate(16)].map(|grant| grant.map(|grant| grant.frames)),
        [Ok(2), Ok(1)]
    );
}

#[test]
fn a_turn_that_comes_back_in_the_next_cycle_makes_that_no_longer() {
    let mut zones = Zones::new(ZonePolicy::Fair, &[zone(100, 10, 4), zone(100, 10, 4)], &[]);
    let first = zones.allocate(4).expect("plenty");
    zones.allocate(4).expect("plenty");
    zones.allocate(1).expect("plenty, after a reset");
    zones.take_back(first);
    assert_eq!(zones.zones[0].batch, 4, "no more than a whole one");
    assert_eq!(zones.counters().allocated_frames, [1, 4]);
}

#[test]
fn a_shortage_says_how_to_end_it() {
    assert_eq!(
        Shortage.to_string(),
        "no zone, local or remote, has a frame above its low watermark: reclaim has to run"
    );
}

#[test]
#[should_panic(expected = "given back twice")]
fn frames_that_were_not_given_do_not_come_back() {
    let mut zones = Zones::new(ZonePolicy::Fair, &[zone(9, 1, 2)], &[]);
    let grant = zones.allocate(2).expect("plenty");
    zones.give_back(grant);
    zones.give_back(grant);
}

#[test]
#[should_panic(expected = "has no batch")]
fn a_zone_without_a_batch_is_refused() {
    let _ = Zones::new(ZonePolicy::Fair, &[zone(9, 1, 0)], &[]);
}

#[test]
fn zones_give_huge_frames_by_their_sizes_however_short_their_turns_in_base_frames_are() {
    let mib = Bytes::mib;
    let zone = |size| Zone::of_huge_frames(mib(size), mib(size), mib(24));
    let mut zones = Zones::new(ZonePolicy::Fair, &[zone(24), zone(72)], &[]);
    for _ in 0..32 {
        zones.allocate(1).expect("room");
    }
    assert_eq!(zones.counters().allocated_frames, [8, 24]);
    // One that has less than a frame to spare gives none.
    let ids: Vec<ZoneId> = zones.ids().collect();
    zones.observe(ids[0], &Zone::of_huge_frames(Bytes::new((2 << 20) - 1), mib(24), mib(24)));
    let given = (0..16).filter(|_| zones.allocate(1).is_ok_and(|grant| grant.zone == ids[1])).count();
    assert_eq!(given, 12, "of 36");
}
