//! Several zones in a real engine: every byte against a shadow, and what each zone gave, holds and lost.

mod support;

use pagoda::zones::{Place, ZoneStats, age_ratio};
use pagoda::{BasePage, Bytes, Manager, ManagerBuilder, Region, ZonePolicy};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::{skip, skip_without_moves};

use support::{PAGE, Shadow};

fn builder(zones: &[(&str, u64, Place)]) -> ManagerBuilder {
    let builder = Manager::builder().user_mode_only(true).spill_to("/var/tmp", Bytes::gib(1));
    zones.iter().fold(builder, |builder, (name, mib, place)| builder.zone(name, Bytes::mib(*mib), *place))
}

/// Writes what `seed` says to every OS page.
fn fill(region: &mut Region, from: usize, len: usize) {
    for offset in (from..from + len).step_by(PAGE) {
        region.write_at(offset, &content(offset as u64));
    }
}

/// Every line is another, and most of it compresses.
fn content(value: u64) -> [u8; PAGE] {
    let mut content = [0; PAGE];
    for (i, line) in content.chunks_exact_mut(64).enumerate() {
        line[..8]
            .copy_from_slice(&value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32).to_le_bytes());
    }
    content[..8].copy_from_slice(&value.to_le_bytes());
    content
}

/// What zones hold is what the manager holds, and each has what it was given or less.
fn check(manager: &Manager) -> Vec<ZoneStats> {
    let zones: Vec<ZoneStats> = manager.zones().into_iter().map(|(_, zone)| zone).collect();
    let stats = manager.stats();
    let held: u64 = zones.iter().map(|zone| zone.held.get()).sum();
    let accounted = stats.resident_bytes + stats.staged_bytes + stats.ready_bytes;
    // Nobody faults meanwhile, but reclaim may go on for a while.
    assert!(held.abs_diff(accounted) <= 4 << 20, "zones hold {held} of {accounted}: {zones:?}");
    zones
}

#[test]
fn what_was_written_is_read_from_unequal_zones_at_each_base_page() {
    if skip_without_moves("zones") {
        return;
    }
    let fair = BasePage::ALL.map(|base| (base, ZonePolicy::Fair));
    let others = [ZonePolicy::ResetOnFailure, ZonePolicy::GlobalList].map(|policy| (BasePage::K64, policy));
    for (base, policy) in fair.into_iter().chain(others) {
        let least = if base == BasePage::M2 { 64 } else { 16 };
        let zones = [("fast", least, Place::Local), ("slow", 3 * least, Place::Local)];
        let manager = builder(&zones).base_page(base).zone_policy(policy).build().expect("manager");
        let len = (6 * least as usize) << 20;
        let mut region = manager.region(Bytes::new(len as u64)).create().expect("region");
        let random = Random::new(base.bytes() as u64, 7);
        let mut shadow = Shadow::new(len, random, content);
        shadow.run(&mut region, len / PAGE / 2, &format!("at base page {base}, {policy}"));
        let stats = manager.stats();
        assert!(stats.stores > 0 && stats.faults_stored > 0, "it ran over its budget: {stats:?}");
        assert!(stats.anon_peak_bytes <= stats.budget_bytes + (16 << 20), "{} held", stats.anon_peak_bytes);
        let zones = check(&manager);
        assert!(zones.iter().all(|zone| zone.evicted > Bytes::ZERO), "both are reclaimed: {zones:?}");
        let ratio = age_ratio(&zones).expect("both were");
        println!("{policy} at a base page of {base}: age ratio {ratio:.2}, {} resets", stats.zones_resets);
        region.close();
        let zones = check(&manager);
        let stats = manager.stats();
        assert_eq!((stats.resident_bytes, stats.staged_bytes, stats.stored_bytes), (0, 0, 0));
        let held: u64 = zones.iter().map(|zone| zone.held.get()).sum();
        assert_eq!(held, stats.ready_bytes, "what was in regions or staged is entered out of its zone");
    }
}

#[test]
fn without_pressure_zones_give_by_their_batches() {
    if skip_without_moves("zones") {
        return;
    }
    for base in [BasePage::K4, BasePage::K16, BasePage::K64] {
        let manager = builder(&[("fast", 64, Place::Local), ("slow", 192, Place::Local)])
            .base_page(base)
            // What is got ready is held, and given to nobody yet.
            .clear_ahead(0)
            .build()
            .expect("manager");
        let mut region = manager.region(Bytes::mib(160)).create().expect("region");
        fill(&mut region, 0, 160 << 20);
        let zones = check(&manager);
        let stats = manager.stats();
        assert_eq!((stats.evictions, stats.zones_short), (0, 0), "no pressure: {stats:?}");
        let batch = |zone: &ZoneStats| (zone.high.get() - zone.low.get()) as f64;
        let given: f64 = zones.iter().map(|zone| zone.allocated.get() as f64).sum();
        let batches: f64 = zones.iter().map(batch).sum();
        for zone in &zones {
            let share = zone.allocated.get() as f64 / given;
            let ideal = batch(zone) / batches;
            assert!(
                (share - ideal).abs() <= 0.01 * ideal,
                "{share} for {ideal} at base page {base}: {zones:?}"
            );
            // A frame that was taken for a page that somebody else had filled meanwhile is ready again.
            assert!(
                zone.held <= zone.allocated
                    && zone.allocated.get() - zone.held.get() <= 16 * base.bytes() as u64
            );
        }
        assert!(stats.zones_resets > 0);
    }
}

