//! One run: starts a process as the destination, moves a region of this one there, and compares the
//! content. Never returns the figures of a run whose content differs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use pagoda::Region;
use pagoda::migrate::{Codec, Endpoint, LiveOptions, Moved, Otherwise, SendOptions, Writer, ZeroPolicy};
use pagoda_core::size::Bytes;
use pagoda_linux::procfs::usage::Usage;

use super::cases::digest_of;
use super::certificates::Certificates;
use super::cut_line::{CutLine, Plan, Seen};
use super::destination::{Arrived, DISCARDED, Into, PATIENCE, PIECE};
use crate::command::this_program;
use crate::worker;

/// Channels of a migration, as in the published cases.
pub const CHANNELS: u16 = 2;

/// The connection of both sides.
#[derive(Clone)]
pub enum Route<'a> {
    Direct,
    /// With TLS, by certificates of our own.
    Tls(&'a Certificates),
    /// Over a line that is cut.
    Cut(Plan),
}

/// The figures of one run.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub moved: Moved,
    pub arrived: Arrived,
    /// The observations of a line that is cut.
    pub seen: Seen,
    /// The time until the destination had confirmed it.
    pub took: Duration,
    /// The processor time of both processes.
    pub cpu_ms: f64,
}

/// A destination that waits.
struct Destination {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    address: String,
}

impl Destination {
    fn start(zero: ZeroPolicy, into: Into, most: Bytes, trust: Option<&Path>) -> anyhow::Result<Self> {
        let name = into.to_possible_value().context("each place has a name")?;
        let [this, words @ ..] = worker::words(&this_program()?, "migrate-destination");
        let mut child = Command::new(this)
            .args(words)
            .args(["--into", name.get_name(), "--zero", &zero.to_string(), "--most", &most.get().to_string()])
            .args(trust.iter().flat_map(|folder| [OsStr::new("--trust"), folder.as_os_str()]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the destination")?;
        let mut output = BufReader::new(child.stdout.take().context("the destination's output")?);
        let mut address = String::new();
        output.read_line(&mut address)?;
        Ok(Self { child, output, address: address.trim().to_owned() })
    }

    /// The destination's last line.
    fn arrived(mut self) -> anyhow::Result<Arrived> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the destination failed: {status}");
        serde_json::from_str(&text).context("what the destination found out")
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Moves `region`, and checks its content there. A destination that is used early is owed all pages
/// at first.
pub fn run(
    region: &Region,
    zero: ZeroPolicy,
    into: Into,
    codec: Codec,
    writer: &mut dyn Writer,
) -> anyhow::Result<Outcome> {
    run_over(region, &Route::Direct, zero, into, codec, writer)
}

/// The same over another route.
pub fn run_over(
    region: &Region,
    route: &Route<'_>,
    zero: ZeroPolicy,
    into: Into,
    codec: Codec,
    writer: &mut dyn Writer,
) -> anyhow::Result<Outcome> {
    run_with(region, route, zero, into, options(into, codec), writer)
}

/// The options of a run.
pub fn options(into: Into, codec: Codec) -> LiveOptions {
    LiveOptions {
        send: SendOptions {
            channels: CHANNELS,
            codec,
            // Each codec's figures are its own.
            only_if_faster: false,
            stall: PATIENCE,
            ..SendOptions::default()
        },
        downtime: Duration::from_millis(50),
        rounds: if into == Into::LateRegion { 0 } else { 30 },
        otherwise: if into == Into::LateRegion { Otherwise::PostCopy } else { Otherwise::StopForLonger },
        slow_most_percent: LiveOptions::SLOW_MOST_PERCENT,
    }
}

/// The same with options, to which the route's TLS is added.
pub fn run_with(
    region: &Region,
    route: &Route<'_>,
    zero: ZeroPolicy,
    into: Into,
    mut options: LiveOptions,
    writer: &mut dyn Writer,
) -> anyhow::Result<Outcome> {
    let (trust, tls) = match route {
        Route::Tls(certificates) => (Some(certificates.folder()), Some(certificates.client()?)),
        _ => (None, None),
    };
    let destination = Destination::start(zero, into, Bytes::new(region.len() as u64), trust)?;
    let mut to: Endpoint = destination.address.parse().map_err(anyhow::Error::msg)?;
    let line = match (route, &mut to) {
        (Route::Cut(plan), Endpoint::Tcp { port, .. }) => {
            let line = CutLine::new(*port, plan.clone())?;
            *port = line.port;
            Some(line)
        }
        _ => None,
    };
    options.send.tls = tls;
    let (before, started) = (Usage::of_this_process()?, Instant::now());
    let moved = region.migrate_to(&to, &options, writer, &mut |_, _| ControlFlow::Continue(()))?;
    let (took, used) = (started.elapsed(), Usage::of_this_process()?.since(before));
    let arrived = destination.arrived()?;
    if arrived.digest != digest_of(region)? {
        bail!("what has arrived is not what was sent");
    }
    let seen = line.map(|line| line.seen()).unwrap_or_default();
    Ok(Outcome { moved, arrived, seen, took, cpu_ms: (used.cpu_us + arrived.cpu_us) as f64 / 1e3 })
}

/// A writer that never writes.
pub struct Idle;

impl Writer for Idle {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}

/// The rate of the same channels in GiB/s if the bytes are discarded.
pub fn loopback_limit_gib_s(bytes: Bytes) -> anyhow::Result<f64> {
    let destination = Destination::start(ZeroPolicy::default(), Into::Nowhere, bytes, None)?;
    let content = vec![0x5a; PIECE];
    let each = (bytes.get() / DISCARDED as u64).div_ceil(PIECE as u64);
    let started = Instant::now();
    thread::scope(|scope| {
        let senders: Vec<_> = (0..DISCARDED)
            .map(|_| {
                let (address, content) = (&destination.address, &content);
                scope.spawn(move || -> std::io::Result<()> {
                    let mut connection = TcpStream::connect(address)?;
                    for _ in 0..each {
                        connection.write_all(content)?;
                    }
                    connection.shutdown(Shutdown::Write)?;
                    connection.read_exact(&mut [0])
                })
            })
            .collect();
        for sender in senders {
            sender.join().map_err(|_| anyhow::anyhow!("a sender has failed"))??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let took = started.elapsed().as_secs_f64();
    destination.arrived()?;
    Ok((each * (DISCARDED * PIECE) as u64) as f64 / took / f64::from(1 << 30))
}
