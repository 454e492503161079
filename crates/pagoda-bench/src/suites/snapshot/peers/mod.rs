//! `pagoda serve` with a VMM of each protocol: a VM's first page, and the working set's.
//!
//! A VM touches what all other sides do, in the same order, and compares it. Its handler runs
//! already, as one with many VMs does, but has unpacked nothing of that. This module must never
//! make up a figure: without a userfaultfd, or without `pagoda` beside this program, there is a
//! reason.

pub mod cloud_hypervisor;
pub mod firecracker;

use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagoda_core::page::OS_PAGE;
use pagoda_linux::uffd::Mode;
use pagoda_linux::uffd::entrusted::EntrustedUffd;
use serde_json::{Map, Value, json};

use super::sides::Files;
use crate::measure::histogram::Histogram;
use crate::measure::process::Running;
use crate::measure::stats::{Measured, middle, round};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);
const PAGE_WORDS: usize = OS_PAGE / size_of::<u64>();

/// Whose protocol it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Firecracker,
    CloudHypervisor,
}

/// How the pages come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// As the VM asks for them.
    Demand,
    /// The same, each with a fault of its own.
    EachPage,
    /// Those of the recorded working set first.
    Recorded,
}

/// The sides. Cloud Hypervisor asks for each page anyway.
const SIDES: [(Protocol, How); SIDES_COUNT] = [
    (Protocol::Firecracker, How::Demand),
    (Protocol::Firecracker, How::Recorded),
    (Protocol::Firecracker, How::EachPage),
    (Protocol::CloudHypervisor, How::Demand),
    (Protocol::CloudHypervisor, How::Recorded),
];
pub(super) const SIDES_COUNT: usize = 5;

impl Protocol {
    const ALL: [Self; 2] = [Self::Firecracker, Self::CloudHypervisor];

    fn key(self) -> &'static str {
        match self {
            Self::Firecracker => "firecracker",
            Self::CloudHypervisor => "cloud_hypervisor",
        }
    }

    /// The side that times touches.
    fn timed(self) -> How {
        match self {
            Self::Firecracker => How::EachPage,
            Self::CloudHypervisor => How::Demand,
        }
    }
}

/// One restore of a VM.
struct Restored {
    first_ms: f64,
    set_ms: f64,
    touches: Histogram,
}

/// Figures of one protocol by rounds.
#[derive(Default)]
struct Figures {
    first_page_ms: Vec<f64>,
    demand_ms: Vec<f64>,
    recorded_ms: Vec<f64>,
    touch_p50_us: Vec<f64>,
    touch_p99_us: Vec<f64>,
    /// Why there are none.
    reason: Option<String>,
}

/// The peers of a run.
pub(super) struct Peers<'a> {
    files: &'a Files,
    /// The path of `pagoda`.
    pagoda: &'a str,
    figures: [Figures; Protocol::ALL.len()],
}

impl<'a> Peers<'a> {
    pub(super) fn new(files: &'a Files, pagoda: &'a str) -> Self {
        Self { files, pagoda, figures: Default::default() }
    }

    /// Restores a VM on one side. A protocol that has failed is left out from then on.
    pub(super) fn run(&mut self, side: usize, counts: bool) {
        let (protocol, how) = SIDES[side];
        if self.figures[protocol as usize].reason.is_some() {
            return;
        }
        let restored = match protocol {
            Protocol::Firecracker => self.firecracker(how),
            Protocol::CloudHypervisor => self.cloud_hypervisor(how),
        };
        let figures = &mut self.figures[protocol as usize];
        match restored {
            Err(error) => figures.reason = Some(format!("{error:#}")),
            Ok(restored) if counts => figures.add(protocol, how, &restored),
            Ok(_) => {}
        }
    }

    /// The figures by protocol.
    pub(super) fn json(&self) -> Map<String, Value> {
        let mut json = Map::new();
        for (protocol, figures) in Protocol::ALL.into_iter().zip(&self.figures) {
            let key = protocol.key();
            json.insert(key.to_owned(), figures.json());
            json.extend(figures.reason.iter().map(|reason| (format!("{key}_reason"), json!(reason))));
        }
        json
    }

    fn firecracker(&self, how: How) -> anyhow::Result<Restored> {
        let files = self.files;
        let mode = match EntrustedUffd::open(Mode::Full) {
            Ok(_) => Mode::Full,
            Err(_) => Mode::UserOnly,
        };
        let (socket, image) = (files.path("socket"), files.path("image"));
        let (socket_text, image) = (socket.display().to_string(), image.display().to_string());
        let options: &[&str] = match how {
            How::Demand => &["--prefetch", "none"],
            How::EachPage => &["--prefetch", "none", "--around", "4K"],
            How::Recorded => &["--prefetch", "set"],
        };
        let words = [&[self.pagoda, "serve", "--socket", &socket_text][..], options, &[&image]].concat();
        let mut server = Running::start(&words.into_iter().map(str::to_owned).collect::<Vec<_>>())?;
        let size = firecracker::SIZES[1];
        let restore = |pages| firecracker::Vm::restore(&socket, mode, pages, 1, size);
        // A page of no working set, until whose end the handler has started. The VM stays: another
        // one at its addresses would be no VM of another process.
        let other = files.page_of_no_set();
        let waiting = when_served(&mut server, || restore(other..other + 1))?;
        files.check_word(other, waiting.parts[0].0.word(0))?;
        let begin = Instant::now();
        let vm = restore(0..files.len() / OS_PAGE)?;
        // With the last descriptor of it missing pages are zeroes: nothing waits for a dead server.
        drop((vm.uffd, waiting.uffd));
        let memory = &vm.parts[0].0;
        touch(files, begin, |page| Ok(memory.word(page * PAGE_WORDS)))
    }

