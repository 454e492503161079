//! `pagoda serve`: a memory image for virtual machines that restore from it.
//!
//! The command is a supervisor. Its handler is this program again, with a hidden option and the
//! channel as its standard input. This module must never read what a VMM sends.

mod offload;
mod table;

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use pagoda_core::size::Bytes;
use pagoda_image::{ImageError, load_key};
use pagoda_linux::io::local_socket::{connect_to, listen_at};
use pagoda_serve::handler::{self, Prefetch};
use pagoda_serve::source::cache::Cached;
use pagoda_serve::source::image::ImageSource;
use pagoda_serve::source::{RawFile, Source};
use pagoda_serve::stats::Stats;
use pagoda_serve::supervisor::{Options, Supervisor, Wish};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use signal_hook::flag::register;

use crate::exit_error::ExitError;
use crate::remote_image::{self, RemoteArgs, is_remote, shown};

/// Serve a memory image to virtual machines that restore from it, page by page.
///
/// Firecracker connects to the socket when it loads a snapshot with a `Uffd` memory backend, and
/// runs at once; its pages come when it touches them. Many VMs are served at a time. If the handler
/// dies another one takes its VMs over. SIGTERM gives each VM all of its memory, and ends then; a
/// second one ends at once. SIGUSR1 prints a table.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// The memory of the snapshot: an image of `pagoda image pack`, or a raw memory file. An image
    /// may lie on a server: http://…, https://… or s3://BUCKET/KEY. With --offload the directory of
    /// the snapshot.
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Where VMMs connect. Nothing else may be there. With --offload where the VMM listens.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The key of the image, in a file; else the one beside the image.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// How much of an image is kept unpacked, for all VMs together.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    cache: Bytes,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Restore one VM of Cloud Hypervisor's, which waits with `receive-migration` at the socket.
    #[arg(long)]
    offload: bool,
    /// Let that VM run at once, and do not leave it paused.
    #[arg(long, requires = "offload")]
    resume: bool,
    /// Who may connect, as for chmod: 600 is this user alone, 660 its group, too.
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    mode: u32,
    /// How much a fault brings: a power of two from 4K to 2M.
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = around)]
    around: Bytes,
    /// The part that comes before it is touched: none of it, the recorded working set, or all.
    #[arg(long, value_name = "WHAT", default_value = "set")]
    prefetch: What,
    /// Record the pages that the first VM touches, beside the image, as the working set of later
    /// ones.
    #[arg(long)]
    record: bool,
    /// VMs at a time; more are turned away.
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    vms: u32,
    /// How long the handler may give no sign of life before another takes its place, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=3600))]
    watchdog: u32,
    /// Write all counts to this file each second, as JSON.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Print all counts as JSON at the end, and no table.
    #[arg(long)]
    json: bool,
    /// Be the handler of a supervisor that serves this content.
    #[arg(long, hide = true)]
    handler: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    None,
    Set,
    All,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "give three digits from 0 to 7, as 660".to_owned())
}

fn around(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse().map_err(|error: pagoda_core::size::SizeError| error.to_string())?;
    let fits = bytes.get().is_power_of_two() && (4 << 10..=2 << 20).contains(&bytes.get());
    if fits { Ok(bytes) } else { Err("give a power of two from 4K to 2M".to_owned()) }
}

/// Opens a memory: an image behind the cache, or a raw file.
fn open(args: &ServeArgs, path: &Path) -> Result<Box<dyn Source>, ExitError> {
    let refused =
        |why: &dyn std::fmt::Display| ExitError::own(format_args!("could not serve {}: {why}", shown(path)));
    if args.record && is_remote(path) {
        return Err(refused(&"--record writes beside the image; record with a copy of it on this machine"));
    }
    let key = args.key.as_deref().map(load_key).transpose().map_err(|error| refused(&error))?;
    match remote_image::open(path, key, None, &args.remote) {
        Ok(image) => Ok(Box::new(Cached::new(ImageSource::new(image), args.cache))),
        Err(ImageError::NotAnImage { .. }) if !is_remote(path) => match RawFile::open(path) {
            Ok(raw) => Ok(Box::new(raw)),
            Err(error) => {
                Err(refused(&format_args!("it can't be read ({error}); give the memory file of a snapshot")))
            }
        },
        Err(error) => Err(refused(&error)),
    }
}

