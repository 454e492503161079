use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::AtomicU32;

use pagoda_core::budget::shares;

use super::member::LOOKS_BETWEEN_SWEEPS;
use super::*;

const FILE: &str = "PAGODA_TEST_TREE";

struct Scratch {
    directory: tempfile::TempDir,
    tree: Tree,
}

fn scratch(budget: Bytes) -> Scratch {
    let directory = tempfile::tempdir().expect("a directory");
    let tree = Tree::create(&directory.path().join("tree"), budget, BasePage::K64).expect("created");
    Scratch { directory, tree }
}

/// A process that has ended, as often as one likes: no two of them are the same.
fn dead() -> Identity {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    static PID: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let pid = PID.get_or_init(|| {
        let mut child = Command::new("true").spawn().expect("true starts");
        child.wait().expect("it ends");
        child.id()
    });
    Identity::new(*pid, u64::from(NEXT.fetch_add(1, SeqCst))).expect("fits")
}

/// A process that lives until it is dropped.
struct Alive(Child, Option<ChildStdin>, Identity);

impl Alive {
    fn new() -> Self {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
        let start = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).expect("fields");
        let identity = Identity::new(child.id(), start.parse().expect("a number")).expect("fits");
        let input = child.stdin.take();
        Self(child, input, identity)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        drop(self.1.take());
        self.0.wait().expect("it ends");
    }
}

#[test]
fn a_member_keeps_its_place_over_exec_and_starts_with_fresh_gauges() {
    let scratch = scratch(Bytes::gib(1));
    let member = scratch.tree.join().expect("a place");
    let counters = member.counters();
    counters.add(Counter::Faults, 5);
    counters.set(Counter::Status, Status::Managed as u64);
    member.hold_unlimited(77);
    assert!(member.is_first());
    assert_eq!(scratch.tree.totals().anon_bytes, 77);
    let again = scratch.tree.join().expect("the same place");
    assert_eq!(again.index, member.index);
    let totals = scratch.tree.totals();
    assert_eq!((totals.processes, totals.execs, totals.faults), (1, 1, 5));
    assert_eq!((totals.anon_bytes, totals.anon_peak_bytes, totals.status), (0, 77, 0));
    assert_eq!(totals.owner_pid, u64::from(std::process::id()));
    again.leave();
    assert_eq!(scratch.tree.members().count(), 0);
    assert_eq!(scratch.tree.totals().faults, 5);
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let scratch = scratch(Bytes::gib(1));
    let path = scratch.directory.path().join("tree");
    assert!(Tree::create(&path, Bytes::gib(1), BasePage::K64).is_err());
    assert_eq!(Tree::open(&path).expect("opened").budget(), Bytes::gib(1));
    std::fs::write(scratch.directory.path().join("other"), vec![1; WORDS * 8]).expect("written");
    assert!(Tree::open(&scratch.directory.path().join("other")).is_err());
}

#[test]
fn places_of_the_dead_are_taken_over_and_their_counts_stay() {
    let Scratch { tree, .. } = scratch(Bytes::gib(1));
    let first = dead();
    for identity in std::iter::once(first).chain((1..MEMBERS_MAX).map(|_| dead())) {
        let member = tree.join_as(identity).expect("a place");
        member.counters().add(Counter::Faults, 2);
        member.hold_unlimited(1 << 20);
    }
    assert_eq!(tree.totals().anon_bytes, (MEMBERS_MAX as u64) << 20);
    let failed = tree.members().nth(1).expect("many").0;
    let at = (0..MEMBERS_MAX).find(|&index| tree.ready(index) == Some(failed)).expect("it has a place");
    tree.counters(at).set(Counter::ErrorErrno, 28);
    tree.counters(at).set(Counter::ErrorCode, 103);
    tree.counters(at).set(Counter::Status, Status::Failed as u64);
    tree.counters(at + 1).set(Counter::Status, Status::Unmanaged as u64);
    assert_eq!(tree.totals().children_unmanaged, 1);
    // All places are taken: the next one sweeps.
    let alive = Alive::new();
    let member = tree.join_as(alive.2).expect("a dead one's place");
    assert_eq!((member.counters().get(Counter::AnonBytes), tree.members().count()), (0, 2));
    let totals = tree.totals();
    assert_eq!((totals.faults, totals.processes), (2 * MEMBERS_MAX as u64, MEMBERS_MAX as u64 + 1));
    assert_eq!((totals.children_unmanaged, tree.failure()), (1, Some((103, 28))));
    assert_eq!(
        tree.first().map(|first| first.anon_bytes),
        Some(1 << 20),
        "how the first ended is still told"
    );
    tree.sweep();
    assert_eq!(tree.members().count(), 2);
}

#[test]
fn a_process_that_finds_no_place_is_counted() {
    let Scratch { tree, .. } = scratch(Bytes::gib(1));
    let alive = Alive::new();
    for index in 0..MEMBERS_MAX {
        tree.identity(index).store(alive.2.word(), SeqCst);
    }
    assert!(tree.join().is_none());
    assert_eq!(tree.totals().children_unmanaged, 1);
    tree.header(Header::Namespaces).store(1, SeqCst);
    tree.identity(0).store(0, SeqCst);
    assert!(tree.join().is_none(), "there is a place, but not for a process of another namespace");
    assert_eq!(tree.totals().children_unmanaged, 2);
}

