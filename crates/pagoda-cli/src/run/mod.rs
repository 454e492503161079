//! `pagoda run`: a program within a memory budget.
//!
//! Wrong arguments are refused first; then any obstacle to enforcing the budget, which with
//! `--best-effort` is reported at the end instead. Then the program runs, and when it has ended its
//! counters are printed. This module must never let a run look managed that was not.

pub mod budget;
pub mod explain;
pub mod kernel;
mod password;
pub mod paths;
mod peak_sampler;
mod progress;
mod stats;
mod supervise;
mod table;
mod verdict;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use pagoda::config::{self, Config};
use pagoda::frames::zones::ZoneConfig;
use pagoda::stats::trace::Trace;
use pagoda::store::RemoteAddress;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_core::zone::ZonePolicy;
use pagoda_linux::mem::secret::Secret;
use pagoda_linux::process::child::{self, Inherited};
use pagoda_linux::process::heap;
use rustix::process::{Resource, getrlimit};

use crate::custody::{self, Custody};
use crate::doctor;
use crate::exit_error::ExitError;
use crate::output_file::OutputFile;
use crate::program;
use crate::program::preload::{self, Library};
use crate::trace::file::{self as trace_file, Header};
use budget::{Group, Size};
use kernel::Backend;
use paths::TreeFile;
use peak_sampler::{Peaks, Sampler};
use progress::{Progress, When};
use stats::{Process, StatsFile};
use supervise::{Ended, Failed};
use table::Summary;
use verdict::{failed_below, not_enforced, verdict, was_silent};

