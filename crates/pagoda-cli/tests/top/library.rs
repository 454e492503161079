//! A process that uses the library and publishes: the shown values of its regions and of a
//! migration between two of its managers.

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagoda::migrate::{Listener, LiveOptions, Otherwise, ReceiveOptions, SendOptions, Writer};
use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;
use serde_json::Value;

use super::{Shown, top};

const ROLE: &str = "PAGODA_TEST_PUBLISH";
const BUDGET: Bytes = Bytes::mib(64);
const SMALL: Bytes = Bytes::mib(4);
const LARGE: Bytes = Bytes::mib(16);
/// The part of the large one that is written and sent.
const WRITTEN: usize = 1 << 20;
/// Longer than any look.
const STALL: Duration = Duration::from_secs(300);

fn manager() -> Manager {
    let builder = Manager::builder().budget(BUDGET).base_page(BasePage::K64).user_mode_only(true);
    builder.publish(true).build().expect("a manager")
}

/// It is never asked to stop: the migration is ended before.
struct Goes;

impl Writer for Goes {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}

/// The program: two regions, of which one is sent to another manager, and written, until standard
/// input ends.
#[test]
fn publisher() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let (from, to) = (manager(), manager());
    let mut small = from.region(SMALL).create().expect("a region");
    let large = from.region(LARGE).create().expect("a region");
    for at in (0..SMALL.as_usize()).step_by(4096) {
        // No page is zero: that would take no room in the store.
        small.write_at(at, &(at + 1).to_le_bytes()).expect("written");
    }
    // Pages that a handler still has, or that the kernel has only just made, stay for a moment.
    until("the half of it is stored", || {
        small.page_out(0, SMALL.as_usize() / 2).expect("stored");
        from.stats().stored_bytes >= SMALL.get() / 2
    });
    let options = LiveOptions {
        send: SendOptions { bandwidth: Some(Bytes::mib(4)), stall: STALL, ..SendOptions::default() },
        downtime: Duration::ZERO,
        rounds: u32::MAX,
        otherwise: Otherwise::StopForLonger,
        slow_most_percent: 0,
    };
    let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a listener");
    let at = listener.endpoint().expect("an address");
    let receiving = ReceiveOptions { stall: STALL, ..ReceiveOptions::default() };
    let ends = AtomicBool::new(false);
    let write = |turn: u64| {
        let pages = (0..WRITTEN).step_by(4096);
        pages.for_each(|page| large.write_words(page, &turn.to_le_bytes()).expect("written"));
    };
    // Before the first round, which else may find nothing to send.
    write(1);
    println!("ready");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let received = Region::receive(&to, listener, &receiving, &mut |_| ControlFlow::Continue(()));
            assert!(received.is_err(), "it was broken off");
        });
        scope.spawn(|| {
            let mut nothing = String::new();
            std::io::stdin().read_to_string(&mut nothing).expect("read");
            ends.store(true, Ordering::Relaxed);
        });
        let sent = large.migrate_to(&at, &options, &mut Goes, &mut |_, pace| {
            // Behind the look that the first round begins with: something is always left after it.
            if pace.rounds == 0 {
                write(2);
            }
            // It stands still behind the first round, so that it can be seen.
            while pace.rounds > 0 && !ends.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if ends.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(sent.is_err(), "it was broken off");
    });
}

/// That program; it ends when its input does.
struct Publisher {
    child: Child,
    input: Option<ChildStdin>,
    /// Kept: a test that can't say how it ended has failed.
    _output: BufReader<ChildStdout>,
    runtime: tempfile::TempDir,
}

impl Publisher {
    fn start() -> Self {
        let runtime = tempfile::tempdir().expect("a directory");
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "library::publisher", "--nocapture"])
            .env(ROLE, "1")
            .env("XDG_RUNTIME_DIR", runtime.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let is_ready = output.by_ref().lines().map_while(Result::ok).any(|line| line.contains("ready"));
        assert!(is_ready, "it said nothing");
        Self { child, input, _output: output, runtime }
    }

    fn top(&self, options: &[&str]) -> Command {
        let mut command = top(options);
        command.arg(self.child.id().to_string()).env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }

    /// Its managers, those with regions of its own first.
    fn json(&self) -> Value {
        let output = self.top(&["--json", "-i", "0.1"]).output().expect("it runs");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.runtime.path()).expect("read").count()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The region of that length, of all that are shown.
