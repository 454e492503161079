use std::time::Instant;

use pagoda::stats::fault_kind::FaultKind;
use pagoda::tree::{MemberView, RegionsView, View};
use pagoda_core::size::Bytes;
use pagoda_linux::process::identity::Identity;

use super::*;
use crate::latency::Percentiles;

/// Of faults on zeroes, and a last one on a page in the file.
fn latencies(ns: &[u64]) -> Latencies {
    let kind = |at| if at == 3 { FaultKind::Spilled } else { FaultKind::Zero };
    let faults: Vec<_> = ns.iter().enumerate().map(|(at, ns)| (kind(at), *ns)).collect();
    Latencies::of_faults(&faults)
}

fn member(pid: u32, counters: Stats, ns: &[u64]) -> MemberView {
    let identity = Identity::new(pid, 1).expect("fits");
    MemberView { identity, is_first: pid == 100, counters, latencies: latencies(ns) }
}

fn look(at: Instant, faults: u64, ns: &[u64], pids: &[u32]) -> Look {
    let counters = crate::stats_with(busy(), |stats| {
        stats.faults = faults;
        stats.faults_stored = faults / 2;
        stats.status = Status::Managed as u64;
    });
    let members = pids.iter().map(|pid| member(*pid, counters, ns)).collect::<Vec<_>>();
    let names = pids.iter().map(|pid| format!("name{pid}")).collect();
    let view =
        View { totals: counters, latencies: latencies(ns), claimed: Bytes::mib(60), members, regions: None };
    Look {
        at,
        trees: vec![Tree { path: "/run/pagoda-99-1-0".into(), maker: 99, view, names }],
        rejected: Vec::new(),
    }
}

fn busy() -> Stats {
    crate::stats_with(Stats::default(), |stats| {
        stats.budget_bytes = 64 << 20;
        stats.share_bytes = 32 << 20;
        stats.stored_bytes = 600 << 20;
        stats.store_memory_bytes = 100 << 20;
        stats.spilled_bytes = 100 << 20;
    })
}

#[test]
fn a_member_that_waits_for_what_it_had_is_told_what_the_budget_lacks() {
    let begun = Instant::now();
    let at = |ms: u64, waited_ms: u64| {
        let counters = crate::stats_with(busy(), |stats| {
            stats.status = Status::Managed as u64;
            stats.held_bytes = 300 << 20;
            stats.refault_wait_ns = waited_ms * 1_000_000;
            stats.refault_distance_bytes = 40 << 20;
        });
        let mut look = look(begun + Duration::from_millis(ms), 0, &[], &[100]);
        look.trees[0].view.members = vec![member(100, counters, &[])];
        look
    };
    let rates = |waited_ms: u64| {
        let groups = groups(Some(&at(0, 1000)), &at(1000, 1000 + waited_ms));
        groups[0].members[0].rates.expect("known before")
    };
    assert_eq!((rates(50).refault_wait, rates(50).lacks_bytes), (0.05, None));
    assert_eq!((rates(600).refault_wait, rates(600).lacks_bytes), (0.6, Some(40 << 20)));
}

#[test]
fn rates_are_the_increase_between_two_looks() {
    let begun = Instant::now();
    let before = look(begun, 1000, &[7], &[100]);
    let now = look(begun + Duration::from_secs(2), 1400, &[7, 40_000, 40_000, 1_000_000], &[100, 101]);
    let groups = groups(Some(&before), &now);
    let [group] = &groups[..] else { panic!("one tree: {groups:?}") };
    let rates = group.tree.rates.expect("known before");
    assert_eq!((rates.faults_s, rates.faults_stored_s, rates.evictions_s), (200.0, 100.0, 0.0));
    let us = rates.latency_us;
    let (all, zero, spilled) =
        (us.all.expect("three faults"), us.zero.expect("two of them"), us.spilled.expect("one"));
    assert!(
        (40.0..45.0).contains(&all.p50) && all.p999 >= 1000.0,
        "the fault before is not among them: {us:?}"
    );
    assert!((40.0..45.0).contains(&zero.p999) && spilled.p50 >= 1000.0 && us.stored.is_none(), "{us:?}");
    assert_eq!(group.members[0].rates, Some(rates));
    assert_eq!(group.members[1].rates, None, "not there before: its place counted for others");
    assert_eq!((group.tree.pid, group.tree.name.as_str(), group.tree.share_bytes), (99, "name100", 64 << 20));
    assert_eq!((group.claimed_bytes, group.members[0].share_bytes), (60 << 20, 32 << 20));
    assert_eq!(group.tree.compression, Some(3.0));
}

