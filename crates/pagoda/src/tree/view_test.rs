use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pagoda_core::page::BasePage;
use pagoda_core::time::latency;

use super::*;
use crate::stats::counters::Status;
use crate::stats::fault_kind::FaultKind;
use crate::tree::Tree;

struct Scratch {
    _directory: tempfile::TempDir,
    path: PathBuf,
    tree: Tree,
}

fn scratch() -> Scratch {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tree");
    let tree = Tree::create(&path, Bytes::gib(1), BasePage::K64).expect("created");
    Scratch { _directory: directory, path, tree }
}

impl Scratch {
    fn overwrite(&self, at: usize, word: u64) {
        let file = OpenOptions::new().write(true).open(&self.path).expect("opened");
        file.write_all_at(&word.to_ne_bytes(), (at * 8) as u64).expect("written");
    }
    fn refused(&self) -> String {
        View::read(&self.path).expect_err("refused").to_string()
    }
}

#[test]
fn a_look_tells_what_the_tree_itself_tells() {
    let scratch = scratch();
    let empty = View::read(&scratch.path).expect("whole");
    assert_eq!((empty.members.len(), empty.totals), (0, scratch.tree.totals()));
    let member = scratch.tree.join().expect("a place");
    member.hold_unlimited(7 << 20);
    let counters = member.counters();
    counters.set(Counter::Status, Status::Unmanaged as u64);
    counters.add(Counter::Faults, 3);
    for (kind, ns) in [(FaultKind::Zero, 1000), (FaultKind::Zero, 1000), (FaultKind::Spilled, 1_000_000)] {
        counters.took(kind, ns);
    }
    let view = View::read(&scratch.path).expect("whole");
    assert_eq!(view.totals, scratch.tree.totals());
    assert_eq!(view.totals.children_unmanaged, 1);
    assert_eq!(view.claimed, scratch.tree.claimed());
    let [own] = &view.members[..] else { panic!("one member: {:?}", view.members) };
    assert!(own.is_first && own.identity.pid() == std::process::id());
    assert_eq!(
        (own.counters, &own.latencies, &own.latencies),
        (counters.snapshot(), &counters.latencies(), &view.latencies)
    );
    assert_eq!(scratch.tree.latencies(), view.latencies);
    let median = latency::percentile(&own.latencies.of_all(), 500).expect("three faults");
    assert!((1000..=1125).contains(&median), "{median}");
    let spilled = latency::percentile(own.latencies.of(FaultKind::Spilled), 500);
    assert!(spilled >= Some(1_000_000), "{spilled:?}");
    assert_eq!(latency::percentile(own.latencies.of(FaultKind::Staged), 500), None);
}

#[test]
fn a_member_that_has_died_unswept_is_not_shown_and_its_counts_are() {
    let scratch = scratch();
    let mut child = std::process::Command::new("true").spawn().expect("true starts");
    child.wait().expect("it ends");
    let dead = Identity::new(child.id(), 1).expect("fits");
    let member = scratch.tree.join_as(dead).expect("a place");
    member.hold_unlimited(1 << 20);
    member.counters().add(Counter::Faults, 5);
    let view = View::read(&scratch.path).expect("whole");
    assert!(view.members.is_empty());
    assert_eq!((view.totals.anon_bytes, view.totals.faults, view.claimed), (0, 5, Bytes::ZERO));
}

#[test]
fn nonsense_is_refused_with_what_is_wrong() {
    for (at, word, says) in [
        (Header::Magic, 0, "no header yet"),
        (Header::Magic, 1, "another version"),
        (Header::Used, MEMBERS_MAX as u64 + 1, "more members"),
        (Header::Used, u64::MAX, "more members"),
        (Header::BasePageBytes, 0, "base page"),
        (Header::BasePageBytes, u64::MAX, "base page"),
    ] {
        let scratch = scratch();
        scratch.overwrite(at as usize, word);
        assert!(scratch.refused().contains(says), "{says}");
    }
    let scratch = scratch();
    OpenOptions::new().write(true).open(&scratch.path).expect("opened").set_len(4096).expect("cut");
    assert!(scratch.refused().contains("another length"));
    std::fs::remove_file(&scratch.path).expect("removed");
    assert!(scratch.refused().contains("can't be read"));
}

#[test]
fn a_file_full_of_ones_is_bounded_and_sums_nothing_past_the_end_of_a_word() {
    let scratch = scratch();
    scratch.overwrite(Header::Used as usize, MEMBERS_MAX as u64);
    scratch.overwrite(Header::TurnedAway as usize, u64::MAX);
    let file = OpenOptions::new().write(true).open(&scratch.path).expect("opened");
    file.write_all_at(&vec![0xff; (WORDS - HEADER_WORDS) * 8], (HEADER_WORDS * 8) as u64).expect("written");
    let view = View::read(&scratch.path).expect("whole, as far as can be told");
    assert!(view.members.is_empty(), "no identity is all ones");
    assert_eq!((view.totals.faults, view.totals.children_unmanaged), (u64::MAX, u64::MAX));
    let half = Some(latency::value_of(latency::BUCKETS / 2 - 1));
    assert_eq!(latency::percentile(&view.latencies.of_all(), 500), half);
}
