//! One row for each thing of the machine that matters to Pagoda: whether it is there, and the
//! consequence.
//!
//! Pure: a report goes in, rows come out. A row must never promise more than the probe tried.

mod userfault;

use pagoda_core::page::HUGE_FRAME;
use pagoda_linux::probe::{Machine, Report, ZramModule};
use pagoda_linux::procfs::pagemap::ScanMethod;
use serde::Serialize;

use crate::exit_error::ExitError;
use crate::program::preload::Library;
use crate::run::Installation;

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All of it.
    Ok,
    /// Some of it, or in another way.
    Limited,
    /// Not at all.
    Missing,
}

impl State {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }

    const fn of(there: bool) -> Self {
        if there { Self::Ok } else { Self::Missing }
    }
}

/// One thing of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// A name for programs, which stays the same from version to version.
    pub id: &'static str,
    /// A name for people.
    pub what: &'static str,
    pub state: State,
    /// The probe's finding.
    pub found: String,
    /// The consequence for Pagoda.
    pub consequence: &'static str,
}

/// The rows of a report and of an installation, most important first.
pub fn rows(report: &Report, installation: &Installation) -> Vec<Row> {
    let mut rows = userfault::rows(&report.userfault);
    rows.push(kernel(report));
    rows.extend(installed(installation));
    rows.push(kernel_row(report, installation));
    rows.push(scan(report));
    rows.extend(huge_pages(&report.machine));
    rows.extend(limits(&report.machine));
    rows.extend(baselines(&report.machine));
    rows
}

