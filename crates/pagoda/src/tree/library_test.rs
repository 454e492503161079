use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::tree::View;

fn file() -> LibraryFile {
    LibraryFile::create(Bytes::mib(64), BasePage::K64).expect("made")
}

fn region(start: u64, migration: Option<MigrationView>) -> RegionView {
    let [len, resident, staged, stored] = [8, 4, 2, 1].map(Bytes::mib);
    let base = BaseView { size: Bytes::kib(16), by_density: true, grown: 3, shrunk: start };
    RegionView { start, len, resident, staged, stored, base, migration }
}

#[test]
fn a_look_tells_the_process_and_its_regions_and_nothing_is_left() {
    let file = file();
    let mode = std::fs::metadata(&file.path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its user alone");
    let sending = MigrationView {
        state: MigrationState::Sending,
        wire: Bytes::mib(1),
        rounds: 2,
        left: Bytes::mib(3),
        sent_per_s: Bytes::mib(4),
        written_per_s: Bytes::mib(5),
        downtime_us: 6,
        recoveries: 7,
        waited_us: 8,
        delayed_faults: 9,
        delayed_us: 10,
    };
    let shown = [region(4096, Some(sending)), region(8192, None)];
    file.show(Bytes::mib(32), Bytes::mib(7), 5, &shown);
    let counters = file.counters();
    counters.add(Counter::Faults, 3);
    let view = View::read(&file.path).expect("whole");
    let [member] = &view.members[..] else { panic!("the process alone: {:?}", view.members) };
    assert!(member.is_first && member.identity.pid() == std::process::id());
    assert_eq!(member.counters, counters.snapshot());
    assert_eq!((view.claimed, view.totals.budget_bytes, view.totals.faults), (Bytes::mib(7), 32 << 20, 3));
    assert_eq!(view.regions, Some(RegionsView { all: 5, shown: shown.to_vec() }));
    file.show(Bytes::mib(32), Bytes::mib(7), 1, &shown[1..]);
    let regions = View::read(&file.path).expect("whole").regions.expect("a library's");
    assert_eq!(regions, RegionsView { all: 1, shown: shown[1..].to_vec() }, "a closed region is not listed");
    let path = file.path.clone();
    drop((file, counters));
    assert!(!path.exists());
}

#[test]
fn no_more_regions_are_told_than_there_is_room_for() {
    let file = file();
    let many: Vec<_> = (1..40).map(|at| region(at * 4096, None)).collect();
    file.show(Bytes::mib(64), Bytes::ZERO, 39, &many);
    let regions = View::read(&file.path).expect("whole").regions.expect("a library's");
    assert_eq!((regions.all, &regions.shown[..]), (39, &many[..REGIONS_SHOWN_MOST]));
    file.words[REGIONS + SHOWN].store(u64::MAX, SeqCst);
    let error = View::read(&file.path).expect_err("a number that an index is made of is checked");
    assert!(error.to_string().contains("more regions"), "{error}");
}

#[test]
fn a_reader_does_not_wait_for_a_writer_that_stopped_within_a_write() {
    let file = file();
    file.show(Bytes::mib(64), Bytes::ZERO, 1, &[region(4096, None)]);
    file.words[REGIONS + TURN].fetch_add(1, SeqCst);
    assert_eq!(View::read(&file.path).expect("whole").regions.expect("a library's").shown.len(), 1);
}

#[test]
fn the_file_of_another_process_stays() {
    let mut file = file();
    file.pid += 1;
    let path = file.path.clone();
    drop(file);
    std::fs::remove_file(path).expect("it is there");
}
