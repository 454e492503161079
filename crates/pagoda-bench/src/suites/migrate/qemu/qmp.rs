//! QEMU's own protocol: a line of JSON for each command, a line for its answer, and lines of events
//! between. Small, so own code.
//!
//! Every wait has an end, and no line is longer than its buffer. This module must never start or
//! end a process.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

/// The limit of an answer: each is about a state that QEMU knows already.
const ANSWER: Duration = Duration::from_secs(20);

/// The limit of a line: the longest expected answer has some KiB.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Our end of the connection to one QEMU.
pub struct Qmp {
    stream: UnixStream,
    /// Bytes read that are no whole line yet.
    read: Vec<u8>,
    version: String,
    /// The last reported state of its migration.
    migration: Option<String>,
}

impl Qmp {
    /// Waits for the greeting, and enters the protocol's command mode.
    pub fn begin(stream: UnixStream) -> anyhow::Result<Self> {
        let mut qmp = Self { stream, read: Vec::new(), version: String::new(), migration: None };
        let greeting = qmp.message(Instant::now() + ANSWER)?;
        qmp.version = version(&greeting).context("QEMU's greeting names no version")?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// The version, three numbers.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Executes a command, and returns its answer.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> anyhow::Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        self.stream.set_write_timeout(Some(ANSWER))?;
        writeln!(self.stream, "{line}").with_context(|| format!("telling QEMU to {command}"))?;
        let end = Instant::now() + ANSWER;
        loop {
            let mut message = self.message(end).with_context(|| format!("waiting for {command}"))?;
            if let Some(error) = message.get("error") {
                bail!("QEMU refused {command}: {}", error["desc"].as_str().unwrap_or("for no reason"));
            }
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }

    /// Waits until its migration has succeeded.
    pub fn await_migration(&mut self, limit: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + limit;
        loop {
            match self.migration.as_deref() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => bail!("QEMU's migration has failed"),
                _ => self.message(end).context("waiting for the end of QEMU's migration")?,
            };
        }
    }

    /// The next line. The state of the migration in it is kept.
    fn message(&mut self, end: Instant) -> anyhow::Result<Value> {
        let line = loop {
            if let Some(length) = self.read.iter().position(|byte| *byte == b'\n') {
                break self.read.drain(..=length).collect::<Vec<_>>();
            }
            ensure!(self.read.len() < LINE_BYTES_MAX, "QEMU's answer has no end");
            self.read_more(end)?;
        };
        let message: Value = serde_json::from_slice(&line).context("QEMU's answer is no JSON")?;
        if message["event"] == "MIGRATION" {
            self.migration = message["data"]["status"].as_str().map(str::to_owned);
        }
        Ok(message)
    }

    fn read_more(&mut self, end: Instant) -> anyhow::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "QEMU is silent");
        // The kernel takes no wait of zero, and rounds to microseconds.
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut room = [0; 4096];
        match self.stream.read(&mut room) {
            Ok(0) => bail!("QEMU has ended"),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => bail!("QEMU has ended"),
            Ok(bytes) => self.read.extend_from_slice(&room[..bytes]),
            // Tried again: the end of the wait is checked above.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error).context("reading what QEMU says"),
        }
        Ok(())
    }
}

fn version(greeting: &Value) -> Option<String> {
    let qemu = greeting.pointer("/QMP/version/qemu")?;
    let part = |name: &str| qemu.get(name)?.as_u64();
    Some(format!("{}.{}.{}", part("major")?, part("minor")?, part("micro")?))
}

#[cfg(test)]
#[path = "qmp_test.rs"]
mod tests;