fn row(
    (id, what): (&'static str, &'static str),
    state: State,
    found: impl Into<String>,
    consequences: [&'static str; 2],
) -> Row {
    let consequence = consequences[usize::from(state != State::Ok)];
    Row { id, what, state, found: found.into(), consequence }
}

fn kernel(report: &Report) -> Row {
    /// The first with `UFFDIO_MOVE`. A distributor may have brought that to an older one: the trial
    /// counts.
    const REQUIRED: (u32, u32) = (6, 8);
    let machine = &report.machine;
    let state = State::of(machine.kernel.number >= REQUIRED || report.userfault.moved == Some(Ok(())));
    row(
        ("kernel", "kernel"),
        state,
        &machine.kernel.release,
        ["new enough", "Linux 6.8 or later is required"],
    )
}

/// Whether the kernel's swap can keep the budget of a run. The error names the thing that is
/// missing.
pub fn kernel_swap(report: &Report, installation: &Installation) -> Result<(), String> {
    installation.kernel_groups.clone()?;
    match report.machine.zram.module {
        ZramModule::Loaded | ZramModule::Loadable => Ok(()),
        ZramModule::Absent => Err("the kernel has no zram".to_owned()),
    }
}

fn kernel_row(report: &Report, installation: &Installation) -> Row {
    let swap = kernel_swap(report, installation);
    row(
        ("kernel_swap", "run by the kernel's swap"),
        if swap.is_ok() { State::Ok } else { State::Limited },
        swap.map_or_else(|missing| missing, |()| "root, control groups of version 1, zram".to_owned()),
        [
            "serves programs that the engine can't get into, as static ones",
            "programs that the engine can't get into are refused, as static ones",
        ],
    )
}

fn installed(Installation { preload, store_directory, .. }: &Installation) -> [Row; 2] {
    let tried = |tried: Result<String, &ExitError>| match tried {
        Ok(found) => (State::Ok, found),
        Err(error) => (State::Missing, error.to_string()),
    };
    let library = |library: &Library| format!("{} ({})", library.path.display(), library.origin);
    let (preload, preload_text) = tried(preload.as_ref().map(library));
    let (store, store_text) = tried(store_directory.as_ref().map(|path| path.display().to_string()));
    [
        row(
            ("preload", "preload library"),
            preload,
            preload_text,
            ["a run loads it into the program", "no program can be run"],
        ),
        row(
            ("direct_io", "store directory"),
            store,
            store_text,
            [
                "a file store costs no page cache",
                "refused for what is spilled: a run needs another directory, or none",
            ],
        ),
    ]
}

fn scan(report: &Report) -> Row {
    let (state, found) = match &report.scan {
        Ok(ScanMethod::Scan) => (State::Ok, "PAGEMAP_SCAN".to_owned()),
        Ok(ScanMethod::Entries) => (State::Limited, "/proc/self/pagemap, without PAGEMAP_SCAN".to_owned()),
        Err(error) => (State::Missing, format!("/proc/self/pagemap: {error}")),
    };
    row(
        ("pagemap", "scan of page tables"),
        state,
        found,
        ["present memory is found fast", "memory of a running program is found slowly, or not at all"],
    )
}

fn huge_pages(machine: &Machine) -> [Row; 3] {
    let enabled = machine.thp_enabled.as_deref();
    let thp = match enabled {
        Some("always" | "madvise") => State::Ok,
        Some(_) => State::Limited,
        None => State::Missing,
    };
    let thp_text = format!(
        "enabled: {}, defrag: {}",
        enabled.unwrap_or("not in this kernel"),
        machine.thp_defrag.as_deref().unwrap_or("unknown")
    );
    // The classic size has a row of its own.
    let others = || machine.mthp.iter().filter(|size| size.size.as_usize() != HUGE_FRAME);
    let mthp = others().filter(|size| size.mode != "never");
    let mthp: Vec<_> = mthp.map(|size| format!("{} {}", size.size, size.mode)).collect();
    let mthp_text = match (others().next().is_none(), mthp.is_empty()) {
        (true, _) => "not in this kernel".to_owned(),
        (_, true) => format!("{} sizes, all never", others().count()),
        _ => mthp.join(", "),
    };
    let pools = machine.hugetlb.iter().filter(|pool| pool.pages > 0);
    let pools: Vec<_> =
        pools.map(|it| format!("{} × {}, {} free", it.pages, it.page, it.free_pages)).collect();
    let pools_text = if pools.is_empty() { "no pages reserved".to_owned() } else { pools.join("; ") };
    [
        row(
            ("thp", "transparent huge pages"),
            thp,
            thp_text,
            ["huge frames can be had", "every frame is of 4 KiB pages: slower faults"],
        ),
        row(
            ("mthp", "huge pages of other sizes"),
            if mthp.is_empty() { State::Limited } else { State::Ok },
            mthp_text,
            ["pagoda bench can compare with them", "pagoda bench can't compare with the kernel's own"],
        ),
        row(
            ("hugetlb", "hugetlb pools"),
            // No user here wants any: to have none is no lack.
            State::Ok,
            pools_text,
            ["none: Pagoda leaves them alone", ""],
        ),
    ]
}

fn limits(machine: &Machine) -> [Row; 4] {
    /// The kernel's default. A program that is managed has more mappings than before: moves split
    /// them.
    const MAPPINGS_DEFAULT: u64 = 65_530;
    /// Descriptors of the engine, with room for the program's own.
    const OPEN_FILES_MIN: u64 = 256;
    let limits = &machine.limits;
    let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let address_space = limits.address_space.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let locked = limits.locked.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let limited = |within: bool| if within { State::Ok } else { State::Limited };
    [
        row(
            ("limits.mappings", "vm.max_map_count"),
            limited(limits.mappings.is_none_or(|limit| limit >= MAPPINGS_DEFAULT)),
            number(limits.mappings),
            ["enough for most programs", "programs with many mappings may run out of them"],
        ),
        row(
            ("limits.open_files", "limit of open files"),
            limited(limits.open_files.is_none_or(|limit| limit >= OPEN_FILES_MIN)),
            number(limits.open_files),
            ["enough", "the engine's descriptors may not fit beside the program's"],
        ),
        row(
            ("limits.address_space", "limit of address space"),
            limited(limits.address_space.is_none()),
            address_space,
            ["arenas can be reserved", "reserved arenas count against it: the program may run out"],
        ),
        row(
            ("limits.locked", "limit of locked memory"),
            State::Ok,
            locked,
            ["none: locked memory is left in place", ""],
        ),
    ]
}

fn baselines(machine: &Machine) -> [Row; 7] {
    let perf = machine.perf.map_or_else(|error| error.to_string(), |()| "cycles can be counted".to_owned());
    let devices: Vec<_> = machine.zram.devices.iter().map(|(name, size)| format!("{name} {size}")).collect();
    let (zram, zram_text) = match machine.zram.module {
        ZramModule::Loaded if devices.is_empty() => (State::Ok, "module loaded, no device".to_owned()),
        ZramModule::Loaded => (State::Ok, devices.join(", ")),
        ZramModule::Loadable => (State::Limited, "module not loaded".to_owned()),
        ZramModule::Absent => (State::Missing, "no module for this kernel".to_owned()),
    };
    let (memcg, memcg_text) = match &machine.memcg {
        Some(it) if it.writable => (State::Ok, format!("{:?}, {}", it.version, it.path.display())),
        Some(it) => (State::Limited, format!("{:?}, {}, read only", it.version, it.path.display())),
        None => (State::Missing, "no memory controller".to_owned()),
    };
    let swap: Vec<_> = machine.swap.iter().map(|it| format!("{} {}", it.name, it.size)).collect();
    let swap_text = if swap.is_empty() { "none".to_owned() } else { swap.join(", ") };
    let halt_poll = machine.halt_poll_ns;
    let halt_poll_text = halt_poll.map_or("not used here".to_owned(), |ns| format!("{ns} ns"));
    [
        row(
            ("halt_poll", "guest_halt_poll_ns"),
            if halt_poll == Some(0) { State::Limited } else { State::Ok },
            halt_poll_text,
            [
                "none: threads wake each other as fast as this machine lets them",
                "an idle processor halts at once: waking a thread there takes an exit to the host",
            ],
        ),
        row(
            ("io_uring", "io_uring"),
            if machine.io_uring.is_ok() { State::Ok } else { State::Limited },
            machine.io_uring.map_or_else(|refusal| refusal.to_string(), |()| "serves requests".to_owned()),
            [
                "a library's file store has several requests in flight, and that of a run with --io-uring",
                "a file store makes its requests one after the other",
            ],
        ),
        row(
            ("perf", "performance counters"),
            State::of(machine.perf.is_ok()),
            perf,
            ["pagoda bench counts cycles", "pagoda bench measures time only"],
        ),
        row(
            ("zram", "zram"),
            zram,
            zram_text,
            ["pagoda bench can compare with it", "pagoda bench can't compare with zram"],
        ),
        row(
            ("memcg", "memory cgroup"),
            memcg,
            memcg_text,
            ["pagoda bench can limit the kernel's side", "pagoda bench can't compare with a memory cgroup"],
        ),
        row(("swap", "swap"), State::Ok, swap_text, ["none: a budget does not need it", ""]),
        row(
            ("numa", "NUMA nodes"),
            State::Ok,
            machine.numa_nodes.to_string(),
            ["frames come from any node", ""],
        ),
    ]
}
