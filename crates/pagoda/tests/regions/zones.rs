//! Several zones in a real engine: every byte against a shadow, and the given, held and lost frames
//! of each zone.

use std::sync::atomic::{AtomicBool, Ordering};

use pagoda::frames::zones::{Place, ZoneStats, age_ratio};
use pagoda::{BasePage, Bytes, Manager, ManagerBuilder, Region, ZonePolicy, ZoneReclaim};
use pagoda_linux::testing::directory::on_disk;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::{skip, skip_without_moves};
use pagoda_linux::testing::wait::{EndsWith, until};

use crate::regions::support::lines::{content, fill};
use crate::regions::support::{PAGE, Shadow, settled};

fn builder(zones: &[(&str, u64, Place)]) -> ManagerBuilder {
    let builder = Manager::builder().user_mode_only(true).spill_to("/var/tmp", Bytes::gib(1));
    zones.iter().fold(builder, |builder, (name, mib, place)| builder.zone(name, Bytes::mib(*mib), *place))
}

/// The zones' memory is the manager's, and each holds its given frames or fewer.
fn check(manager: &Manager) -> Vec<ZoneStats> {
    settled(manager);
    let mut zones: Vec<ZoneStats> = Vec::new();
    // There are no faults meanwhile, but reclaim may go on for a while, and moves much between two
    // looks that are far apart.
    until("zones hold the manager's memory", || {
        zones = manager.zones().into_iter().map(|(_, zone)| zone).collect();
        let stats = manager.stats();
        let accounted = stats.resident_bytes + stats.staged_bytes + stats.ready_bytes;
        held(&zones) == accounted
    });
    zones
}

/// The sum of the zones' memory.
fn held(zones: &[ZoneStats]) -> u64 {
    zones.iter().map(|zone| zone.held.get()).sum()
}

#[test]
fn written_bytes_are_read_from_unequal_zones_at_each_base_page() {
    if skip_without_moves("zones") {
        return;
    }
    let one = ZoneReclaim::OneList;
    let fair = ZoneReclaim::ALL.map(|reclaim| BasePage::ALL.map(|base| (base, ZonePolicy::Fair, reclaim)));
    let others = [
        (ZonePolicy::ResetOnFailure, one),
        (ZonePolicy::ResetOnFailure, ZoneReclaim::PerZone),
        (ZonePolicy::GlobalList, one),
        (ZonePolicy::WeightedInterleave, one),
    ]
    .map(|(policy, reclaim)| (BasePage::K64, policy, reclaim));
    for (base, policy, reclaim) in fair.into_iter().flatten().chain(others) {
        let least = if base == BasePage::M2 { 64 } else { 16 };
        let zones = [("fast", least, Place::Local), ("slow", 3 * least, Place::Local)];
        let manager = builder(&zones)
            .base_page(base)
            .tune(|tuning| tuning.zone_policy(policy).zone_reclaim(reclaim))
            .build()
            .expect("manager");
        let len = (length(5, 6) * least as usize) << 20;
        let mut region = manager.region(Bytes::new(len as u64)).create().expect("region");
        let random = Random::new(base.bytes() as u64, 7);
        let mut shadow = Shadow::new(len, random, content);
        shadow.run(
            &mut region,
            len / PAGE / length(8, 2),
            &format!("at base page {base}, {policy}, {reclaim:?}"),
        );
        let stats = manager.stats();
        assert!(stats.stores > 0 && stats.faults_stored > 0, "it ran over its budget: {stats:?}");
        assert!(stats.anon_peak_bytes <= stats.budget_bytes + (16 << 20), "{} held", stats.anon_peak_bytes);
        let zones = check(&manager);
        assert!(zones.iter().all(|zone| zone.evicted > Bytes::ZERO), "both are reclaimed: {zones:?}");
        let ratio = age_ratio(&zones).expect("both were");
        println!("{policy} at a base page of {base}: age ratio {ratio:.2}, {} resets", stats.zones_resets);
        region.close();
        // The thread that stored a page last counts that after it gave the entry back.
        until("pages in regions or staged are entered out of their zone", || {
            let stats = manager.stats();
            let none = (stats.resident_bytes, stats.staged_bytes, stats.stored_bytes) == (0, 0, 0);
            none && held(&ZoneStats::all(&stats)) == stats.ready_bytes
        });
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
            // A frame that is got ready is held, and not given yet.
            .tune(|tuning| tuning.clear_ahead(0))
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
            // A frame that was taken for a page that another thread had filled meanwhile is ready
            // again.
            assert!(
                zone.held <= zone.allocated
                    && zone.allocated.get() - zone.held.get() <= 16 * base.bytes() as u64
            );
        }
        assert!(stats.zones_resets > 0);
    }
}