    fn cloud_hypervisor(&self, how: How) -> anyhow::Result<Restored> {
        let files = self.files;
        let directory = files.path(if how == How::Recorded { "vm.recorded" } else { "vm" });
        let slots =
            [cloud_hypervisor::Slot { number: 0, gpa: 0, pages: files.len() / OS_PAGE, file_offset: 0 }];
        if !directory.exists() {
            make_snapshot(files, &directory, how, &slots).context("making a snapshot of the image")?;
        }
        let socket = directory.join("socket");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        let (socket, directory) = (socket.display().to_string(), directory.display().to_string());
        let words = [self.pagoda, "serve", "--offload", "--resume", "--socket", &socket, &directory];
        let mut server = Running::start(&words.map(str::to_owned))?;
        let restore = || {
            let mut vmm = cloud_hypervisor::Vmm::accept(listener)?;
            let begin = Instant::now();
            vmm.receive_all(&slots)?;
            vmm.answer(cloud_hypervisor::OK)?;
            vmm.request()?;
            vmm.answer(cloud_hypervisor::OK)?;
            touch(files, begin, |page| {
                let status = vmm.fault((page * OS_PAGE) as u64, OS_PAGE as u64)?;
                let mut word = [0; 8];
                vmm.memory[0].read_exact_at(&mut word, (page * OS_PAGE) as u64)?;
                if status == cloud_hypervisor::OK {
                    Ok(u64::from_le_bytes(word))
                } else {
                    Err(io::Error::other("the page was refused"))
                }
            })
        };
        restore().map_err(|error| if server.ended() { error.context(server.errors()) } else { error })
    }
}

impl Figures {
    fn add(&mut self, protocol: Protocol, how: How, restored: &Restored) {
        match how {
            How::Demand => {
                self.first_page_ms.push(restored.first_ms);
                self.demand_ms.push(restored.set_ms);
            }
            How::Recorded => self.recorded_ms.push(restored.set_ms),
            How::EachPage => {}
        }
        if how == protocol.timed() {
            let percentiles = restored.touches.percentiles();
            self.touch_p50_us.push(percentiles.p50);
            self.touch_p99_us.push(percentiles.p99);
        }
    }

    fn json(&self) -> Value {
        if self.reason.is_some() {
            return Value::Null;
        }
        let both = self.recorded_ms.iter().zip(&self.demand_ms);
        let ratios: Vec<f64> = both.map(|(recorded, demand)| recorded / demand).collect();
        json!({
            "first_page_ms": middle(&self.first_page_ms),
            "demand_ms": middle(&self.demand_ms),
            "recorded_ms": middle(&self.recorded_ms),
            "ratio_recorded_vs_demand": Measured::of(&ratios).map(|measured| measured.map(round)),
            "touch_p50_us": middle(&self.touch_p50_us),
            "touch_p99_us": middle(&self.touch_p99_us),
        })
    }
}

/// Touches the working set, whose VM has begun at `begin`, and checks each page by its first word.
fn touch(
    files: &Files,
    begin: Instant,
    mut word: impl FnMut(usize) -> io::Result<u64>,
) -> anyhow::Result<Restored> {
    let (mut first_ms, mut touches) = (None, Histogram::new());
    for page in files.set_pages() {
        let before = Instant::now();
        let found = word(page)?;
        touches.add(before.elapsed().as_nanos() as u64);
        first_ms.get_or_insert_with(|| begin.elapsed().as_secs_f64() * 1e3);
        files.check_word(page, found)?;
    }
    let set_ms = begin.elapsed().as_secs_f64() * 1e3;
    Ok(Restored { first_ms: first_ms.context("no working set")?, set_ms, touches })
}

/// The first VM of a server that has just been started.
fn when_served<T>(server: &mut Running, restore: impl Fn() -> io::Result<T>) -> anyhow::Result<T> {
    let begin = Instant::now();
    loop {
        match restore() {
            Ok(vm) => return Ok(vm),
            Err(_) if server.ended() => bail!("{}", server.errors()),
            Err(error)
                if begin.elapsed() > PATIENCE
                    || !matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    ) =>
            {
                return Err(error).context("restoring a VM from `pagoda serve`");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The directory of a snapshot of Cloud Hypervisor's, whose memory is the image.
fn make_snapshot(
    files: &Files,
    directory: &Path,
    how: How,
    slots: &[cloud_hypervisor::Slot],
) -> io::Result<()> {
    std::fs::create_dir(directory)?;
    std::fs::write(directory.join("migration_config.json"), cloud_hypervisor::config(slots))?;
    std::fs::write(directory.join("state.json"), "{}")?;
    let set: &[&str] = if how == How::Recorded { &[".ws"] } else { &[] };
    for end in [&["", ".key"], set].concat() {
        std::fs::hard_link(files.path(&format!("image{end}")), directory.join(format!("memory-0{end}")))?;
    }
    Ok(())
}