#[test]
fn bytes_at_a_remote_store_are_shown_and_count_in_the_ratio() {
    let row = Row::of(
        1,
        "",
        "",
        &crate::stats_with(busy(), |stats| {
            stats.remote_bytes = 100 << 20;
        }),
    );
    assert_eq!((row.remote_bytes, row.compression), (100 << 20, Some(2.0)));
}

#[test]
fn without_an_earlier_look_or_faults_there_is_no_rate_and_nothing_stored_has_no_ratio() {
    let now = look(Instant::now(), 5, &[], &[100]);
    assert_eq!(groups(None, &now)[0].tree.rates, None);
    assert_eq!(groups(Some(&now), &now)[0].tree.rates, None, "no time has passed");
    let later = Look { at: now.at + Duration::from_secs(1), ..now.clone() };
    let rates = groups(Some(&now), &later)[0].tree.rates.expect("a second");
    assert_eq!((rates.faults_s, rates.latency_us), (0.0, LatencyUs::default()));
    assert_eq!(
        Row::of(
            1,
            "",
            "",
            &crate::stats_with(Stats::default(), |stats| {
                stats.store_memory_bytes = 5;
            })
        )
        .compression,
        None
    );
}

#[test]
fn zones_are_those_that_have_a_size_and_a_trees_are_as_large_as_each_members() {
    let mib = |count: u64| count << 20;
    let zoned = |held: u64| {
        crate::stats_with(busy(), |stats| {
            stats.zone0_bytes = mib(40);
            stats.zone0_held_bytes = mib(held);
            stats.zone0_free_bytes = mib(3);
            stats.zone0_low_bytes = mib(1);
            stats.zone0_high_bytes = mib(2);
            stats.zone1_bytes = mib(24);
        })
    };
    let mut now = look(Instant::now(), 0, &[], &[100, 101, 102]);
    let view = &mut now.trees[0].view;
    (view.members[0].counters, view.members[1].counters) = (zoned(10), zoned(20));
    // As the tree's file sums them up.
    view.totals = crate::stats_with(busy(), |stats| {
        stats.zone0_bytes = mib(80);
        stats.zone0_held_bytes = mib(30);
        stats.zone0_free_bytes = mib(6);
        stats.zone1_bytes = mib(48);
    });
    let group = &groups(None, &now)[0];
    let first = Zone {
        bytes: mib(40),
        held_bytes: mib(10),
        free_bytes: mib(3),
        low_bytes: mib(1),
        high_bytes: mib(2),
    };
    assert_eq!(group.members[0].zones, [first, Zone { bytes: mib(24), ..Zone::default() }]);
    assert_eq!(group.members[2].zones, [], "it has no engine, or the budget is not divided");
    let whole = Zone { bytes: mib(40), held_bytes: mib(30), free_bytes: mib(6), ..Zone::default() };
    assert_eq!(group.tree.zones, [whole, Zone { bytes: mib(24), ..Zone::default() }]);
}

