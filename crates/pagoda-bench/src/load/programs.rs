//! The everyday programs that the overhead is measured with, and how each is timed.
//!
//! Nothing is installed, and no configuration of the machine is read. A missing program is left out
//! with a reason. A server listens on loopback alone, on a port of its own. This module must never
//! know about Pagoda: it is given the command to run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::Context;

use crate::load::data::Random;
use crate::load::redis_client::{connect, shut_down};
use crate::load::tools::{python as python_itself, starts, words};
use crate::measure::process::{Cancel, Running, run};
use crate::measure::scratch::Scratch;

/// An installed program, and how it is measured.
pub struct Program {
    /// The command line of the program under management.
    pub command: Vec<String>,
    /// For a server: its port, and the client whose run is timed.
    server: Option<(u16, Vec<String>)>,
}

/// A script that allocates and drops for about two seconds, or for half a second: lists,
/// dictionaries, strings and large byte arrays.
const PYTHON: &str = "
import random
r = random.Random(1)
live = {}
for i in range(ROUNDS):
    k = r.randrange(250000)
    live[k] = [r.random() for _ in range(8)] + [str(i) * 8]
    if i % 200 == 0:
        live[-1 - k % 64] = bytearray(1 << 20)
assert sum(len(v) for v in live.values()) > 0
";

/// Every program by name, or the reason why it is left out. A quick run gives each less work.
pub fn installed(
    scratch: &Scratch,
    quick: bool,
) -> anyhow::Result<Vec<(&'static str, Result<Program, String>)>> {
    Ok(vec![
        ("python3", python(quick).map_err(|error| format!("{error:#}"))),
        ("redis-benchmark", redis(quick).map_err(|error| format!("{error:#}"))),
        (
            "sort",
            sort(scratch, if quick { 16 << 20 } else { 64 << 20 })?.map_err(|error| format!("{error:#}")),
        ),
    ])
}

fn python(quick: bool) -> anyhow::Result<Program> {
    let real = python_itself()?;
    starts(&real)?;
    let script = PYTHON.replace("ROUNDS", if quick { "100000" } else { "400000" });
    Ok(Program { command: words(&[&real, "-c", &script]), server: None })
}

fn redis(quick: bool) -> anyhow::Result<Program> {
    starts("redis-server")?;
    starts("redis-benchmark")?;
    // The kernel gives a port that was just freed to no other program for a good while.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let number = port.to_string();
    let server =
        ["redis-server", "--port", &number, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let requests = if quick { "100000" } else { "400000" };
    let mut client = words(&["redis-benchmark", "-p", &number, "-t", "set,get", "-n", requests]);
    client.extend(words(&["-r", "300000", "-d", "512", "-P", "16", "-c", "16", "-q"]));
    Ok(Program { command: words(&server), server: Some((port, client)) })
}

fn sort(scratch: &Scratch, bytes: usize) -> anyhow::Result<anyhow::Result<Program>> {
    if let Err(error) = starts("sort") {
        return Ok(Err(error));
    }
    let input = scratch.file("sort-input");
    let mut out =
        BufWriter::new(File::create(&input).with_context(|| format!("writing {}", input.display()))?);
    let mut random = Random::new(11);
    let mut written = 0;
    while written < bytes {
        let line = format!("{:016x} {}\n", random.next(), random.below(1 << 20));
        out.write_all(line.as_bytes())?;
        written += line.len();
    }
    out.flush()?;
    // The buffer holds the input, so that no temporary file is part of the time.
    let input = input.display().to_string();
    Ok(Ok(Program {
        command: words(&["sort", "-S", "1G", "--parallel=2", "-o", "/dev/null", &input]),
        server: None,
    }))
}

impl Program {
    /// Runs it by `command`, which is its own or wraps it. Returns the timed seconds and its peak
    /// of anonymous memory in bytes.
    pub fn time(&self, command: Vec<String>, limit: Duration, cancel: &Cancel) -> anyhow::Result<(f64, u64)> {
        let Some((port, client)) = &self.server else {
            let finished = run(&command, limit, cancel, || ())?;
            return Ok((finished.seconds, finished.anonymous_bytes_peak));
        };
        let mut server = Running::start(&command)?;
        let connection = connect(&format!("redis://127.0.0.1:{port}"), limit, &mut server, cancel)?;
        let finished = run(client, limit, cancel, || {
            server.sample();
        })?;
        shut_down(connection)?;
        let served = server.wait(limit, cancel, || ())?;
        Ok((finished.seconds, served.anonymous_bytes_peak))
    }
}
