use std::io::{BufRead, BufReader};
use std::thread;

use super::*;

const GREETING: &str = r#"{"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7},"package":"Debian"},"capabilities":["oob"]}}"#;

/// The other side sends its greeting, and `says[i]` to the i-th command. Returns the requests.
fn talk<T>(says: &[&str], with: impl FnOnce(UnixStream) -> T) -> (T, Vec<Value>) {
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut input = BufReader::new(theirs.try_clone().expect("the same socket")).lines();
            let mut asked = Vec::new();
            writeln!(&theirs, "{GREETING}").expect("heard");
            for said in says {
                let Some(Ok(line)) = input.next() else { break };
                asked.push(serde_json::from_str(&line).expect("JSON"));
                (&theirs).write_all(said.as_bytes()).expect("heard");
            }
            asked
        });
        (with(ours), other.join().expect("it talks"))
    })
}

fn failed<T>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.err().expect("it must fail"))
}

#[test]
fn answers_are_found_between_events_and_the_last_state_of_the_migration_is_kept() {
    let moving = "{\"event\":\"MIGRATION\",\"data\":{\"status\":\"active\"}}\r\n";
    let moved = "{\"event\":\"MIGRATION\",\"data\":{\"status\":\"completed\"}}\r\n";
    let answer = format!("{moving}{{\"event\":\"STOP\"}}\r\n{{\"return\":{{\"port\":\"7\"}}}}\r\n{moved}");
    let (port, asked) = talk(&["{\"return\":{}}\r\n", &answer], |stream| {
        let mut qmp = Qmp::begin(stream).expect("greeted");
        assert_eq!(qmp.version(), "7.2.22");
        let answer = qmp.execute("migrate", &json!({ "uri": "tcp:" })).expect("done");
        qmp.await_migration(Duration::from_secs(20)).expect("moved");
        answer["port"].as_str().map(str::to_owned)
    });
    assert_eq!(port.as_deref(), Some("7"));
    assert_eq!(asked[0]["execute"], "qmp_capabilities");
    assert_eq!(asked[1], json!({ "execute": "migrate", "arguments": { "uri": "tcp:" } }));
}

#[test]
fn a_refusal_says_why_and_a_migration_that_failed_is_no_success() {
    let failing = "{\"event\":\"MIGRATION\",\"data\":{\"status\":\"failed\"}}\n{\"return\":{}}\n";
    let refusal = "{\"error\":{\"class\":\"GenericError\",\"desc\":\"no such parameter\"}}\n";
    let ((), _) = talk(&["{\"return\":{}}\n", refusal, failing], |stream| {
        let mut qmp = Qmp::begin(stream).expect("greeted");
        let refused = failed(qmp.execute("migrate-set-parameters", &json!({})));
        assert!(
            refused.contains("migrate-set-parameters") && refused.contains("no such parameter"),
            "{refused}"
        );
        qmp.execute("migrate", &json!({})).expect("begun");
        assert!(failed(qmp.await_migration(Duration::from_secs(20))).contains("failed"));
    });
}

#[test]
fn who_says_nothing_ends_or_talks_without_end_is_not_waited_for() {
    let (ours, _silent) = UnixStream::pair().expect("two sockets");
    let mut qmp = Qmp { stream: ours, read: Vec::new(), version: String::new(), migration: None };
    assert!(failed(qmp.await_migration(Duration::from_millis(5))).contains("silent"));
    let (ended, _) = talk(&[], |stream| failed(Qmp::begin(stream)));
    assert!(ended.contains("ended") || ended.contains("telling"), "{ended}");
    let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
    let endless = thread::spawn(move || while theirs.write_all(&[b' '; 4096]).is_ok() {});
    assert!(failed(Qmp::begin(ours)).contains("no end"));
    endless.join().expect("it stops when nobody listens");
}
