//! The purpose of the policies: a stream through zones that are reclaimed while it goes on, and how
//! long its pages stay.
//!
//! The reclaimer works as the engine's does. It is woken by a shortage, and then frees frames from
//! the cold end of each second-chance list until all its zones are at their high watermarks, a few
//! for each frame that is allocated meanwhile. Nothing is touched twice, so the cold end is the
//! oldest. Linux's zones suffered from this before they shared: the preferred zone was reclaimed as
//! fast as the stream filled it, and never left that state.

use std::collections::VecDeque;

use pagoda_core::zone::{Grant, Zone, ZoneId, ZonePolicy, Zones};
use proptest::prelude::*;

/// One page that is resident.
struct Page {
    zone: ZoneId,
    since: u64,
}

struct Simulation {
    /// Local ones, and a remote one without a frame to spare.
    zones: Zones,
    highs: Vec<u64>,
    /// By [`Zones::list_of`], oldest first.
    lists: Vec<VecDeque<Page>>,
    is_reclaiming: bool,
    /// Time in allocations, and the ages at which each zone's pages were evicted: sum and number.
    now: u64,
    ages: Vec<(u64, u64)>,
}

impl Simulation {
    fn new(policy: ZonePolicy, local: &[Zone]) -> Self {
        // Its batch is never used: the first version waits for that.
        let remote = Zone { free_frames: 10, low_frames: 10, high_frames: 20 };
        Self {
            zones: Zones::new(policy, local, &[remote]),
            highs: local.iter().map(|zone| zone.high_frames).collect(),
            lists: local.iter().map(|_| VecDeque::new()).collect(),
            is_reclaiming: false,
            now: 0,
            ages: vec![(0, 0); local.len()],
        }
    }

    fn reclaim(&mut self, frames_each: u32) {
        self.is_reclaiming = false;
        for list in 0..self.lists.len() {
            for _ in 0..frames_each {
                let local = self.zones.ids().zip(&self.highs);
                let (free, high) = local
                    .filter(|(zone, _)| self.zones.list_of(*zone).index() == list)
                    .fold((0, 0), |(free, high), (zone, zone_high)| {
                        (free + self.zones.free_frames(zone), high + zone_high)
                    });
                if free >= high {
                    break;
                }
                let Some(page) = self.lists[list].pop_front() else { break };
                self.zones.give_back(Grant { zone: page.zone, frames: 1 });
                let (sum, number) = &mut self.ages[page.zone.index()];
                (*sum, *number) = (*sum + self.now - page.since, *number + 1);
                self.is_reclaiming = true;
            }
        }
    }

    fn stream(&mut self, pages: u64, frames_each: u32) {
        let end = self.now + pages;
        while self.now < end {
            if self.is_reclaiming {
                self.reclaim(frames_each);
            }
            match self.zones.allocate(1) {
                Ok(Grant { zone, .. }) => {
                    let list = self.zones.list_of(zone).index();
                    self.lists[list].push_back(Page { zone, since: self.now });
                    self.now += 1;
                }
                Err(_) => self.is_reclaiming = true,
            }
        }
    }

    /// The mean age at eviction, by zone; none where nothing was evicted.
    fn ages(&self) -> Vec<Option<f64>> {
        self.ages.iter().map(|&(sum, number)| (number > 0).then(|| sum as f64 / number as f64)).collect()
    }
}

/// The ages of a stream of ten times all memory, after as much that does not count.
fn ages(policy: ZonePolicy, local: &[Zone], frames_each: u32) -> Vec<Option<f64>> {
    let pages = 10 * local.iter().map(|zone| zone.free_frames).sum::<u64>();
    let mut simulation = Simulation::new(policy, local);
    simulation.stream(pages, frames_each);
    simulation.ages.fill((0, 0));
    simulation.stream(pages, frames_each);
    simulation.ages()
}

/// Watermarks in the same proportion everywhere, as with budgets from 128 MiB to 2 GiB.
fn local() -> impl Strategy<Value = Vec<Zone>> {
    let zone =
        (10u64..100).prop_map(|low| Zone { free_frames: 64 * low, low_frames: low, high_frames: 2 * low });
    prop::collection::vec(zone, 2..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn pages_of_a_stream_age_alike_in_fair_zones_and_on_one_list(local in local(), frames_each in 1u32..4) {
        for policy in [ZonePolicy::Fair, ZonePolicy::GlobalList] {
            let ages = ages(policy, &local, frames_each);
            let least = ages.iter().map(|age| age.expect("every zone is used")).fold(f64::INFINITY, f64::min);
            let most = ages.iter().flatten().copied().fold(0.0, f64::max);
            prop_assert!(most / least < 1.05, "{}: {ages:?}", policy.name());
        }
    }

    /// The other zones' frames stay for good, and the stream has the first zone alone.
    #[test]
    fn only_the_first_zone_turns_over_by_first_fit_and_in_the_first_version(
        local in local(), frames_each in 1u32..4,
    ) {
        for policy in [ZonePolicy::FirstFit, ZonePolicy::FirstVersion] {
            let ages = ages(policy, &local, frames_each);
            prop_assert!(ages[0].is_some() && ages[1..].iter().all(Option::is_none), "{}: {ages:?}", policy.name());
        }
    }
}
