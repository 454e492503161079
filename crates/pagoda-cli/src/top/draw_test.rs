use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::super::rows::{BasePage, Migration, Pace, Rates, Region, Sender, Zone};
use super::*;
use crate::latency::{LatencyUs, Percentiles};

fn member(pid: u32, name: &str, mib: u64) -> Row {
    Row {
        pid,
        name: name.to_owned(),
        status: "managed",
        base_page_bytes: 64 << 10,
        share_bytes: mib << 20,
        anon_bytes: mib << 20,
        held_bytes: (4 * mib) << 20,
        unmanaged_bytes: 100 << 10,
        own_bytes: 1 << 20,
        resident_bytes: (mib << 20) / 2,
        staged_bytes: (mib << 20) / 16,
        stored_bytes: (3 * mib) << 20,
        store_memory_bytes: (mib << 20) / 4,
        spilled_bytes: (mib << 20) / 2,
        remote_bytes: 0,
        compression: Some(4.0),
        ready_bytes: 256 << 10,
        free_bytes: 3 << 20,
        free_min_bytes: 1 << 20,
        free_low_bytes: 2 << 20,
        free_high_bytes: 4 << 20,
        release_queued_bytes: 64 << 10,
        copied_on_write_bytes: 0,
        zones: Vec::new(),
        rates: None,
        region: None,
    }
}

fn groups() -> Vec<Group> {
    let of = |p50, p99| Some(Percentiles { p50, p99, p999: 12_400.0 });
    let latency_us = LatencyUs {
        all: of(21.5, 88.0),
        zero: of(4.5, 9.0),
        staged: of(11.0, 40.0),
        stored: of(21.5, 80.0),
        spilled: of(144.0, 9_216.0),
        ..LatencyUs::default()
    };
    let rates = Rates {
        faults_s: 1234.0,
        faults_zero_s: 34.0,
        faults_staged_s: 200.0,
        faults_stored_s: 1000.0,
        faults_spilled_s: 10.0,
        evictions_s: 900.0,
        stores_s: 800.0,
        latency_us,
        ..Rates::default()
    };
    let tree = |pid, name, mib| Row { status: "tree", rates: Some(rates), ..member(pid, name, mib) };
    vec![
        Group {
            tree: tree(4000, "sort", 64),
            claimed_bytes: 63 << 20,
            members: vec![Row { rates: Some(rates), ..member(4001, "sort", 60) }, member(4002, "sh", 2)],
            file: "/run/pagoda-4000-1-0".into(),
            ..Group::default()
        },
        Group {
            tree: tree(4100, "python3", 2048),
            claimed_bytes: 2 << 30,
            members: vec![member(4101, "python3", 2047)],
            file: "/run/pagoda-4100-1-0".into(),
            ..Group::default()
        },
    ]
}

fn screen(width: u16, height: u16, groups: &[Group], rejected: &[String], state: &State) -> Buffer {
    let picture = Picture { groups, rejected, interval: Duration::from_secs(1) };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, &picture, state)).expect("drawn");
    terminal.backend().buffer().clone()
}

/// The characters, without blanks at the ends of lines.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width.max(1));
    let lines = buffer.content.chunks(width).map(|cells| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

fn pressed(keys: &str) -> State {
    let (mut state, groups) = (State::default(), groups());
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            'v' => KeyCode::Down,
            key => KeyCode::Char(key),
        };
        state.key(KeyEvent::from(code), &state.arrange(&groups));
    }
    state
}

fn assert_shows(state: &State, width: u16, height: u16, picture: &str) {
    let text = text(&screen(width, height, &groups(), &[], state));
    assert!(text == picture, "it shows\n{text}");
}

#[test]
fn a_usual_terminal_shows_the_most_important_columns_and_the_selected_line_in_words() {
    assert_shows(&pressed(""), 80, 17, USUAL);
}

#[test]
fn a_wide_terminal_shows_all_columns() {
    assert_shows(&pressed("s"), 267, 17, WIDE);
}

#[test]
fn a_filter_an_order_and_a_frozen_picture_are_told() {
    assert_shows(&pressed("rf/sort\nvv"), 80, 17, FILTERED);
}

