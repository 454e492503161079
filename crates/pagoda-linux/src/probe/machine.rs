//! The machine around userfaultfd: kernel, huge pages, counters, swap, cgroups, limits.
//!
//! Pagoda works without any of them. They decide how well it works, and which baselines a bench
//! has. An unknown value is `None` or empty, never a guess.

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use linux_raw_sys::general as raw;
use pagoda_core::size::Bytes;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::io::ring::{Refusal, Ring};
use crate::procfs::memcg::Memcg;
use crate::raw_syscall::syscall6;

/// The running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelVersion {
    /// Major and minor number.
    pub number: (u32, u32),
    /// As `uname -r` shows it.
    pub release: String,
}

/// A size of huge page that the kernel can map without being asked (mTHP), and when it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MthpSize {
    /// The size.
    pub size: Bytes,
    /// `always`, `inherit`, `madvise` or `never`.
    pub mode: String,
}

/// A pool of reserved huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hugetlb {
    /// The size of one.
    pub page: Bytes,
    /// How many there are.
    pub pages: u64,
    /// How many of them are free.
    pub free_pages: u64,
}

/// Whether zram devices can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZramModule {
    /// It is loaded or built in.
    Loaded,
    /// It can be loaded.
    Loadable,
    /// This kernel has none.
    Absent,
}

/// Compressed memory of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zram {
    /// Whether devices can be had.
    pub module: ZramModule,
    /// Those that exist, with their size; zero is not set up.
    pub devices: Vec<(String, Bytes)>,
}

/// One swap device or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// How much of it is used.
    pub used: Bytes,
}

/// Limits of this process, soft ones; `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open files.
    pub open_files: Option<u64>,
    /// Address space.
    pub address_space: Option<Bytes>,
    /// Locked memory.
    pub locked: Option<Bytes>,
    /// Mappings of one process (`vm.max_map_count`).
    pub mappings: Option<u64>,
}

/// The findings.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The kernel.
    pub kernel: KernelVersion,
    /// `always`, `madvise` or `never`; `None` without huge pages.
    pub thp_enabled: Option<String>,
    /// When the kernel makes room for huge pages.
    pub thp_defrag: Option<String>,
    /// Sizes of mTHP, smallest first.
    pub mthp: Vec<MthpSize>,
    /// Pools, smallest pages first.
    pub hugetlb: Vec<Hugetlb>,
    /// Whether this process may count its own cycles.
    pub perf: Result<(), Errno>,
    /// Compressed memory of the kernel.
    pub zram: Zram,
    /// Its memory cgroup, if there is one.
    pub memcg: Option<Memcg>,
    /// How many NUMA nodes have memory or processors.
    pub numa_nodes: usize,
    /// Limits of this process.
    pub limits: Limits,
    /// Swap in use.
    pub swap: Vec<Swap>,
    /// How long an idle processor of a virtual machine polls before it halts, in ns; `None` where
    /// it can't.
    pub halt_poll_ns: Option<u64>,
    /// Whether several requests to a file can be in flight at once.
    pub io_uring: Result<(), Refusal>,
}