/// Serves it.
pub fn run(args: &ServeArgs) -> Result<ExitCode, ExitError> {
    if args.offload {
        return offload::run(args);
    }
    let source: Arc<dyn Source> = open(args, &args.image)?.into();
    // Each VM takes descriptors.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Some(identity) = &args.handler {
        return be_the_handler(args, source, identity);
    }
    let (len_bytes, identity) = (source.len_bytes(), source.identity());
    drop(source);
    let failed = |error: io::Error| {
        ExitError::own(format_args!("could not watch for signals ({error}); please report this"))
    };
    let (ends, shows) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        register(signal.as_raw(), Arc::clone(&ends)).map_err(failed)?;
    }
    register(Signal::USR1.as_raw(), Arc::clone(&shows)).map_err(failed)?;
    let listener = listen(&args.socket, args.mode)?;
    let options = Options {
        listener,
        len_bytes,
        vms_most: args.vms as usize,
        patience: Duration::from_secs(args.watchdog.into()),
        start: &|channel| start_handler(channel, &identity),
        say: &|line| crate::say(line),
    };
    crate::say(format_args!("serving {} on {}", shown(&args.image), args.socket.display()));
    let mut supervisor = Supervisor::new(options);
    let mut watch = Watch { args, ends, shows, drains: false, is_cut_short: false, written: None };
    let done = supervisor.run(&mut |supervisor| watch.look(supervisor));
    // The next one may have made its own there: that is not removed.
    let _ = fs::remove_file(&args.socket);
    let stats = supervisor.stats();
    watch.write(&stats);
    done.map_err(|error| ExitError::own(format_args!("no handler could be started ({error}); try again")))?;
    print(args, &stats);
    Ok(if watch.is_cut_short { ExitCode::from(128 + 15) } else { ExitCode::SUCCESS })
}

fn print(args: &ServeArgs, stats: &Stats) {
    let text = if args.json { json(stats) } else { table::render(stats) };
    // To a closed standard output nothing can be said.
    let _ = io::stdout().write_all(text.as_bytes());
}

fn json(stats: &Stats) -> String {
    serde_json::to_string(stats).expect("plain numbers") + "\n"
}

/// What the user asks of a running supervisor.
struct Watch<'a> {
    args: &'a ServeArgs,
    ends: Arc<AtomicBool>,
    shows: Arc<AtomicBool>,
    drains: bool,
    is_cut_short: bool,
    written: Option<Instant>,
}

impl Watch<'_> {
    fn look(&mut self, supervisor: &Supervisor) -> Wish {
        if self.shows.swap(false, Ordering::Relaxed) {
            crate::print_error(&table::render(&supervisor.stats()));
        }
        if self.args.stats.is_some() && self.written.is_none_or(|at| at.elapsed() >= Duration::from_secs(1)) {
            self.written = Some(Instant::now());
            self.write(&supervisor.stats());
        }
        match (self.ends.swap(false, Ordering::Relaxed), self.drains) {
            (false, _) => Wish::GoOn,
            (true, false) => {
                self.drains = true;
                crate::say(
                    "each VM gets all of its memory before this ends; a second signal ends it at once",
                );
                Wish::Drain
            }
            (true, true) => {
                self.is_cut_short = true;
                Wish::Stop
            }
        }
    }

    /// Replaces the file as a whole, so that no reader sees half of it.
    fn write(&self, stats: &Stats) {
        let Some(path) = &self.args.stats else { return };
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(".unfinished");
        if let Err(error) = fs::write(&unfinished, json(stats)).and_then(|()| fs::rename(&unfinished, path)) {
            crate::say(format_args!(
                "could not write {} ({error}); give another file: --stats FILE",
                path.display()
            ));
        }
    }
}

/// Listens at `path`. A socket there that none listens at is of a run that was killed.
fn listen(path: &Path, mode: u32) -> Result<OwnedFd, ExitError> {
    let mut listening = listen_at(path, mode);
    if listening.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse) {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
        let is_left = connect_to(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        if is_socket && is_left && fs::remove_file(path).is_ok() {
            listening = listen_at(path, mode);
        }
    }
    listening.map_err(|error| {
        let what = if error.kind() == ErrorKind::AddrInUse {
            "something is there already"
        } else {
            "no socket can be made there"
        };
        ExitError::own(format_args!(
            "could not listen at {}: {what} ({error}); give another path: --socket PATH",
            path.display()
        ))
    })
}

/// Starts this program again, in a process group of its own: a terminal's keys are for the
/// supervisor.
fn start_handler(channel: OwnedFd, identity: &str) -> io::Result<Child> {
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.arg("serve").arg("--handler").arg(identity).args(arguments.skip(1));
    command.stdin(Stdio::from(channel)).stdout(Stdio::null()).process_group(0).spawn()
}

fn be_the_handler(args: &ServeArgs, source: Arc<dyn Source>, identity: &str) -> Result<ExitCode, ExitError> {
    if source.identity() != identity {
        return Err(ExitError::own(format_args!(
            "{} is not what it was when its VMs were restored; put the former one back, and they go on",
            shown(&args.image)
        )));
    }
    let channel = io::stdin().as_fd().try_clone_to_owned().map_err(|error| {
        ExitError::own(format_args!(
            "the handler has no channel ({error}); leave --handler to the supervisor"
        ))
    })?;
    let prefetch = match args.prefetch {
        What::None => Prefetch::None,
        What::Set => Prefetch::Set,
        What::All => Prefetch::All,
    };
    let options = handler::Options { around_bytes: args.around.as_usize(), prefetch, records: args.record };
    handler::run(&channel, source, options, |line| crate::say(line));
    Ok(ExitCode::SUCCESS)
}