fn region<'a>(json: &'a Value, len: Bytes, state: Option<&str>) -> Option<&'a Value> {
    let trees = json["trees"].as_array().expect("trees").iter();
    let mut regions = trees.flat_map(|tree| tree["regions"].as_array().expect("regions"));
    regions.find(|region| region["bytes"] == len.get() && region["migration"]["state"].as_str() == state)
}

/// The bytes of a region, in any place.
fn held(region: &Value) -> u64 {
    let sizes = ["resident_bytes", "staged_bytes", "stored_bytes"];
    sizes.iter().map(|key| region[key].as_u64().unwrap_or_else(|| panic!("{key}: {region}"))).sum()
}

#[test]
fn a_library_that_publishes_is_shown_with_its_regions_and_their_migration() {
    if skip_without_moves("pagoda top of a library") {
        return;
    }
    let mut publisher = Publisher::start();
    let mut json = Value::Null;
    until("a round is done, the receiver knows what comes, and a walk has found all pages", || {
        json = publisher.json();
        let sending = region(&json, LARGE, Some("sending"));
        let paced = sending.is_some_and(|region| !region["migration"]["sender"]["pace"].is_null());
        paced
            && region(&json, LARGE, Some("receiving")).is_some()
            && region(&json, SMALL, None).is_some_and(|small| held(small) == SMALL.get())
    });
    assert_eq!(json["rejected"], Value::Array(Vec::new()), "{json}");
    let trees = json["trees"].as_array().expect("trees");
    assert_eq!(trees.len(), 2, "two managers of one process: {json}");
    for tree in trees {
        assert_eq!((&tree["pid"], &tree["status"]), (&publisher.child.id().into(), &"library".into()));
        assert_eq!(
            (&tree["share_bytes"], &tree["members"][0]["status"]),
            (&BUDGET.get().into(), &"managed".into())
        );
        assert!(tree["members"][0]["free_low_bytes"].as_u64() > Some(0), "{tree}");
    }
    let small = region(&json, SMALL, None).expect("the region that stays");
    let number = |key: &str| small[key].as_u64().unwrap_or_else(|| panic!("{key}: {small}"));
    assert!(number("stored_bytes") >= SMALL.get() / 2, "{small}");
    let sending = &region(&json, LARGE, Some("sending")).expect("found")["migration"];
    assert!(
        sending["wire_bytes"].as_u64() > Some(0) && sending["sender"]["rounds"].as_u64() > Some(0),
        "{sending}"
    );
    assert!(sending["sender"]["pace"]["sent_bytes_s"].as_u64() > Some(0), "{sending}");

    let table = publisher.top(&["--once", "-i", "0.1"]).output().expect("it runs");
    let table = String::from_utf8(table.stdout).expect("text");
    for what in
        [" library ", " sending ", " receiving ", "(library): 2 regions", "downtime expected", "ready frames"]
    {
        assert!(table.contains(what), "{what}: {table}");
    }
    let mut shown = Shown::start(publisher.top(&["--interval", "0.2"]), 30, 160);
    shown.wait_for(", 2 regions, ");
    shown.wait_for("sending");
    shown.press("q");
    assert_eq!(shown.end().0.code(), Some(0));

    assert_eq!(publisher.files(), 2);
    drop(publisher.input.take());
    assert!(publisher.child.wait().expect("it ends").success());
    assert_eq!(publisher.files(), 0, "the files go with the managers");
}

#[test]
fn the_leftovers_of_a_killed_process_are_passed_over() {
    if skip_without_moves("pagoda top of a library") {
        return;
    }
    let mut publisher = Publisher::start();
    publisher.child.kill().expect("killed");
    publisher.child.wait().expect("ended");
    assert!(publisher.files() > 0, "no process was there to remove them");
    let output = publisher.top(&["--json"]).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("or publishes; `pagoda top --once` lists"), "{errors}");
}