#[test]
fn a_remote_zone_is_used_before_anything_is_reclaimed_and_not_before_the_others_are_used_up() {
    if skip_without_moves("zones") {
        return;
    }
    let zones = [("far", 32, Place::Remote), ("near", 32, Place::Local)];
    let manager = builder(&zones).build().expect("manager");
    let mut region = manager.region(Bytes::mib(128)).create().expect("region");
    fill(&mut region, 0, 24 << 20);
    let before = check(&manager);
    assert_eq!(before[0].allocated, Bytes::ZERO, "{before:?}");
    fill(&mut region, 24 << 20, 24 << 20);
    let stats = manager.stats();
    assert_eq!(stats.evictions, 0, "spilled before reclaim: {stats:?}");
    assert!(stats.zones_spilled_bytes >= 12 << 20, "{} spilled", stats.zones_spilled_bytes);
    fill(&mut region, 48 << 20, 80 << 20);
    let after = check(&manager);
    assert_eq!(Bytes::new(manager.stats().zones_spilled_bytes), after[0].allocated);
    for offset in (0..128 << 20).step_by(PAGE) {
        let mut back = [0; PAGE];
        region.read_at(offset, &mut back);
        assert!(back == content(offset as u64), "page at {offset}");
    }
}

#[test]
fn a_zone_that_is_used_up_does_not_stop_the_other() {
    if skip_without_moves("zones") {
        return;
    }
    let zones = [("small", 4, Place::Local), ("large", 60, Place::Local)];
    for policy in [ZonePolicy::FirstFit, ZonePolicy::Fair] {
        let manager = builder(&zones).zone_policy(policy).build().expect("manager");
        let mut region = manager.region(Bytes::mib(160)).create().expect("region");
        fill(&mut region, 0, 160 << 20);
        for offset in (0..160 << 20).step_by(PAGE).rev() {
            let mut back = [0; PAGE];
            region.read_at(offset, &mut back);
            assert!(back == content(offset as u64), "page at {offset}");
        }
        let zones = check(&manager);
        assert!(zones[1].allocated > Bytes::mib(56), "{policy}: {zones:?}");
    }
}

#[test]
fn the_node_we_run_on_can_be_bound_and_one_that_is_not_there_is_an_error_at_the_start() {
    use pagoda::error::StartError;

    if skip_without_moves("zones") {
        return;
    }
    let here = Place::Node(pagoda_linux::node::current());
    match builder(&[("here", 32, here), ("rest", 32, Place::Local)]).build() {
        Ok(manager) => {
            let mut region = manager.region(Bytes::mib(16)).create().expect("region");
            fill(&mut region, 0, 16 << 20);
            assert_eq!(manager.stats().zones_spilled_bytes, 0, "it is local");
            assert!(check(&manager)[0].allocated > Bytes::ZERO);
        }
        Err(StartError::ZoneNode(errno)) => {
            return skip("binding to a node", errno);
        }
        Err(error) => panic!("{error}"),
    }
    let missing = Place::Node(pagoda_linux::node::NODES_MAX - 1);
    let refused = builder(&[("here", 32, Place::Local), ("far", 32, missing)]).build();
    assert!(matches!(refused.err(), Some(StartError::ZoneNode(_))));
    let unfit = builder(&[("one", 32, Place::Local), ("one", 32, Place::Local)]).build();
    assert_eq!(unfit.err(), Some(StartError::ZonesUnfit));
}

#[test]
fn one_zone_is_the_budget_undivided() {
    if skip_without_moves("zones") {
        return;
    }
    let mut seen = Vec::new();
    for builder in [builder(&[]).budget(Bytes::mib(64)), builder(&[("all", 64, Place::Local)])] {
        // What comes with another's fault depends on the time.
        let builder = builder.base_page(BasePage::K64).fault_around(false);
        let manager = builder.build().expect("manager");
        let mut region = manager.region(Bytes::mib(48)).create().expect("region");
        fill(&mut region, 0, 48 << 20);
        let stats = manager.stats();
        assert!(manager.zones().is_empty() && stats.zone0_bytes == 0 && stats.zones_resets == 0);
        assert_eq!(stats.evictions, 0, "it fits: {stats:?}");
        seen.push((stats.budget_bytes, stats.free_low_bytes, stats.free_high_bytes));
        // The last fault is counted a moment after its thread runs again.
        assert!((767..=768).contains(&stats.faults_zero), "{} faults", stats.faults_zero);
    }
    assert_eq!(seen[0], seen[1]);
}