#[test]
fn shares_follow_use_and_never_pass_the_budget() {
    let Scratch { tree, .. } = scratch(Bytes::mib(512));
    let (one, two) = (Alive::new(), Alive::new());
    let mib = Bytes::mib;
    let (mut a, share) = tree.join_as(one.2).expect("a place").manage(mib(16));
    assert_eq!(share, mib(512), "alone it has all");
    let (mut b, share) = tree.join_as(two.2).expect("a place").manage(mib(16));
    assert_eq!(share, shares::FLOOR, "its floor at once, for no member has yielded yet");
    let mut now = 0;
    let look = |a: &mut ShareKeeper, b: &mut ShareKeeper, now: &mut u64, a_held: u64, b_held: u64| {
        for _ in 0..200 {
            *now += 5_000_000;
            let (a, b) = (
                a.look(*now, a.share().min(mib(a_held)), mib(a_held), Bytes::ZERO),
                b.look(*now, b.share().min(mib(b_held)), mib(b_held), Bytes::ZERO),
            );
            assert!(a.saturating_add(b) <= mib(512 + 16));
        }
        (a.share(), b.share())
    };
    let (a_share, b_share) = look(&mut a, &mut b, &mut now, 100, 100);
    assert!(
        a_share.saturating_add(b_share) <= mib(512) && a_share.get().abs_diff(b_share.get()) < 8 << 20,
        "{a_share} {b_share}"
    );
    let (a_share, b_share) = look(&mut a, &mut b, &mut now, 2000, 100);
    assert!(
        a_share.saturating_add(b_share) <= mib(512) && a_share > mib(380) && b_share > mib(90),
        "{a_share} {b_share}"
    );
    let (a_share, b_share) = look(&mut a, &mut b, &mut now, 50, 2000);
    assert!(
        a_share.saturating_add(b_share) <= mib(512) && b_share > mib(380) && a_share > mib(50),
        "{a_share} {b_share}"
    );
    // A member that is gone takes no room.
    drop(one);
    for _ in 0..2 * LOOKS_BETWEEN_SWEEPS {
        now += 5_000_000;
        b.look(now, b.share().min(mib(2000)), mib(2000), Bytes::ZERO);
    }
    assert_eq!(b.share(), mib(512));
}

/// Not a test by itself: the program of the next test's processes. It joins, counts 100 and ends as
/// it is told.
#[test]
fn as_a_member() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let tree = Tree::open(Path::new(&path)).expect("opened");
    let mut words = String::new();
    std::io::stdin().read_line(&mut words).expect("told");
    let Some(member) = tree.join() else { std::process::exit(3) };
    for _ in 0..100 {
        member.counters().add(Counter::Faults, 1);
        member.hold_unlimited(4096);
        tree.sweep();
    }
    match words.trim() {
        "leave" => member.leave(),
        "stay" => {
            println!("\nstays");
            let _ = std::io::stdin().read_line(&mut words);
        }
        "die" => std::process::abort(),
        other => panic!("{other}"),
    }
    std::process::exit(0);
}

#[test]
fn processes_that_come_and_die_at_once_lose_no_count_and_share_no_place() {
    let scratch = scratch(Bytes::gib(1));
    let start = |_| {
        Command::new(std::env::current_exe().expect("this test"))
            .args(["tree::tests::as_a_member", "--exact", "--nocapture"])
            .env(FILE, scratch.directory.path().join("tree"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts")
    };
    for round in 1..=2u64 {
        let mut children: Vec<Child> = (0..24).map(start).collect();
        for (child, word) in children.iter_mut().zip(["leave", "die", "stay"].into_iter().cycle()) {
            let input = child.stdin.as_mut().expect("piped");
            writeln!(input, "{word}").expect("told");
        }
        for child in children.iter_mut().skip(2).step_by(3) {
            let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
            assert!(lines.any(|line| line.expect("read") == "stays"));
        }
        for child in children.iter_mut().enumerate().filter(|(at, _)| at % 3 != 2).map(|(_, child)| child) {
            let status = child.wait().expect("it ends");
            assert_ne!(status.code(), Some(3), "there was a place");
        }
        scratch.tree.sweep();
        let mut members: Vec<u32> = scratch.tree.members().map(|(identity, _)| identity.pid()).collect();
        let first =
            Identity::from_word(scratch.tree.header(Header::First).load(SeqCst)).expect("one was first");
        members.retain(|pid| *pid != first.pid());
        members.sort_unstable();
        let mut expected: Vec<u32> = children.iter().skip(2).step_by(3).map(Child::id).collect();
        expected.retain(|pid| *pid != first.pid());
        expected.sort_unstable();
        assert_eq!(members, expected);
        for child in children.iter_mut().skip(2).step_by(3) {
            child.kill().expect("killed");
            child.wait().expect("it ends");
        }
        let totals = scratch.tree.totals();
        assert_eq!((totals.processes, totals.faults), (24 * round, 2400 * round));
    }
}