/// The second tree, its budget in two zones.
fn zoned() -> Vec<Group> {
    let zone = |mib: u64, free: u64| Zone {
        bytes: mib << 20,
        held_bytes: (mib - free) << 20,
        free_bytes: free << 20,
        low_bytes: 2 << 20,
        high_bytes: 4 << 20,
    };
    let mut groups = groups();
    let group = &mut groups[1];
    group.tree.zones = vec![zone(1536, 1), zone(512, 64)];
    group.members[0].zones.clone_from(&group.tree.zones);
    groups
}

#[test]
fn zones_are_shown_below_their_process_where_there_is_room() {
    let shown = text(&screen(80, 19, &zoned(), &[], &State::default()));
    assert!(shown == ZONED, "it shows\n{shown}");
    // On another line the table stands where it stood.
    let other = text(&screen(80, 19, &zoned(), &[], &pressed("vv")));
    assert!(other.contains("\n4000 sort: budget") && !other.contains("zone 0"), "{other}");
    let line_of = |text: &str, what: &str| text.lines().position(|line| line.contains(what));
    assert_eq!(line_of(&shown, "claimed"), line_of(&other, "claimed"));
    let without = text(&screen(80, 17, &zoned(), &[], &State::default()));
    assert!(without == USUAL, "it shows\n{without}");
}