#[test]
fn threads_get_a_hundred_thousand_frames_in_proportion_and_none_is_counted_twice() {
    let local = |name, mib| (name, mib, Place::Local);
    expect_proportion(&[local("fast", 128), local("slow", 384)], false);
    // Their caches of turns stay behind when the threads end.
    expect_proportion(&[local("fast", 96), local("slow", 288), local("other", 160)], true);
}

fn expect_proportion(zones: &[(&str, u64, Place)], in_thread: bool) {
    const THREADS: u64 = 4;
    // 51 and 48 whole rounds of turns: within one the zones give one after the other.
    const MIB: u64 = 102;
    if skip_without_moves("zones") {
        return;
    }
    let manager = builder(zones)
        .serve_in_thread(in_thread)
        .base_page(BasePage::K4)
        .tune(|tuning| tuning.clear_ahead(0))
        .build()
        .expect("manager");
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let mut region = manager.region(Bytes::mib(MIB)).create().expect("region");
            std::thread::spawn(move || {
                fill(&mut region, 0, (MIB as usize) << 20);
                region
            })
        })
        .collect();
    let regions: Vec<Region> = threads.into_iter().map(|thread| thread.join().expect("it fits")).collect();
    let zones = check(&manager);
    let stats = manager.stats();
    assert_eq!((stats.evictions, stats.zones_short), (0, 0), "no pressure: {stats:?}");
    let given: u64 = zones.iter().map(|zone| zone.allocated.get()).sum();
    assert!(given >= 100_000 * PAGE as u64, "{zones:?}");
    let batch = |zone: &ZoneStats| (zone.high.get() - zone.low.get()) as f64;
    let batches: f64 = zones.iter().map(batch).sum();
    for zone in &zones {
        let (share, ideal) = (zone.allocated.get() as f64 / given as f64, batch(zone) / batches);
        assert!((share - ideal).abs() <= 0.01 * ideal, "{share} for {ideal}: {zones:?}");
    }
    drop(regions);
    until("everything is ready again", || {
        let stats = manager.stats();
        (stats.resident_bytes, stats.staged_bytes) == (0, 0)
            && held(&ZoneStats::all(&stats)) == stats.ready_bytes
    });
}

#[test]
fn after_pressure_each_zone_is_lifted_and_reclaim_sleeps() {
    if skip_without_moves("zones") {
        return;
    }
    let manager =
        builder(&[("small", 8, Place::Local), ("large", 56, Place::Local)]).build().expect("manager");
    let mut region = manager.region(Bytes::mib(112)).create().expect("region");
    fill(&mut region, 0, 112 << 20);
    settled(&manager);
    // One state, looked at until it is reached: on a busy machine a pause may only mean that the
    // reclaimer waits for a processor.
    let mut evictions = manager.stats().evictions;
    until("no zone is below its low watermark, and nothing is evicted any more", || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let asleep = std::mem::replace(&mut evictions, manager.stats().evictions) == evictions;
        asleep && manager.zones().iter().all(|(_, zone)| zone.free >= zone.low)
    });
}