/// Looks at everything.
#[must_use]
pub fn machine() -> Machine {
    let thp = Path::new("/sys/kernel/mm/transparent_hugepage");
    Machine {
        kernel: kernel(),
        thp_enabled: chosen_in(&thp.join("enabled")),
        thp_defrag: chosen_in(&thp.join("defrag")),
        mthp: huge_sizes(thp)
            .filter_map(|(size, path)| Some(MthpSize { size, mode: chosen_in(&path.join("enabled"))? }))
            .collect(),
        hugetlb: huge_sizes(Path::new("/sys/kernel/mm/hugepages"))
            .filter_map(|(page, path)| {
                let count = |name| number_in(&path.join(name));
                Some(Hugetlb { page, pages: count("nr_hugepages")?, free_pages: count("free_hugepages")? })
            })
            .collect(),
        perf: perf_counter(),
        zram: zram(),
        memcg: Memcg::find(),
        numa_nodes: nodes_in(&text("/sys/devices/system/node/online")).unwrap_or(1),
        limits: limits(),
        swap: swaps(&text("/proc/swaps")),
        halt_poll_ns: halt_poll_ns(),
        io_uring: Ring::open().map(drop),
    }
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number_in(path: &Path) -> Option<u64> {
    text(path).trim().parse().ok()
}

fn kernel() -> KernelVersion {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    KernelVersion { number: version_in(&release), release }
}

/// `6.18.4-foo` is (6, 18).
pub(crate) fn version_in(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The bracketed word of `always [madvise] never`.
fn chosen(choices: &str) -> Option<String> {
    Some(choices.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn chosen_in(path: &Path) -> Option<String> {
    chosen(&text(path))
}

/// The directories `hugepages-<size>kB` below `path`, smallest first.
fn huge_sizes(path: &Path) -> impl Iterator<Item = (Bytes, PathBuf)> {
    let mut found: Vec<_> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some((Bytes::kib(kib), entry.path()))
        })
        .collect();
    found.sort();
    found.into_iter()
}

/// `struct perf_event_attr` in its first published size, which every kernel takes.
#[repr(C)]
struct PerfAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_kind: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_kind: u32,
    breakpoint_address: u64,
}

const PERF_ATTR_SIZE_VER0: usize = 64;
const _: () = assert!(size_of::<PerfAttributes>() == PERF_ATTR_SIZE_VER0);

/// Opens a counter of the cycles that this process spends in user mode.
fn perf_counter() -> Result<(), Errno> {
    // PERF_TYPE_HARDWARE and PERF_COUNT_HW_CPU_CYCLES are both 0.
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    let attributes = PerfAttributes {
        kind: 0,
        size: PERF_ATTR_SIZE_VER0 as u32,
        config: 0,
        sample_period: 0,
        sample_kind: 0,
        read_format: 0,
        flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
        wakeup: 0,
        breakpoint_kind: 0,
        breakpoint_address: 0,
    };
    const FLAG_CLOSE_ON_EXEC: usize = 1 << 3;
    let (this_process, any_cpu, no_group) = (0, usize::MAX, usize::MAX);
    let at = (&raw const attributes).expose_provenance();
    // SAFETY: the kernel reads `size` bytes of the attributes and writes nothing.
    let fd = unsafe {
        syscall6(raw::__NR_perf_event_open, [at, this_process, any_cpu, no_group, FLAG_CLOSE_ON_EXEC, 0])?
    };
    // SAFETY: a fresh descriptor without another owner.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

fn zram() -> Zram {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with("zram"))?;
        Some((name, Bytes::new(number_in(&entry.path().join("disksize"))?)))
    });
    let modules = Path::new("/lib/modules").join(kernel().release);
    let listed = |list: &str| text(modules.join(list)).contains("/zram.ko");
    let module = if Path::new("/sys/class/zram-control").exists() {
        ZramModule::Loaded
    } else if listed("modules.dep") || listed("modules.builtin") {
        ZramModule::Loadable
    } else {
        ZramModule::Absent
    };
    Zram { module, devices: devices.collect() }
}

/// How many numbers are in a list like `0-1,3`.
fn nodes_in(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + (last + 1).checked_sub(first)?)
    })
}

fn limits() -> Limits {
    let soft = |resource| getrlimit(resource).current;
    Limits {
        open_files: soft(Resource::Nofile),
        address_space: soft(Resource::As).map(Bytes::new),
        locked: soft(Resource::Memlock).map(Bytes::new),
        mappings: number_in(Path::new("/proc/sys/vm/max_map_count")),
    }
}

/// The lines of `/proc/swaps` after its heading: `name type size used priority`, sizes in KiB.
fn swaps(table: &str) -> Vec<Swap> {
    let line = |line: &str| {
        let [name, _, size, used, ..] = *line.split_ascii_whitespace().collect::<Vec<_>>() else {
            return None;
        };
        let kib = |text: &str| text.parse().ok().map(Bytes::kib);
        Some(Swap { name: name.to_owned(), size: kib(size)?, used: kib(used)? })
    };
    table.lines().skip(1).filter_map(line).collect()
}

/// Of cpuidle's haltpoll, where that is what idle processors do.
fn halt_poll_ns() -> Option<u64> {
    let driver = text("/sys/devices/system/cpu/cpuidle/current_driver");
    let polls = driver.trim() == "haltpoll";
    polls.then(|| number_in(Path::new("/sys/module/haltpoll/parameters/guest_halt_poll_ns"))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_the_kernel_is_read_as_it_is_written() {
        assert_eq!(version_in("6.18.44-fc-v595"), (6, 18));
        assert_eq!(version_in("7.0-rc1"), (7, 0));
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("none"), None);
        assert_eq!((nodes_in("0\n"), nodes_in("0-1,3\n"), nodes_in("")), (Some(1), Some(3), None));
        let table = "Filename Type Size Used Priority\n/dev/zram0 partition 1048572 4 -2\n";
        let swap = Swap { name: "/dev/zram0".to_owned(), size: Bytes::kib(1_048_572), used: Bytes::kib(4) };
        assert_eq!(swaps(table), [swap]);
        assert_eq!(swaps(""), []);
    }

    #[test]
    fn this_machine_gives_consistent_answers() {
        let machine = machine();
        assert!(machine.kernel.number >= (4, 0), "{:?}", machine.kernel);
        assert!(machine.numa_nodes >= 1);
        assert!(machine.mthp.is_sorted_by_key(|size| size.size));
        assert!(machine.hugetlb.iter().all(|pool| pool.free_pages <= pool.pages));
        assert!(machine.swap.iter().all(|swap| swap.used <= swap.size));
        assert!(machine.limits.open_files.is_none_or(|files| files > 0));
        if let Some(memcg) = &machine.memcg {
            assert!(memcg.path.join("cgroup.procs").exists(), "{memcg:?}");
        }
    }
}