#[test]
fn a_region_that_is_selected_is_told_with_its_migration() {
    let pace =
        Pace { sent_bytes_s: 500 << 20, written_bytes_s: 20 << 20, downtime_ms: 24.0, ..Pace::default() };
    let sender = Some(Sender { rounds: 3, left_bytes: 12 << 20, pace: Some(pace) });
    let migration =
        Some(Migration { state: "sending", wire_bytes: 90 << 20, sender, ..Migration::default() });
    let region = Region {
        start: 0x7f00_0000_0000,
        bytes: 64 << 20,
        resident_bytes: 4 << 20,
        staged_bytes: 0,
        stored_bytes: 2 << 20,
        base_page: BasePage { bytes: 16 << 10, by_density: true, grown: 3, shrunk: 1 },
        migration,
    };
    let row = Row {
        pid: 4100,
        name: format!("{:#x}", region.start),
        status: "sending",
        held_bytes: 6 << 20,
        stored_bytes: 2 << 20,
        region: Some(region),
        ..Row::default()
    };
    let mut groups = groups();
    (groups[1].regions_count, groups[1].regions) = (1, vec![row]);
    let mut state = State::default();
    for _ in 0..2 {
        state.key(KeyEvent::from(KeyCode::Down), &state.arrange(&groups));
    }
    let shown = text(&screen(80, 18, &groups, &[], &state));
    for line in [
        "   4100   0x7f0000000000          -         -      6MiB      2MiB        -",
        "4100: region 0x7f0000000000-0x7f0004000000 of 64 MiB",
        "resident 4 MiB, staged 0 B, stored 2 MiB",
        "base page up to 16 KiB by density (grown 3, shrunk 1)",
        "sending: 3 rounds done, 12 MiB left, 90 MiB on the wire",
        "sent 500 MiB/s, written 20 MiB/s; downtime expected 24.0 ms",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
    let tree = text(&screen(100, 18, &groups, &[], &State::default()));
    assert!(tree.contains("claimed 2 GiB, 1 regions, anonymous"), "{tree}");
}

#[test]
fn bytes_at_a_remote_store_are_shown_for_the_selected_line() {
    let mut groups = groups();
    groups[1].tree.remote_bytes = 3 << 30;
    let shown = text(&screen(80, 17, &groups, &[], &State::default()));
    let line = "stored 6 GiB: memory 512 MiB, file 1 GiB, remote 3 GiB, 4.0:1; to release 64 KiB";
    assert!(shown.lines().any(|shown| shown == line), "{shown}");
    let wide = text(&screen(267, 17, &groups, &[], &State::default()));
    let row = wide.lines().find(|line| line.contains("4100 python3")).expect("its line");
    assert!(row.contains("    512MiB      1GiB      3GiB   4.0 "), "{row}");
}

#[test]
fn any_size_is_drawn() {
    for (width, height) in [(1, 1), (2, 40), (200, 1), (7, 3), (400, 100)] {
        let buffer = screen(width, height, &groups(), &["a reason".to_owned()], &pressed("vvv"));
        assert_eq!((buffer.area.width, buffer.area.height), (width, height));
    }
}

#[test]
fn an_empty_table_and_a_refused_file_are_said() {
    let rejected = ["/dev/shm/pagoda-1-2-0: it is not a tree file".to_owned()];
    let empty = text(&screen(80, 5, &[], &rejected, &State::default()));
    assert!(empty.contains("no program runs under `pagoda run` of this user"), "{empty}");
    assert!(empty.contains("it is not a tree file  q quit"), "{empty}");
    let filtered = text(&screen(80, 5, &groups(), &[], &pressed("/nobody")));
    assert!(filtered.contains("none of 2 trees") && filtered.contains("type a part of a name"), "{filtered}");
}

#[test]
fn the_selected_line_is_in_sight_of_a_long_table() {
    let mut groups = groups();
    groups[1].members = (0..50).map(|at| member(5000 + at, "many", 1)).collect();
    let mut state = State::default();
    state.key(KeyEvent::from(KeyCode::End), &state.arrange(&groups));
    let shown = text(&screen(80, 16, &groups, &[], &state));
    let last = state.arrange(&groups).last().expect("lines").row.pid.to_string();
    assert!(shown.contains(&last), "{last}\n{shown}");
}

const USUAL: &str = "\
pagoda top  2 trees, 3 processes  every 1 s  by ANON down
    PID NAME                  SHARE      ANON      HELD    STORED FAULTS/s
   4100 python3                2GiB      2GiB      8GiB      6GiB     1234
   4101   python3            2.0GiB    2.0GiB    8.0GiB    6.0GiB        -
   4000 sort                  64MiB     64MiB    256MiB    192MiB     1234
   4001   sort                60MiB     60MiB    240MiB    180MiB     1234
   4002   sh                   2MiB      2MiB      8MiB      6MiB        -

4100 python3: budget 2 GiB, claimed 2 GiB, anonymous 2 GiB, without Pagoda 8 GiB
resident 1 GiB, staged 128 MiB, unmanaged 100 KiB, own 1 MiB, base page 64 KiB
stored 6 GiB in 512 MiB of memory and 1 GiB of file, 4.0:1; to release 64 KiB
free 3 MiB, ready frames 256 KiB; min 1 MiB, low 2 MiB, high 4 MiB: below high
faults/s 1234: zero 34, staged 200, stored 1000, there already 0; waited 0
served in us: p50 21.5, p99 88.0, p99.9 12400.0
p50/p99: zero 4.5/9.0, staged 11.0/40.0, stored 21.5/80.0, spilled 144.0/9216.0
evictions/s 900, clean 0; to the store 800, from its file 10; fetched ahead 0
q quit  s/S order  r reverse  / filter  f freeze  arrows select
";
const ZONED: &str = "\
pagoda top  2 trees, 3 processes  every 1 s  by ANON down
    PID NAME                  SHARE      ANON      HELD    STORED FAULTS/s
   4100 python3                2GiB      2GiB      8GiB      6GiB     1234
   4101   python3            2.0GiB    2.0GiB    8.0GiB    6.0GiB        -
   4000 sort                  64MiB     64MiB    256MiB    192MiB     1234
   4001   sort                60MiB     60MiB    240MiB    180MiB     1234
   4002   sh                   2MiB      2MiB      8MiB      6MiB        -

4100 python3: budget 2 GiB, claimed 2 GiB, anonymous 2 GiB, without Pagoda 8 GiB
resident 1 GiB, staged 128 MiB, unmanaged 100 KiB, own 1 MiB, base page 64 KiB
stored 6 GiB in 512 MiB of memory and 1 GiB of file, 4.0:1; to release 64 KiB
free 3 MiB, ready frames 256 KiB; min 1 MiB, low 2 MiB, high 4 MiB: below high
faults/s 1234: zero 34, staged 200, stored 1000, there already 0; waited 0
served in us: p50 21.5, p99 88.0, p99.9 12400.0
p50/p99: zero 4.5/9.0, staged 11.0/40.0, stored 21.5/80.0, spilled 144.0/9216.0
evictions/s 900, clean 0; to the store 800, from its file 10; fetched ahead 0
zone 0 of 1.5 GiB: held 1.5 GiB, free 1 MiB; low 2 MiB, high 4 MiB: below low
zone 1 of 512 MiB: held 448 MiB, free 64 MiB; low 2 MiB, high 4 MiB: above high
q quit  s/S order  r reverse  / filter  f freeze  arrows select
";
const WIDE: &str = "\
pagoda top  2 trees, 3 processes  every 1 s  by HELD down
    PID NAME              STATUS        SHARE      ANON      HELD  RESIDENT    STAGED    STORED    MEMORY      FILE    REMOTE RATIO FAULTS/s  ZERO/s STAGED/s STORED/s WAITED/s  p50 us  p99 us p99.9 us      ZERO us    STAGED us    STORED us   SPILLED us
   4100 python3           tree           2GiB      2GiB      8GiB      1GiB    128MiB      6GiB    512MiB      1GiB        0B   4.0     1234      34      200     1000        0    21.5    88.0    12400      4.5/9.0    11.0/40.0    21.5/80.0     144/9216
   4101   python3         managed      2.0GiB    2.0GiB    8.0GiB 1023.5MiB  127.9MiB    6.0GiB  511.8MiB 1023.5MiB        0B   4.0        -       -        -        -        -       -       -        -            -            -            -            -
   4000 sort              tree          64MiB     64MiB    256MiB     32MiB      4MiB    192MiB     16MiB     32MiB        0B   4.0     1234      34      200     1000        0    21.5    88.0    12400      4.5/9.0    11.0/40.0    21.5/80.0     144/9216
   4001   sort            managed       60MiB     60MiB    240MiB     30MiB    3.8MiB    180MiB     15MiB     30MiB        0B   4.0     1234      34      200     1000        0    21.5    88.0    12400      4.5/9.0    11.0/40.0    21.5/80.0     144/9216
   4002   sh              managed        2MiB      2MiB      8MiB      1MiB    128KiB      6MiB    512KiB      1MiB        0B   4.0        -       -        -        -        -       -       -        -            -            -            -            -

4100 python3: budget 2 GiB, claimed 2 GiB, anonymous 2 GiB, without Pagoda 8 GiB
resident 1 GiB, staged 128 MiB, unmanaged 100 KiB, own 1 MiB, base page 64 KiB
stored 6 GiB in 512 MiB of memory and 1 GiB of file, 4.0:1; to release 64 KiB
free 3 MiB, ready frames 256 KiB; min 1 MiB, low 2 MiB, high 4 MiB: below high
faults/s 1234: zero 34, staged 200, stored 1000, there already 0; waited 0
served in us: p50 21.5, p99 88.0, p99.9 12400.0
p50/p99: zero 4.5/9.0, staged 11.0/40.0, stored 21.5/80.0, spilled 144.0/9216.0
evictions/s 900, clean 0; to the store 800, from its file 10; fetched ahead 0
q quit  s/S order  r reverse  / filter  f freeze  arrows select
";
const FILTERED: &str = "\
pagoda top  2 trees, 3 processes  every 1 s  by ANON up  filter: sort  FROZEN
    PID NAME                  SHARE      ANON      HELD    STORED FAULTS/s
   4000 sort                  64MiB     64MiB    256MiB    192MiB     1234
   4002   sh                   2MiB      2MiB      8MiB      6MiB        -
   4001   sort                60MiB     60MiB    240MiB    180MiB     1234



4001 sort: share 60 MiB, anonymous 60 MiB, without Pagoda 240 MiB
resident 30 MiB, staged 3.8 MiB, unmanaged 100 KiB, own 1 MiB, base page 64 KiB
stored 180 MiB in 15 MiB of memory and 30 MiB of file, 4.0:1; to release 64 KiB
free 3 MiB, ready frames 256 KiB; min 1 MiB, low 2 MiB, high 4 MiB: below high
faults/s 1234: zero 34, staged 200, stored 1000, there already 0; waited 0
served in us: p50 21.5, p99 88.0, p99.9 12400.0
p50/p99: zero 4.5/9.0, staged 11.0/40.0, stored 21.5/80.0, spilled 144.0/9216.0
evictions/s 900, clean 0; to the store 800, from its file 10; fetched ahead 0
q quit  s/S order  r reverse  / filter  f freeze  arrows select
";
