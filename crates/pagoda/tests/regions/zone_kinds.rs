//! Zones by other rules than the default ones: weighted interleave, and reclaim of each zone by
//! itself.

use std::num::NonZeroU8;

use pagoda::frames::zones::{Place, ZoneStats};
use pagoda::{Bytes, Manager, ZonePolicy, ZoneReclaim};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::regions::support::PAGE;
use crate::regions::support::lines::{content, fill};

fn zones(manager: &Manager) -> Vec<ZoneStats> {
    manager.zones().into_iter().map(|(_, zone)| zone).collect()
}

#[test]
fn zones_give_by_their_weights_remote_ones_too() {
    if skip_without_moves("zones with weights") {
        return;
    }
    let manager = Manager::builder()
        .user_mode_only(true)
        .weighted_zone("fast", Bytes::mib(64), Place::Local, NonZeroU8::new(3).expect("above 0"))
        .zone("slow", Bytes::mib(64), Place::Remote)
        .tune(|tuning| tuning.zone_policy(ZonePolicy::WeightedInterleave).clear_ahead(0).tiering(false))
        .build()
        .expect("manager");
    let mut region = manager.region(Bytes::mib(64)).create().expect("region");
    fill(&mut region, 0, 64 << 20);
    let zones = zones(&manager);
    // Where the kernel refused a move for a moment the frame was given back, and another one was
    // next: a zone may have given more, in its turn.
    let [fast, slow] = [zones[0].allocated.get(), zones[1].allocated.get()];
    assert!(fast + slow >= 64 << 20 && fast.abs_diff(3 * slow) <= 3 * (64 << 10), "{zones:?}");
    assert_eq!(manager.stats().evictions, 0);
}

#[test]
fn a_zone_of_which_most_is_pinned_stops_no_reclaim_of_zones_by_themselves() {
    if skip_without_moves("zones by themselves") {
        return;
    }
    let manager = Manager::builder()
        .user_mode_only(true)
        .spill_to("/var/tmp", Bytes::gib(1))
        .zone("one", Bytes::mib(16), Place::Local)
        .zone("two", Bytes::mib(48), Place::Local)
        .tune(|tuning| tuning.zone_policy(ZonePolicy::FirstFit).zone_reclaim(ZoneReclaim::PerZone))
        .build()
        .expect("manager");
    let mut stuck = manager.region(Bytes::mib(14)).create().expect("region");
    fill(&mut stuck, 0, 14 << 20);
    let pin = stuck.pin(0, 14 << 20).expect("pinned");
    let mut region = manager.region(Bytes::mib(128)).create().expect("region");
    fill(&mut region, 0, 128 << 20);
    let mut back = [0; PAGE];
    for page in 0..(128 << 20) / PAGE {
        region.read_at(page * PAGE, &mut back).expect("read");
        assert_eq!(back, content((page * PAGE) as u64), "page {page}");
    }
    drop(pin);
}