#[test]
fn a_remote_zone_is_used_before_anything_is_reclaimed_and_not_before_the_others_are_used_up() {
    if skip_without_moves("zones") {
        return;
    }
    let zones = [("far", 32, Place::Remote), ("near", 32, Place::Local)];
    // A sample of the remote pages would be evictions.
    let manager = builder(&zones).tune(|tuning| tuning.tiering(false)).build().expect("manager");
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
    assert_eq!(Bytes::new(settled(&manager).zones_spilled_bytes), after[0].allocated);
    for offset in (0..128 << 20).step_by(PAGE) {
        let mut back = [0; PAGE];
        region.read_at(offset, &mut back).expect("read");
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
        let manager = builder(&zones).tune(|tuning| tuning.zone_policy(policy)).build().expect("manager");
        let mut region = manager.region(Bytes::mib(112)).create().expect("region");
        fill(&mut region, 0, 112 << 20);
        for offset in (0..112 << 20).step_by(PAGE).rev() {
            let mut back = [0; PAGE];
            region.read_at(offset, &mut back).expect("read");
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
    let here = Place::Node(pagoda_linux::mem::node::current());
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
    let missing = Place::Node(pagoda_linux::mem::node::NODES_MAX - 1);
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
        // The pages that come with another's fault depend on the time.
        let builder = builder.base_page(BasePage::K64).tune(|tuning| tuning.fault_around(false));
        let manager = builder.build().expect("manager");
        let mut region = manager.region(Bytes::mib(48)).create().expect("region");
        fill(&mut region, 0, 48 << 20);
        let stats = settled(&manager);
        assert!(manager.zones().is_empty() && stats.zone0_bytes == 0 && stats.zones_resets == 0);
        assert_eq!(stats.evictions, 0, "it fits: {stats:?}");
        seen.push((stats.budget_bytes, stats.free_low_bytes, stats.free_high_bytes));
        assert_eq!(stats.faults_zero, 768);
    }
    assert_eq!(seen[0], seen[1]);
}

/// Of a thread while zones change: so many that each size is come to several times.
fn touches() -> usize {
    length(7_000, 15_000)
}

/// A region's own reader and writer: every page is read as it was written last.
fn touch(region: &mut Region, values: &mut [u64], random: &mut Random, touches: usize) {
    for _ in 0..touches {
        let page = random.below(values.len());
        let mut back = [0; PAGE];
        region.read_at(page * PAGE, &mut back).expect("read");
        assert!(back == content(values[page]), "page {page}");
        if random.below(2) == 0 {
            values[page] = random.next();
            region.write_at(page * PAGE, &content(values[page])).expect("written");
        }
    }
}

#[test]
fn zones_become_smaller_and_larger_while_they_are_used_and_no_page_is_lost() {
    const THREADS: usize = 2;
    if skip_without_moves("zones of another size") {
        return;
    }
    for policy in [ZonePolicy::Fair, ZonePolicy::GlobalList] {
        let zones = [("fast", 24, Place::Local), ("slow", 40, Place::Local)];
        let manager = builder(&zones).tune(|tuning| tuning.zone_policy(policy)).build().expect("manager");
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mut region = manager.region(Bytes::mib(48)).create().expect("region");
                std::thread::spawn(move || {
                    let mut random = Random::new(11, thread as u64);
                    let mut values = vec![0; (48 << 20) / PAGE];
                    for (page, value) in values.iter_mut().enumerate() {
                        *value = (page * THREADS + thread) as u64;
                        region.write_at(page * PAGE, &content(*value)).expect("written");
                    }
                    touch(&mut region, &mut values, &mut random, touches());
                    (region, values, random)
                })
            })
            .collect();
        let sizes = [("fast", 8), ("slow", 64), ("fast", 48), ("slow", 8), ("fast", 24), ("slow", 40)];
        for (name, mib) in sizes.into_iter().cycle() {
            manager.resize_zone(name, Bytes::mib(mib)).expect("within its addresses");
            std::thread::sleep(std::time::Duration::from_millis(20));
            if workers.iter().all(std::thread::JoinHandle::is_finished) {
                break;
            }
        }
        let owners: Vec<_> = workers.into_iter().map(|worker| worker.join().expect("as written")).collect();
        for (name, mib) in [("fast", 40), ("slow", 60), ("fast", 8), ("slow", 16)] {
            manager.resize_zone(name, Bytes::mib(mib)).expect("within its addresses");
        }
        let begun = std::time::Instant::now();
        loop {
            let zones = check(&manager);
            assert_eq!(manager.stats().budget_bytes, 24 << 20);
            assert_eq!([zones[0].bytes, zones[1].bytes], [Bytes::mib(8), Bytes::mib(16)]);
            if zones.iter().all(|zone| zone.held <= zone.bytes) {
                break;
            }
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{policy}: {zones:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for (mut region, mut values, mut random) in owners {
            for (page, value) in values.iter().enumerate() {
                let mut back = [0; PAGE];
                region.read_at(page * PAGE, &mut back).expect("read");
                assert!(back == content(*value), "page {page}, {policy}");
            }
            touch(&mut region, &mut values, &mut random, 1000);
        }
        let zones = check(&manager);
        assert!(zones.iter().all(|zone| zone.evicted > Bytes::ZERO), "{zones:?}");
    }
}

#[test]
fn a_file_stays_right_while_zones_become_smaller_and_larger() {
    const FILE: usize = 48 << 20;
    if skip_without_moves("zones of another size") {
        return;
    }
    let file = tempfile::NamedTempFile::new_in(on_disk()).expect("room");
    std::fs::write(file.path(), (0..FILE / PAGE).flat_map(|page| content(page as u64)).collect::<Vec<u8>>())
        .expect("room");
    let zones = [("near", 24, Place::Local), ("far", 40, Place::Remote)];
    let manager = builder(&zones).build().expect("manager");
    let region = manager.map_file(file.path()).writable(true).map().expect("a disk");
    let done = AtomicBool::new(false);
    let mut values: Vec<u64> = (0..(FILE / PAGE) as u64).collect();
    std::thread::scope(|scope| {
        let ends = EndsWith(&done);
        scope.spawn(|| {
            let sizes = [("near", 8), ("far", 64), ("near", 48), ("far", 8), ("near", 24), ("far", 40)];
            for (name, mib) in sizes.into_iter().cycle().take_while(|_| !done.load(Ordering::Acquire)) {
                manager.resize_zone(name, Bytes::mib(mib)).expect("within its addresses");
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let mut random = Random::new(13, 0);
        for _ in 0..touches() {
            let page = random.below(values.len());
            let mut back = [0; PAGE];
            region.read_at(page * PAGE, &mut back).expect("a disk");
            assert!(back == content(values[page]), "page {page}");
            if random.below(2) == 0 {
                values[page] = random.next();
                region.write_at(page * PAGE, &content(values[page])).expect("memory");
            }
        }
        drop(ends);
    });
    for name in ["near", "far"] {
        manager.resize_zone(name, Bytes::mib(16)).expect("within its addresses");
    }
    until("each holds no more than it may", || {
        manager.zones().iter().all(|(_, zone)| zone.held <= zone.bytes)
    });
    region.close().expect("a disk");
    let found = std::fs::read(file.path()).expect("it is there");
    for (page, value) in values.iter().enumerate() {
        assert!(found[page * PAGE..][..PAGE] == content(*value), "page {page} of the file");
    }
}

#[test]
fn a_size_that_can_not_be_is_an_error_and_changes_nothing() {
    use pagoda::frames::zones::ResizeError;

    if skip_without_moves("zones of another size") {
        return;
    }
    let manager = builder(&[("a", 8, Place::Local), ("b", 12, Place::Local)]).build().expect("manager");
    let resize = |name: &str, mib| manager.resize_zone(name, Bytes::mib(mib)).expect_err("it can't be");
    assert!(matches!(resize("c", 8), ResizeError::Unknown { name, zones } if name == "c" && zones == "a, b"));
    assert!(matches!(resize("a", 3), ResizeError::TooSmall { least, .. } if least == Bytes::mib(4)));
    assert!(matches!(resize("a", 17), ResizeError::TooLarge { most, .. } if most == Bytes::mib(16)));
    manager.resize_zone("b", Bytes::mib(10)).expect("18 MiB in all");
    assert!(matches!(resize("a", 5), ResizeError::BudgetTooSmall { budget, .. } if budget == Bytes::mib(15)));
    assert_eq!(
        manager.zones().iter().map(|(_, zone)| zone.bytes).collect::<Vec<_>>(),
        [Bytes::mib(8), Bytes::mib(10)]
    );
    assert_eq!(manager.stats().budget_bytes, 18 << 20);
}

#[test]
fn a_budget_without_zones_can_have_another_size() {
    if skip_without_moves("a budget of another size") {
        return;
    }
    let manager = builder(&[]).budget(Bytes::mib(64)).build().expect("manager");
    let mut region = manager.region(Bytes::mib(48)).create().expect("region");
    fill(&mut region, 0, 48 << 20);
    assert_eq!(manager.stats().evictions, 0, "it fits");
    manager.resize_zone("all", Bytes::mib(24)).expect("enough to serve faults");
    let begun = std::time::Instant::now();
    while manager.stats().anon_bytes > 24 << 20 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", manager.stats());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    manager.resize_zone("all", Bytes::mib(96)).expect("within its addresses");
    for offset in (0..48 << 20).step_by(PAGE) {
        let mut back = [0; PAGE];
        region.read_at(offset, &mut back).expect("read");
        assert!(back == content(offset as u64), "page at {offset}");
    }
    assert!(manager.stats().anon_bytes > 40 << 20, "it may be in memory again");
}