#[test]
fn regions_of_a_library_are_shown_with_each_sides_view_of_a_migration() {
    let moving = |state, rounds| MigrationView {
        state,
        wire: Bytes::mib(9),
        rounds,
        left: Bytes::mib(3),
        sent_per_s: Bytes::mib(4),
        written_per_s: Bytes::mib(5),
        downtime_us: 2500,
        recoveries: 1,
        waited_us: 1500,
        delayed_faults: 7,
        delayed_us: 2500,
    };
    let region = |start, migration| RegionView {
        start,
        len: Bytes::mib(16),
        resident: Bytes::mib(4),
        staged: Bytes::mib(1),
        stored: Bytes::mib(2),
        base: BaseView { size: Bytes::kib(16), by_density: true, grown: 3, shrunk: 1 },
        migration,
    };
    let shown = vec![
        region(0x1000, Some(moving(MigrationState::Sending, 2))),
        region(0x2000, Some(moving(MigrationState::Sending, 0))),
        region(0x3000, Some(moving(MigrationState::Receiving, 0))),
        region(0x4000, None),
    ];
    let mut now = look(Instant::now(), 0, &[], &[100]);
    now.trees[0].view.regions = Some(RegionsView { all: 9, shown });
    let group = &groups(None, &now)[0];
    assert_eq!((group.tree.status, group.regions_count, group.regions.len()), ("library", 9, 4));
    let row = &group.regions[0];
    assert_eq!((row.pid, row.name.as_str(), row.status, row.held_bytes), (99, "0x1000", "sending", 7 << 20));
    let base = BasePage { bytes: 16 << 10, by_density: true, grown: 3, shrunk: 1 };
    assert_eq!(row.region.expect("a region").base_page, base);
    let migrations = group.regions.iter().map(|row| row.region.expect("a region").migration);
    let migrations: Vec<_> = migrations.collect();
    let pace = Pace {
        sent_bytes_s: 4 << 20,
        written_bytes_s: 5 << 20,
        downtime_ms: 2.5,
        delayed_faults: 7,
        delayed_ms: 2.5,
    };
    let sender = Sender { rounds: 2, left_bytes: 3 << 20, pace: Some(pace) };
    let (recoveries, waited_ms, sender) = (1, 1.5, Some(sender));
    let sending = Migration { state: "sending", wire_bytes: 9 << 20, recoveries, waited_ms, sender };
    assert_eq!(migrations[0], Some(sending));
    assert_eq!(migrations[1].and_then(|it| it.sender).expect("a sender").pace, None, "no round is done");
    assert_eq!((migrations[2].expect("receives").sender, migrations[3]), (None, None));
    assert_eq!(groups(None, &look(Instant::now(), 0, &[], &[100]))[0].tree.status, "tree");
}

#[test]
fn a_tree_of_the_same_maker_and_another_program_is_another_tree() {
    let begun = Instant::now();
    let before = look(begun, 1000, &[], &[100]);
    let mut now = look(begun + Duration::from_secs(1), 1400, &[], &[101]);
    now.trees[0].path = "/run/pagoda-99-2-0".into();
    let groups = groups(Some(&before), &now);
    assert_eq!(groups[0].tree.rates, None);
    assert_eq!(groups[0].tree.name, "(its program has ended)");
}

#[test]
fn every_key_of_the_json_is_in_the_documentation() {
    let page = include_str!("../../../../docs/top.md");
    let latency_us = LatencyUs { all: Some(Percentiles::default()), ..LatencyUs::default() };
    let rates = Some(Rates { latency_us, ..Rates::default() });
    let zones = vec![Zone::default()];
    let tree = Row { rates, zones, ..Row::default() };
    let sender = Some(Sender { pace: Some(Pace::default()), ..Sender::default() });
    let migration = Some(Migration { sender, ..Migration::default() });
    let region = Row { region: Some(Region { migration, ..Region::default() }), ..Row::default() };
    let group = Group { tree, regions: vec![region], ..Group::default() };
    let json = serde_json::to_value(&group).expect("JSON");
    let keys = |path: &str| {
        let object = json.pointer(path).and_then(serde_json::Value::as_object).expect("an object");
        object.keys().cloned().collect::<Vec<_>>()
    };
    let of_rates = ["/rates", "/rates/latency_us", "/rates/latency_us/all"].map(keys).concat();
    let of_regions = ["", "/base_page", "/migration", "/migration/sender", "/migration/sender/pace"]
        .map(|of| keys(&format!("/regions/0{of}")));
    for key in [keys(""), keys("/zones/0"), of_rates, of_regions.concat()].concat() {
        assert!(page.contains(&format!("`{key}`")), "{key}");
    }
}
