use super::*;
use crate::measure::process::OUTPUT_BYTES_MAX;

fn shell(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).into()
}

fn finish(script: &str, limit: Duration) -> anyhow::Result<Ended> {
    Running::start(&shell(script)).expect("sh starts").ended_within(limit, GRACE, &Cancel::default())
}

#[test]
fn a_bench_that_takes_too_long_is_asked_to_end_and_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let undone = directory.path().join("undone");
    let script = format!("trap 'touch {}; exit 1' TERM; while :; do sleep 0.02; done", undone.display());
    let why = finish(&script, Duration::from_millis(300)).err();
    assert!(why.is_some_and(|why| why.to_string().contains("did not end")));
    assert!(undone.exists());
}

#[test]
fn benches_that_hang_are_all_ended_by_the_deadline_and_told() {
    let hangs = |_: &Entry| shell("exec sleep 3600");
    let deadline = Some(Instant::now() + Duration::from_millis(300));
    let (bar, cancel) = (ProgressBar::hidden(), Cancel::default());
    let outcomes = run_benches(BENCHES.iter(), deadline, hangs, &bar, &cancel).expect("run");
    assert_eq!(outcomes.len(), BENCHES.len());
    for Outcome { entry, json, failure, .. } in outcomes {
        let told = failure.is_some_and(|why| why.contains("did not end within"));
        assert!(json.is_none() && told, "{}", entry.name);
    }
}

#[test]
fn what_is_printed_is_bounded_and_what_is_more_blocks_nobody() {
    let script = format!("head -c {} /dev/zero; echo why >&2; exit 3", 2 * OUTPUT_BYTES_MAX);
    let ended = finish(&script, Duration::from_secs(60)).expect("it ended by itself");
    assert_eq!((ended.output.len() as u64, ended.errors.as_str()), (OUTPUT_BYTES_MAX, "why"));
    assert_eq!(ended.status.code(), Some(3));
}

#[test]
fn a_bench_that_fails_is_an_outcome_with_its_message() {
    for (script, has_json, says) in [
        ("echo '{\"bench\":\"budget\"}'", true, None),
        ("echo '{}'; exit 1", true, Some("a side of it failed")),
        ("echo no; echo 'pagoda: no userfaultfd' >&2; exit 125", false, Some("pagoda: no userfaultfd")),
        ("echo no", false, Some("it printed no JSON")),
    ] {
        let outcome = outcome(&shell(script), &BENCHES[0], Duration::from_secs(60), &Cancel::default());
        let outcome = outcome.expect("an outcome");
        assert_eq!(outcome.json.is_some(), has_json, "{script}");
        assert_eq!(outcome.failure.is_some(), says.is_some(), "{script}");
        assert!(says.is_none_or(|says| outcome.failure.expect("a message").contains(says)), "{script}");
    }
}

#[test]
fn a_moment_is_written_as_people_do() {
    let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert_eq!(utc(moment), "2023-11-14 22:13 UTC");
}
