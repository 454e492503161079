//! One QEMU process: a guest with memory and no running processor, driven over its standard
//! streams.
//!
//! Its memory is filled and read from outside, as a debugger does. It is ended when this is
//! dropped, and by the kernel if this process is killed. This module must never leave a QEMU
//! behind.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use clap::Args;
use pagoda_core::size::Bytes;
use serde_json::json;

use super::super::destination::rss_bytes_of;
use super::super::trial::CHANNELS;
use super::qmp::Qmp;
use crate::command::this_program;
use crate::measure::process::Reader;
use crate::worker;

/// A limit far above a loopback, in bytes a second: the default is a link of 1 Gbit/s.
const BANDWIDTH: u64 = 1 << 40;

/// The hidden command by which the bench starts QEMU, so that it ends with the bench.
#[derive(Args, Debug)]
pub struct QemuArgs {
    /// The path of QEMU.
    #[arg(long)]
    program: PathBuf,
    /// The arguments of QEMU.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Becomes QEMU. The parent-death signal stays in force.
pub fn become_qemu(args: &QemuArgs) -> anyhow::Error {
    let error = Command::new(&args.program).args(&args.arguments).exec();
    anyhow::Error::new(error).context(format!("starting {}", args.program.display()))
}

/// A QEMU that waits to be driven.
pub struct Guest {
    child: Child,
    errors: Option<Reader>,
    memory: File,
    /// The address of its memory in its process.
    begin: u64,
    pub qmp: Qmp,
}

impl Guest {
    /// Starts a QEMU of `memory`, to send it or, at an address given later, to receive.
    pub fn start(program: &Path, memory: Bytes, receives: bool) -> anyhow::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let (input, output) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
        let size = format!("{}k", memory.get() >> 10);
        let [this, words @ ..] = worker::words(&this_program()?, "qemu");
        let mut command = Command::new(this);
        command.args(words).arg("--program").arg(program).arg("--");
        command.args(["-M", "none", "-accel", "tcg", "-m", &size, "-S", "-nodefaults", "-no-user-config"]);
        command.args(["-display", "none", "-qmp", "stdio"]);
        if receives {
            command.args(["-incoming", "defer"]);
        }
        let mut child = command
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .stderr(Stdio::piped())
            .spawn()
            .context("starting QEMU")?;
        // Closed on our side, so that its end is seen.
        drop(command);
        let mut errors = child.stderr.take().map(Reader::start);
        match Self::greet(&child, ours) {
            Ok((qmp, memory, begin)) => Ok(Self { child, errors, memory, begin, qmp }),
            Err(error) => {
                end(&mut child);
                Err(error.context(Reader::text(&mut errors)))
            }
        }
    }

    fn greet(child: &Child, stream: UnixStream) -> anyhow::Result<(Qmp, File, u64)> {
        let mut qmp = Qmp::begin(stream)?;
        let capability = |name| json!({ "capability": name, "state": true });
        let wanted = json!({ "capabilities": [capability("multifd"), capability("events")] });
        qmp.execute("migrate-set-capabilities", &wanted)?;
        let parameters = json!({ "multifd-channels": CHANNELS, "max-bandwidth": BANDWIDTH });
        qmp.execute("migrate-set-parameters", &parameters)?;
        let said = qmp.execute("human-monitor-command", &json!({ "command-line": "gpa2hva 0" }))?;
        let begin = said.as_str().and_then(host_address).context("QEMU does not say where its memory is")?;
        let memory = format!("/proc/{}/mem", child.id());
        let opened = File::options().read(true).write(true).open(&memory);
        Ok((qmp, opened.with_context(|| format!("opening {memory}, to fill QEMU's memory"))?, begin))
    }

    /// Writes to the guest's memory.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, self.begin + offset)
    }

    /// Reads the guest's memory.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(into, self.begin + offset)
    }

    /// Its faults so far that needed no disk.
    pub fn minor_faults(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        minor_faults(&text).with_context(|| format!("{path} has no count of faults"))
    }

    /// Its resident anonymous memory.
    pub fn rss_bytes(&self) -> anyhow::Result<u64> {
        rss_bytes_of(&self.child.id().to_string())
    }

    /// The part of its resident memory that is in huge pages; 0 if none is resident.
    pub fn huge_part(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/smaps", self.child.id());
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        huge_part(&text, self.begin).with_context(|| format!("{path} lacks QEMU's memory"))
    }

    /// Ends it, and returns its standard error.
    pub fn into_errors(mut self) -> String {
        end(&mut self.child);
        Reader::text(&mut self.errors).trim().to_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The address in QEMU's answer, which is text for people.
fn host_address(said: &str) -> Option<u64> {
    let (_, address) = said.trim().rsplit_once(" is 0x")?;
    u64::from_str_radix(address, 16).ok()
}

/// The tenth field of a process's stat line. It is counted from the last parenthesis, because the
/// name before may hold anything.
fn minor_faults(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(7)?.parse().ok()
}

/// The part in huge pages of the mapping at `address`, by the lines of `smaps`.
fn huge_part(smaps: &str, address: u64) -> Option<f64> {
    let holds = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(from)?..number(to)?).contains(&address))
    };
    let mut lines = smaps.lines().skip_while(|line| holds(line) != Some(true)).skip(1);
    let mut of = |name: &str| {
        let line =
            lines.by_ref().take_while(|line| holds(line).is_none()).find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    let (resident, huge) = (of("Rss:")?, of("AnonHugePages:")?);
    Some(if resident > 0.0 { huge / resident } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_for_people_is_read_right_or_not_at_all() {
        let said = "Host virtual address for 0x0 (ram) is 0x7faff7e00000\r\n";
        assert_eq!(host_address(said), Some(0x7faf_f7e0_0000));
        assert_eq!(host_address("No memory is mapped at address 0x0\r\n"), None);
        assert_eq!(host_address(""), None);
        let stat = "12 (a ) b) S 1 12 12 0 -1 4194560 4711 0 8 0 1 2";
        assert_eq!(minor_faults(stat), Some(4711));
        assert_eq!(minor_faults("12 (a) S 1"), None);
    }

    #[test]
    fn huge_pages_are_those_of_the_mapping_alone() {
        let smaps = "7f00-7f10 rw-p 0 00:00 0\nRss: 8 kB\nAnonHugePages: 8 kB\nVmFlags: rd\n\
                     7f10-7f30 rw-p 0 00:00 0 [x]\nSize: 99 kB\nRss: 8 kB\nAnonHugePages: 2 kB\nVmFlags: rd\n\
                     7f30-7f40 rw-p 0 00:00 0\nRss: 0 kB\nVmFlags: rd\n\
                     7f40-7f50 rw-p 0 00:00 0\nRss: 0 kB\nAnonHugePages: 0 kB\n";
        let parts = [0x7eff, 0x7f0f, 0x7f10, 0x7f2f, 0x7f30, 0x7f40].map(|at| huge_part(smaps, at));
        assert_eq!(parts, [None, Some(1.0), Some(0.25), Some(0.25), None, Some(0.0)]);
    }

    #[test]
    fn faults_of_this_process_are_those_that_the_kernel_says_otherwise() {
        let before = pagoda_linux::procfs::usage::Usage::of_this_process().expect("usage").minor_faults;
        let text = fs::read_to_string("/proc/self/stat").expect("the kernel has it");
        let after = pagoda_linux::procfs::usage::Usage::of_this_process().expect("usage").minor_faults;
        let counted = minor_faults(&text).expect("a count");
        assert!((before..=after).contains(&counted), "{before} {counted} {after}");
    }
}