/// Run a program within a memory budget.
///
/// Everything anonymous that the program holds stays within the budget; what does not fit is
/// compressed, and then goes to an unlinked file. Standard input, the terminal and signals reach
/// the program; the exit status is the program's, or 128 and the signal's number. Pagoda's own
/// errors are 125, a program that can't be executed 126, one that was not found 127. If pagoda
/// itself is killed the program goes on within its budget.
#[derive(clap::Args)]
pub struct RunArgs {
    /// The memory budget, like 512M or 2G (binary), or like 75% of what this process may have: the
    /// limit of its control group, or the machine's memory. With zones it is all of them together,
    /// and need not be said. Where the group's limit leaves less, that is the budget.
    #[arg(long, short, value_name = "SIZE", allow_negative_numbers = true, required_unless_present_any = ["zone", "explain"])]
    memory: Option<Size>,
    /// Divides the budget among several kinds of memory: NAME=SIZE, NAME=SIZE@nodeN for memory of a
    /// NUMA node, or NAME=SIZE@remote for memory that is used when the others have none to spare.
    /// A weight may follow the size, like fast=1G*3. May be given up to 4 times.
    #[arg(long, value_name = "ZONE")]
    zone: Vec<ZoneConfig>,
    /// How zones share allocations: fair, first-fit, reset-on-failure, first-version, global-list
    /// or weighted-interleave, by the zones' weights [default: fair].
    #[arg(long, value_name = "NAME", default_value_t, hide_default_value = true)]
    zone_policy: ZonePolicy,
    /// The keeper of the budget. By the kernel's swap also static and setuid programs and those of
    /// another C library are served, and any memory but locked one. A run by it ends all processes
    /// that the program leaves behind, and the program if pagoda is killed; there is one at a time.
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    backend: Backend,
    /// The unit of management: 4K, 16K, 64K or 2M.
    #[arg(long, value_name = "SIZE", default_value_t)]
    base_page: BasePage,
    /// Where the store's file is made; on a disk, not tmpfs [default: $PAGODA_STORE or /var/tmp].
    #[arg(long, value_name = "DIR")]
    store_dir: Option<PathBuf>,
    /// How large that file may grow [default: nine tenths of the free space there]; 0 for none.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    file_limit: Option<Bytes>,
    /// Have several requests to that file in flight at once, by io_uring, where the kernel allows
    /// it. Not for a program that puts a system call filter over all of its threads, which may end
    /// it for such a call.
    #[arg(long)]
    io_uring: bool,
    /// A Redis or Valkey server, or any node of a cluster, for what the file does not take:
    /// redis://[USER[:PASSWORD]@]ADDRESS:PORT[/DATABASE], the address a literal one. It must not
    /// evict; content there is deleted when its program has ended. A password that is
    /// given here every user of this machine can see: give it by --remote-password-file.
    #[arg(long, value_name = "URL")]
    remote_store: Option<RemoteAddress>,
    /// The server's password is this file's first line.
    #[arg(long, value_name = "FILE", requires = "remote_store")]
    remote_password_file: Option<PathBuf>,
    /// How much each process may hold there [default: no limit but the server's].
    #[arg(long, value_name = "SIZE", requires = "remote_store", allow_negative_numbers = true)]
    remote_limit: Option<Bytes>,
    /// Bring in only the faulted base page, also for sequential access: without this, up to four
    /// base pages more of the compressed memory come with a fault.
    #[arg(long)]
    no_fetch_ahead: bool,
    /// Print no table at the end. Errors, and a budget that was not enforced, are still said.
    #[arg(long, short)]
    quiet: bool,
    /// Say below the table what each of its rows means, and what to do next. Without a program: of
    /// all rows, on standard output.
    #[arg(long, conflicts_with = "quiet")]
    explain: bool,
    /// One line on the terminal while the program runs: memory, faults a second, whether it
    /// thrashes, time. By default where standard error is a terminal and standard output is none,
    /// unless --quiet is given.
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    progress: Option<When>,
    /// Write all counters to this file at the end, as JSON.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Write all faults and evictions to this file at the end, by address and time;
    /// `pagoda trace FILE` shows them. The first 4 million are kept, in memory beyond the budget,
    /// 16 bytes each.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Before a process dumps core, swap everything in, so that the dump is whole: beyond the
    /// budget, as far as the machine has room, for a minute at most.
    #[arg(long)]
    core: bool,
    /// Where the budget can't be enforced, run the program without one, and say so at the end.
    #[arg(long)]
    best_effort: bool,
    /// The program and its arguments.
    #[arg(required_unless_present = "explain", trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The parts of a managed run beyond the program itself.
struct Managed {
    preload: Library,
    tree: TreeFile,
    custody: Custody,
    config: Config,
    /// The remote store's password, for managed processes; the configuration says where it is.
    _password: Option<Secret>,
    /// Goes with this value, and its memory with the last process that writes to it.
    trace: Option<Trace>,
}

/// Runs it, and returns the exit status for this process.
pub fn run(args: &RunArgs) -> Result<ExitCode, ExitError> {
    if args.explain && args.command.is_empty() {
        // To a closed standard output nothing can be said.
        let _ = std::io::stdout().write_all(explain::explain(None).as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    heap::share_between_threads();
    // As long as a signal still ends this process: the password's file may be a pipe without a
    // writer.
    let remote = remote(args)?;
    // Before there is a file to remove: from here on no signal ends this process.
    let inherited = child::block_signals()
        .map_err(|error| ExitError::own(format!("could not block signals ({error}); please report this")))?;
    let group = Group::look();
    let asked = group.asked(args.memory, &args.zone)?;
    let Some(name) = args.command.first() else {
        return Err(ExitError::own("no program was named; name one after `--`"));
    };
    let path = program::find(name, std::env::var_os("PATH").as_deref())?;
    let open = |path: &Option<PathBuf>, option| {
        path.as_deref().map(|path| OutputFile::open(path, option)).transpose()
    };
    let (stats, trace) = (open(&args.stats, "--stats")?, open(&args.trace, "--trace")?);
    let run = Run { args, path, asked, group, stats, trace, inherited };
    let by_kernel = match args.backend {
        Backend::Engine => None,
        Backend::Kernel => {
            Some(kernel::available(args).map_err(|lacks| format!("--backend kernel: {lacks}")))
        }
        Backend::Auto => fits_engine(&run.path).err().map(|why| match kernel::available(args) {
            Ok(places) => {
                crate::say(format_args!("{why}; so the kernel's swap keeps the budget (--backend kernel)"));
                Ok(places)
            }
            Err(lacks) => {
                Err(format!("{why}; the kernel's swap (--backend kernel) can't serve it either: {lacks}"))
            }
        }),
    };
    let refusal = match by_kernel {
        Some(Ok(places)) => return kernel::run(run, &places),
        Some(Err(refusal)) => ExitError::own(refusal),
        None => match prepare(args, &run, remote) {
            Ok(managed) => return run.managed(managed),
            Err(refusal) => refusal,
        },
    };
    if args.best_effort { run.unmanaged(&refusal) } else { Err(refusal) }
}

/// Whether the engine gets into the program, and this machine lets it evict. The error is why not.
fn fits_engine(path: &Path) -> Result<(), ExitError> {
    program::check(path).map_err(ExitError::own)?;
    machine_allows()
}

/// The remote store, with its password.
fn remote(args: &RunArgs) -> Result<Option<RemoteAddress>, ExitError> {
    let mut remote = args.remote_store.clone();
    if let (Some(address), Some(file)) = (&mut remote, &args.remote_password_file) {
        if address.password.is_some() {
            return Err(ExitError::own("--remote-store has a password; leave it to --remote-password-file"));
        }
        address.password = Some(password::first_line(file)?);
    }
    let password = remote.as_ref().and_then(|address| address.password.as_ref());
    if password.is_some_and(|password| password.len() > config::PASSWORD_BYTES_MAX) {
        return Err(ExitError::own(
            "--remote-store: its password is too long; give one of 1024 bytes at most",
        ));
    }
    Ok(remote)
}

/// Checks all that the engine needs, cheapest first.
fn prepare(args: &RunArgs, run: &Run, remote: Option<RemoteAddress>) -> Result<Managed, ExitError> {
    fits_engine(&run.path)?;
    if args.core {
        dumps_core()?;
    }
    let (budget, smaller) = run.group.fitting(run.asked, &args.zone)?;
    let preload = preload_library()?;
    let store_directory = store_directory(args.store_dir.as_deref(), args.file_limit)?;
    let file_limit = args.file_limit.map_or_else(|| paths::default_file_limit(&store_directory), Ok)?;
    let tree = TreeFile::create(std::env::var_os("XDG_RUNTIME_DIR"), budget, args.base_page)?;
    let trace = args.trace.as_ref().map(|_| Trace::create()).transpose().map_err(|error| {
        ExitError::own(format!("could not make a file in memory ({error}); free some, or leave --trace out"))
    })?;
    let mut remote = remote;
    let password = remote.as_mut().and_then(|address| address.password.take());
    let password = password.map(|password| Secret::create(c"pagoda-password", password.as_bytes()));
    let password = password.transpose().map_err(|error| {
        ExitError::own(format!(
            "could not hand the remote store's password over ({error}); raise `ulimit -n` by 16"
        ))
    })?;
    let config = Config {
        budget,
        base_page: args.base_page,
        counters: Some(tree.path().to_owned()),
        store_directory,
        file_limit,
        io_uring: args.io_uring,
        best_effort: args.best_effort,
        fetch_ahead: !args.no_fetch_ahead,
        remote,
        remote_limit: args.remote_limit.unwrap_or(Bytes::new(u64::MAX)),
        remote_password: password.as_ref().map(Secret::path),
        zones: args.zone.clone(),
        zone_policy: args.zone_policy,
        trace: trace.as_ref().map(Trace::path),
        is_address_limited: is_address_limited(),
        core: args.core,
        give_up: config::GIVE_UP,
    };
    fits(&config)?;
    // Said even with --quiet: it differs from the request.
    smaller.iter().for_each(crate::say);
    let custody = Custody::open(tree.path());
    Ok(Managed { preload, tree, custody, config, _password: password, trace })
}

fn preload_library() -> Result<Library, ExitError> {
    preload::find(std::env::var_os(preload::ENV).as_deref())
}

fn store_directory(named: Option<&Path>, file_limit: Option<Bytes>) -> Result<PathBuf, ExitError> {
    paths::store_directory(named, std::env::var_os(paths::STORE_ENV), file_limit)
}

/// What a run takes beside the kernel's part, each tried as a run without options does.
pub struct Installation {
    /// The library that is loaded into the program.
    pub preload: Result<Library, ExitError>,
    /// Where the store's file goes.
    pub store_directory: Result<PathBuf, ExitError>,
    /// Whether this process may make the control groups of a run by the kernel's swap.
    pub kernel_groups: Result<(), String>,
}

impl Installation {
    /// Tries all. Nothing is left behind but the file of a library that is inside this command,
    /// as after a run.
    pub fn find() -> Self {
        Self {
            preload: preload_library(),
            store_directory: store_directory(None, None),
            kernel_groups: kernel::places().map(drop),
        }
    }
}

/// Whether this command has a limit of address space, which the program inherits.
fn is_address_limited() -> bool {
    let limit = getrlimit(Resource::As);
    limit.current.or(limit.maximum).is_some()
}

/// Whether this machine and this user's limit let a process dump core.
fn dumps_core() -> Result<(), ExitError> {
    let is_piped = std::fs::read("/proc/sys/kernel/core_pattern").is_ok_and(|text| text.starts_with(b"|"));
    if !is_piped && getrlimit(Resource::Core).current == Some(0) {
        return Err(ExitError::own(
            "--core: no process would dump core, its limit is 0; run `ulimit -c unlimited` before, or leave --core out",
        ));
    }
    Ok(())
}

/// Whether a managed process can keep the configuration, with the password in it.
fn fits(config: &Config) -> Result<(), ExitError> {
    let mut config = config.clone();
    config.keep_password();
    let bytes = config.to_env().len();
    if bytes > config::ENV_BYTES_MAX {
        return Err(ExitError::own(format!(
            "could not hand the options over: they take {bytes} bytes, and {} is the most; give a shorter --store-dir or \
             --remote-store, or XDG_RUNTIME_DIR",
            config::ENV_BYTES_MAX
        )));
    }
    Ok(())
}

/// Whether this machine lets the engine evict safely.
fn machine_allows() -> Result<(), ExitError> {
    pagoda_linux::probe::can_run().map(drop).map_err(|missing| {
        let mend = doctor::in_one_line(&missing).map_or_else(String::new, |mend| format!("{mend}; "));
        let others = "`pagoda doctor` says all mends, --best-effort runs without a budget";
        ExitError::own(format!("{missing}; {mend}{others}"))
    })
}

struct Run<'a> {
    args: &'a RunArgs,
    path: PathBuf,
    asked: Bytes,
    group: Group,
    stats: Option<OutputFile>,
    trace: Option<OutputFile>,
    inherited: Inherited,
}

impl Run<'_> {
    fn managed(self, managed: Managed) -> Result<ExitCode, ExitError> {
        let mut command = self.command();
        let preloaded = std::env::var_os("LD_PRELOAD");
        command.env("LD_PRELOAD", preload::value(&managed.preload.path, preloaded.as_deref()));
        command.env(config::ENV, managed.config.to_env());
        let tree = managed.tree.tree();
        let (mut sampler, mut serving) = (None, None);
        // After the program: until then this process may have one thread only.
        let (ended, wall) = self.supervise(&mut command, || {
            let default = if self.args.quiet { When::Never } else { When::Auto };
            sampler = Sampler::start(tree, Progress::new(self.args.progress.unwrap_or(default)));
            // Without its password the server deletes nothing, and content expires.
            serving = Some(managed.custody.start(managed.config.remote_with_password().ok().flatten()));
        })?;
        let peaks = sampler.map_or_else(Peaks::default, Sampler::finish);
        let outlived =
            serving.and_then(|serving| serving.map_or_else(Some, |serving| custody::told(serving.finish())));
        let (counters, gauges_at_peak) = peaks.complete(tree.totals());
        let first = tree.first().unwrap_or_default();
        // A program that catches the signal of the mark itself is known by its silence. One that
        // never looked has no mark.
        let is_replaced =
            ended.is_replaced && first.last_look_ns != 0 || peaks.replaced && was_silent(&first);
        let mut verdict = verdict(ended, &first, is_replaced, self.args.best_effort);
        if verdict.line.is_none() {
            verdict.line = tree.failure().map(failed_below).or_else(|| self.group.killed()).or(outlived);
        }
        let base_page = self.args.base_page.bytes() as u64;
        let header = managed.trace.as_ref().map(|trace| {
            let header =
                Header::new(shown(&self.args.command), counters.budget_bytes, base_page, micros(wall));
            header.counted(trace, counters.untraced)
        });
        if verdict.table && !self.args.quiet {
            let program = self.args.command[0].to_string_lossy();
            let table = table::render(&Summary {
                program: &program,
                zones: &self.args.zone,
                ended,
                is_replaced,
                wall,
                counters,
                budget_most: tree.budget_most(),
                gauges_at_peak,
                trace: header.as_ref(),
            });
            crate::print_error(&(table.clone() + &foot(&table, self.args.explain)));
        }
        if let Some(line) = &verdict.line {
            crate::say(line);
        }
        if let Some(file) = self.stats {
            let stats = StatsFile::new(shown(&self.args.command), ended, wall, verdict.status);
            tree.sweep();
            let processes = tree.members().map(|(_, counters)| Process::new(&counters)).collect();
            let stats =
                stats.zones(&self.args.zone, &counters).counters(counters, &tree.latencies(), processes);
            let stats = stats.exit_status(verdict.exit_status).group(self.asked, self.group.stats());
            verdict.line.into_iter().fold(stats, StatsFile::reason).write_to(file);
        }
        if let (Some(file), Some(trace), Some(header)) = (self.trace, &managed.trace, header) {
            file.write(|out| trace_file::write(out, &header, trace.events().take(header.events as usize)));
        }
        Ok(ExitCode::from(verdict.exit_status))
    }

    fn unmanaged(self, refusal: &ExitError) -> Result<ExitCode, ExitError> {
        let (ended, wall) = self.supervise(&mut self.command(), || ())?;
        crate::say(not_enforced(refusal));
        self.group.killed().iter().for_each(crate::say);
        if let Some(file) = self.stats {
            let stats = StatsFile::new(shown(&self.args.command), ended, wall, "unmanaged");
            stats.reason(refusal.to_string()).group(self.asked, self.group.stats()).write_to(file);
        }
        if let Some(file) = self.trace {
            // Nothing was traced.
            let base_page = self.args.base_page.bytes() as u64;
            let header = Header::new(shown(&self.args.command), self.asked.get(), base_page, micros(wall));
            file.write(|out| trace_file::write(out, &header, std::iter::empty()));
        }
        Ok(ExitCode::from(ended.end.status()))
    }

    fn command(&self) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&self.path);
        command.arg0(&self.args.command[0]).args(&self.args.command[1..]);
        command
    }

    fn supervise(
        &self,
        command: &mut Command,
        started: impl FnOnce(),
    ) -> Result<(Ended, Duration), ExitError> {
        let start = Instant::now();
        let shown = self.path.display();
        let ended = supervise::run(command, &self.inherited, started).map_err(|failed| match failed {
            Failed::Start(error) if error.kind() == std::io::ErrorKind::NotFound => {
                ExitError::not_found(format!(
                    "{shown} is there and its interpreter or loader is not ({error}); install what it names"
                ))
            }
            Failed::Start(error) => {
                ExitError::not_executable(format!("{shown} can't be executed ({error}); check it"))
            }
            Failed::Wait(error) => ExitError::own(format!(
                "lost sight of {shown}, which may go on ({error}); please report this"
            )),
        })?;
        Ok((ended, start.elapsed()))
    }
}

/// What follows the table: its explanation, or on a terminal how to get it.
fn foot(table: &str, is_explained: bool) -> String {
    match is_explained {
        true => explain::explain(Some(table)),
        false if std::io::stderr().is_terminal() => {
            "  `pagoda run --explain` says what the rows mean, and what to do next\n".to_owned()
        }
        false => String::new(),
    }
}

fn micros(wall: Duration) -> u64 {
    u64::try_from(wall.as_micros()).unwrap_or(u64::MAX)
}

fn shown(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}
