//! Ages in a stream through zones that are reclaimed each by itself, or by one list, under the fair
//! policy and the one that it replaced.
//!
//! As in the engine, a zone's free frames are observed before each allocation, reclaim is woken a
//! little late, and a frame that no zone can give is taken from the zone with the largest free
//! share. Nothing is touched twice, so the cold end of a list is its oldest page. Time is in
//! allocations.

use std::collections::VecDeque;

use pagoda_core::zone::reclaim::{Lack, Reclaimers, ZoneReclaim};
use pagoda_core::zone::{Zone, ZonePolicy, Zones};

/// Two zones of 3:1, with the watermarks of 256 MiB in base pages of 64 KiB.
const FRAMES: [u64; 2] = [3072, 1024];
const LOW: [u64; 2] = [48, 16];
const HIGH: [u64; 2] = [96, 32];

/// The speed of reclaim.
#[derive(Clone, Copy, Debug)]
struct Speed {
    /// Frames that are freed while one is allocated.
    frames: u32,
    /// Allocations between a shortage and the first free frame.
    delay: u64,
}

struct Simulation {
    zones: Zones,
    free: [u64; 2],
    kind: ZoneReclaim,
    reclaimers: Reclaimers,
    /// Pages by zone, with the times since when they are there; oldest first.
    pages: [VecDeque<u64>; 2],
    wakes_at: Option<u64>,
    now: u64,
    /// Ages at eviction, sum and number by zone.
    ages: [(u64, u64); 2],
}

impl Simulation {
    fn new(policy: ZonePolicy, kind: ZoneReclaim) -> Self {
        let any = Zone { free_frames: 0, low_frames: 0, high_frames: 1 };
        Self {
            zones: Zones::new(policy, &[any; 2], &[]),
            free: FRAMES,
            kind,
            reclaimers: Reclaimers::default(),
            pages: [VecDeque::new(), VecDeque::new()],
            wakes_at: None,
            now: 0,
            ages: [(0, 0); 2],
        }
    }

    fn lacks(&self) -> [Lack; 2] {
        std::array::from_fn(|zone| Lack {
            amount: HIGH[zone] as i64 - self.free[zone] as i64,
            batch: HIGH[zone] - LOW[zone],
        })
    }

    /// Frees a frame of the zone whose turn it is, if reclaim runs.
    fn reclaim(&mut self) {
        let wakes = self.wakes_at.take_if(|at| *at <= self.now).is_some();
        let lacks = self.lacks();
        if !self.reclaimers.look(wakes, &lacks) {
            return;
        }
        let zone = match self.kind {
            ZoneReclaim::PerZone => self.reclaimers.next(&lacks, 0),
            // The oldest page of a zone that is below its high watermark.
            ZoneReclaim::OneList => {
                let is_short = |zone: &usize| lacks[*zone].amount > 0;
                (0..2).filter(is_short).min_by_key(|zone| self.pages[*zone].front().copied())
            }
        };
        let Some(zone) = zone else { return };
        let Some(since) = self.pages[zone].pop_front() else { return };
        self.free[zone] += 1;
        let (sum, number) = &mut self.ages[zone];
        (*sum, *number) = (*sum + self.now - since, *number + 1);
    }

    fn allocate(&mut self) {
        for (zone, id) in self.zones.ids().enumerate() {
            let now = Zone { free_frames: self.free[zone], low_frames: LOW[zone], high_frames: HIGH[zone] };
            self.zones.observe(id, &now);
        }
        let zone = match self.zones.allocate(1) {
            Ok(grant) => grant.zone.index(),
            Err(_) => {
                if !self.reclaimers.look(false, &self.lacks()) {
                    self.wakes_at.get_or_insert(self.now);
                }
                // The free shares compared: a / x >= b / y.
                usize::from(self.free[0] * FRAMES[1] < self.free[1] * FRAMES[0])
            }
        };
        self.free[zone] = self.free[zone].checked_sub(1).expect("reclaim keeps up");
        self.pages[zone].push_back(self.now);
        self.now += 1;
    }
}

/// By how much ages at eviction differ between the zones in a stream of ten times all memory, after
/// as much that does not count.
fn age_ratio(policy: ZonePolicy, kind: ZoneReclaim, speed: Speed) -> f64 {
    let mut simulation = Simulation::new(policy, kind);
    let pages = 10 * FRAMES.iter().sum::<u64>();
    while simulation.now < 2 * pages {
        if simulation.now == pages {
            simulation.ages = [(0, 0); 2];
        }
        for _ in 0..speed.frames {
            simulation.reclaim();
        }
        simulation.allocate();
        if let Some(at) = &mut simulation.wakes_at
            && *at + 1 == simulation.now
        {
            *at += speed.delay;
        }
    }
    let [one, other] = simulation.ages.map(|(sum, number)| sum as f64 / number as f64);
    (one / other).max(other / one)
}

/// Reclaim from twice to eight times as fast as allocation, woken at once or later.
fn speeds() -> impl Iterator<Item = Speed> {
    [2, 3, 4, 6, 8]
        .into_iter()
        .flat_map(|frames| [0, 4, 8, 16].into_iter().map(move |delay| Speed { frames, delay }))
}

#[test]
fn no_policy_with_turns_inverts_ages_on_one_list() {
    for speed in speeds() {
        for policy in [ZonePolicy::ResetOnFailure, ZonePolicy::FirstVersion, ZonePolicy::Fair] {
            let ratio = age_ratio(policy, ZoneReclaim::OneList, speed);
            assert!(ratio < 1.05, "{policy}, {speed:?}: {ratio}");
        }
    }
}

#[test]
fn resets_without_need_invert_ages_where_zones_are_reclaimed_by_themselves() {
    let of = |policy, speed| age_ratio(policy, ZoneReclaim::PerZone, speed);
    let (mut most_of_reset, mut most_of_fair) = (1.0f64, 1.0f64);
    for speed in speeds() {
        let (reset, fair) = (of(ZonePolicy::ResetOnFailure, speed), of(ZonePolicy::Fair, speed));
        println!("{speed:?}: reset-on-failure {reset:.2}, fair {fair:.2}");
        assert!(fair < reset + 0.01, "{speed:?}: {fair}, {reset}");
        (most_of_reset, most_of_fair) = (most_of_reset.max(reset), most_of_fair.max(fair));
        if (3..=4).contains(&speed.frames) {
            assert!(reset > 1.25 && fair < 1.1, "{speed:?}: {reset}, {fair}");
        }
    }
    assert!(most_of_reset > 1.6 && most_of_fair < 1.3, "{most_of_reset}, {most_of_fair}");
}
