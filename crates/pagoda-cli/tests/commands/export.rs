//! `pagoda export` from the outside: of a real `pagoda run`, printed and served.

#[path = "../support/openmetrics.rs"]
mod openmetrics;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::skip::skip;
use pagoda_linux::testing::wait::until;

fn export(runtime: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.arg("export").args(options).env("XDG_RUNTIME_DIR", runtime);
    command
}

fn printed(runtime: &Path) -> String {
    let output = export(runtime, &[]).output().expect("pagoda starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A serving `pagoda export`, ended with this value.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(runtime: &Path) -> Self {
        let mut command = export(runtime, &["--listen", "127.0.0.1:0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("pagoda starts");
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut line).expect("read");
        let address = line
            .trim()
            .strip_prefix("pagoda: metrics at http://")
            .and_then(|rest| rest.strip_suffix("/metrics"));
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    /// The head and the body of the answer to a scraper that accepts this.
    fn get(&self, accept: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_managed_program_is_told_printed_and_served() {
    let runtime = tempfile::tempdir().expect("a directory");
    let mut run = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    run.args(["run", "--quiet", "--memory", "64M", "--", "sh", "-c", "echo ready; read -r word"]);
    run.env("XDG_RUNTIME_DIR", runtime.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut run = run.spawn().expect("pagoda starts");
    let mut line = String::new();
    BufReader::new(run.stdout.as_mut().expect("piped")).read_line(&mut line).expect("read");
    if line.trim() != "ready" {
        let why = String::from_utf8_lossy(&run.wait_with_output().expect("it ends").stderr).into_owned();
        return skip("pagoda export of a managed program", why);
    }
    // Runs elsewhere on the machine are told, too.
    let own = format!("{}-", run.id());
    let budget = |text: &str| {
        let families = openmetrics::read(text).unwrap_or_else(|why| panic!("{why}\n{text}"));
        let budget = families["pagoda_budget_bytes"].samples.clone();
        let budget = budget.into_iter().filter(|(_, labels, _)| labels["tree"].starts_with(&own));
        budget.map(|(_, labels, value)| (labels["program"].clone(), value)).collect::<Vec<_>>()
    };
    let expected = vec![("sh".to_owned(), f64::from(64 << 20))];
    // Its tree has no name of a program before it has joined.
    until("the program is a member", || budget(&printed(runtime.path())) == expected);
    let server = Server::start(runtime.path());
    let (head, body) = server.get("application/openmetrics-text;version=1.0.0");
    assert!(head.contains("Content-Type: application/openmetrics-text"), "{head}");
    assert_eq!(budget(&body), expected);
    let (head, body) = server.get("text/plain");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("# TYPE pagoda_faults_total counter\n") && !body.contains("# EOF"), "{body}");
    drop(run.stdin.take());
    run.wait().expect("it ends");
    until("its tree is gone", || budget(&printed(runtime.path())).is_empty());
}

/// Prometheus's own reader, where it is installed.
#[test]
fn promtool_takes_what_is_served() {
    let runtime = tempfile::tempdir().expect("a directory");
    let path = runtime.path().join("pagoda-1-1-0");
    let tree = pagoda::tree::Tree::create(&path, Bytes::mib(64), BasePage::K64).expect("made");
    let member = tree.join().expect("a place");
    member.counters().add(pagoda::stats::counters::Counter::Faults, 1);
    member.counters().took(pagoda::stats::fault_kind::FaultKind::Stored, 5_000);
    let (_, body) = Server::start(runtime.path()).get("text/plain");
    assert!(body.contains("kind=\"stored\"} 1\n"), "{body}");
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = match promtool.spawn() {
        Ok(promtool) => promtool,
        Err(error) => return pagoda_linux::testing::skip::tell("promtool of Prometheus", error),
    };
    promtool.stdin.take().expect("piped").write_all(body.as_bytes()).expect("written");
    let output = promtool.wait_with_output().expect("it ends");
    let says =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{says}");
}

#[test]
fn an_address_that_is_taken_or_none_is_said() {
    let runtime = tempfile::tempdir().expect("a directory");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    for (listen, says) in [(address.as_str(), "could not listen to"), ("here", "--listen")] {
        let output = export(runtime.path(), &["--listen", listen]).output().expect("pagoda starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && error.contains(says), "{error}");
    }
}
