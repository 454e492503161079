use super::super::rows::{BasePage, Migration, Pace, Region, Sender, Zone};
use super::*;

const MIB: u64 = 1 << 20;

fn row(pid: u32, status: &'static str) -> Row {
    Row {
        pid,
        name: "vmm".to_owned(),
        status,
        free_bytes: 3 * MIB,
        ready_bytes: MIB,
        free_min_bytes: MIB,
        free_low_bytes: 2 * MIB,
        free_high_bytes: 4 * MIB,
        release_queued_bytes: 5 * MIB,
        ..Row::default()
    }
}

fn region(start: u64, migration: Option<Migration>) -> Row {
    let region = Region {
        start,
        bytes: 64 * MIB,
        resident_bytes: 3 * MIB,
        staged_bytes: MIB,
        stored_bytes: 2 * MIB,
        base_page: BasePage { bytes: 16 << 10, by_density: migration.is_none(), grown: 3, shrunk: 1 },
        migration,
    };
    Row {
        pid: 7,
        name: format!("{start:#x}"),
        status: "region",
        held_bytes: 6 * MIB,
        resident_bytes: region.resident_bytes,
        staged_bytes: region.staged_bytes,
        stored_bytes: region.stored_bytes,
        region: Some(region),
        ..Row::default()
    }
}

#[test]
fn fields_without_a_column_are_shown_below_the_table() {
    let zone = Zone {
        bytes: 40 * MIB,
        held_bytes: 9 * MIB,
        free_bytes: MIB,
        low_bytes: 2 * MIB,
        high_bytes: 3 * MIB,
    };
    let group = Group {
        tree: Row { zones: vec![zone], ..row(6, "tree") },
        members: vec![Row { free_high_bytes: 0, ..row(7, "small") }],
        ..Group::default()
    };
    let text = table(&[group]);
    let (_, words) = text.split_once("\n\n").expect("words below the table");
    assert_eq!(
        words,
        "6 vmm (tree): free 3 MiB, ready frames 1 MiB; min 1 MiB, low 2 MiB, high 4 MiB: below high; to release 5 MiB\n\
         6 vmm (tree): zone 0 of 40 MiB: held 9 MiB, free 1 MiB; low 2 MiB, high 3 MiB: below low\n"
    );
    assert!(!table(&[]).contains("\n\n"), "nothing to tell");
}

#[test]
fn regions_have_lines_of_their_own_and_their_migrations_are_told() {
    let (delayed_faults, delayed_ms) = (31, 62.5);
    let pace = Pace {
        sent_bytes_s: 500 * MIB,
        written_bytes_s: 20 * MIB,
        downtime_ms: 24.0,
        delayed_faults,
        delayed_ms,
    };
    let sender = Sender { rounds: 3, left_bytes: 12 * MIB, pace: Some(pace) };
    let sending =
        Migration { state: "sending", wire_bytes: 90 * MIB, sender: Some(sender), ..Migration::default() };
    let first = Sender { rounds: 0, left_bytes: 40 * MIB, pace: None };
    let begun = Migration { state: "sending", wire_bytes: MIB, sender: Some(first), ..Migration::default() };
    let (recoveries, waited_ms) = (2, 40.0);
    let arriving = Migration { state: "arriving", wire_bytes: MIB, recoveries, waited_ms, sender: None };
    let group = Group {
        tree: row(7, "library"),
        regions_count: 20,
        regions: [None, Some(sending), Some(begun), Some(arriving)]
            .into_iter()
            .zip([0x10_0000, 0x20_0000, 0x30_0000, 0x40_0000])
            .map(|(migration, start)| region(start, migration))
            .collect(),
        ..Group::default()
    };
    let text = table(&[group]);
    let (table, words) = text.split_once("\n\n").expect("words below the table");
    let fields: Vec<_> = table.lines().nth(2).expect("a region").split_whitespace().collect();
    assert_eq!(fields[..9], ["7", "0x100000", "region", "-", "-", "6MiB", "3MiB", "1MiB", "2MiB"], "{table}");
    let words: Vec<&str> = words.lines().skip(1).collect();
    let held = "of 64 MiB: resident 3 MiB, staged 1 MiB, stored 2 MiB, base page";
    assert_eq!(
        words,
        [
            "7 vmm (library): 20 regions, the 4 largest shown".to_owned(),
            format!("7 region 0x100000-0x4100000 {held} up to 16 KiB by density (grown 3, shrunk 1)"),
            format!("7 region 0x200000-0x4200000 {held} 16 KiB"),
            "7 region 0x200000-0x4200000 of 64 MiB: sending: 3 rounds done, 12 MiB left, 90 MiB on the wire".to_owned(),
            "7 region 0x200000-0x4200000 of 64 MiB: sent 500 MiB/s, written 20 MiB/s; downtime expected 24.0 ms; writers slowed down by 31 faults, 62.5 ms in all".to_owned(),
            format!("7 region 0x300000-0x4300000 {held} 16 KiB"),
            "7 region 0x300000-0x4300000 of 64 MiB: sending: 0 rounds done, 40 MiB left, 1 MiB on the wire".to_owned(),
            "7 region 0x300000-0x4300000 of 64 MiB: pace not known before the first round is done".to_owned(),
            format!("7 region 0x400000-0x4400000 {held} 16 KiB"),
            "7 region 0x400000-0x4400000 of 64 MiB: arriving: 1 MiB on the wire, connected again 2 times after 40.0 ms without a connection".to_owned(),
        ]
    );
}
