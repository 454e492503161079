//! The remedies for missing features: commands and lines to copy, each with its case.
//!
//! Pure. It must only name steps that remove the cause which the probe saw.

use std::io::ErrorKind;

use pagoda_linux::probe::{Missing, Refusal, Report, ZramModule};
use rustix::io::Errno;
use serde::Serialize;

use super::rows::{Row, State};

/// One thing to do.
#[derive(Clone, Debug, Serialize)]
pub struct Mend {
    /// The row it mends.
    pub id: &'static str,
    /// The case in which it applies.
    pub what: &'static str,
    /// The steps, line by line.
    pub steps: &'static str,
}

const DEVICE_OWN_MACHINE: Mend = Mend {
    id: "userfaultfd.device",
    what: "On a machine of your own, once, as root (best: gives a group the device)",
    steps: "\
chown YOUR_USER /dev/userfaultfd   # at once, until the next boot; from then on:
groupadd --system --force userfaultfd
echo 'KERNEL==\"userfaultfd\", SUBSYSTEM==\"misc\", GROUP=\"userfaultfd\", MODE=\"0660\"' \\
    > /etc/udev/rules.d/60-userfaultfd.rules
udevadm control --reload && udevadm trigger --name-match=userfaultfd
usermod --append --groups userfaultfd YOUR_USER   # then log in again",
};

const SYSCTL: Mend = Mend {
    id: "userfaultfd.syscall",
    what: "Or, as root, for every user of the machine",
    steps: "\
sysctl -w vm.unprivileged_userfaultfd=1
echo 'vm.unprivileged_userfaultfd = 1' > /etc/sysctl.d/60-userfaultfd.conf",
};

const DOCKER: Mend = Mend {
    id: "userfaultfd.device",
    what: "In a Docker or Podman container",
    steps: "\
docker run --device /dev/userfaultfd …
# Docker's default seccomp profile blocks the system call; the device needs no other profile.
# For a user other than root in the container, the device on the host must allow that user (see the udev rule).
# For programs that fork, add: --cap-add SYS_PTRACE",
};

const KUBERNETES: Mend = Mend {
    id: "userfaultfd.device",
    what: "In Kubernetes, with a device plugin on the nodes (squat/generic-device-plugin, for example)",
    steps: "\
# Argument of the plugin:
--device={\"name\": \"userfaultfd\", \"groups\": [{\"count\": 100, \"paths\": [{\"path\": \"/dev/userfaultfd\"}]}]}
# In the container of the pod:
resources:
  limits:
    squat.ai/userfaultfd: 1
# Or without a plugin, by the system call, where the cluster allows it:
securityContext:
  capabilities: { add: [\"SYS_PTRACE\"] }
  seccompProfile: { type: Unconfined }",
};

const FILTER: Mend = Mend {
    id: "userfaultfd.syscall",
    what: "Where a sandbox other than these filters system calls",
    steps: "\
Open /dev/userfaultfd to it (no system call of its own is needed then),
or allow `userfaultfd` in its seccomp profile: {\"names\": [\"userfaultfd\"], \"action\": \"SCMP_ACT_ALLOW\"}
(systemd: SystemCallFilter=userfaultfd; with PrivateDevices=no or DeviceAllow=/dev/userfaultfd rw for the device)",
};

const NOT_BUILT: Mend = Mend {
    id: "userfaultfd.syscall",
    what: "The kernel must be built with it",
    steps: "CONFIG_USERFAULTFD=y   # the kernels of Debian, Ubuntu, Fedora, RHEL and Arch are",
};

const KERNEL: Mend = Mend {
    id: "kernel",
    what: "A newer kernel",
    steps: "\
Linux 6.8 or later: Ubuntu 24.04, Debian 13, Fedora 40, or a later one.
Ubuntu 22.04: apt install linux-generic-hwe-22.04   Debian 12: linux-image-amd64 from bookworm-backports",
};

const FORK: Mend = Mend {
    id: "userfaultfd.fork",
    what: "For programs that fork, any one of these",
    steps: "\
setpriv --reuid YOUR_USER --init-groups --inh-caps +sys_ptrace --ambient-caps +sys_ptrace pagoda run …   # as root
docker run --cap-add SYS_PTRACE …
# Not setcap: the loader ignores LD_PRELOAD for a program with file capabilities.",
};

const THP: Mend = Mend {
    id: "thp",
    what: "Huge pages, as root",
    steps: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
};

const MAPPINGS: Mend = Mend {
    id: "limits.mappings",
    what: "More mappings, as root",
    steps: "sysctl -w vm.max_map_count=262144",
};

const OPEN_FILES: Mend = Mend { id: "limits.open_files", what: "More open files", steps: "ulimit -n 1024" };

const ADDRESS_SPACE: Mend =
    Mend { id: "limits.address_space", what: "Address space", steps: "ulimit -v unlimited" };

const MTHP: Mend = Mend {
    id: "mthp",
    what: "Huge pages of 64 KiB, to compare with, as root",
    steps: "echo madvise > /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
};

const PERF_PERMISSION: Mend = Mend {
    id: "perf",
    what: "Performance counters, as root",
    steps: "sysctl -w kernel.perf_event_paranoid=2   # in a container also: docker run --cap-add PERFMON …",
};

const PERF_HARDWARE: Mend = Mend {
    id: "perf",
    what: "Performance counters in a virtual machine",
    steps: "Have the host pass on the processor's counters (QEMU: -cpu host,pmu=on).",
};

const ZRAM: Mend = Mend { id: "zram", what: "zram, as root", steps: "modprobe zram" };

const ZRAM_MODULE: Mend = Mend {
    id: "zram",
    what: "The module of zram for this kernel, as root; in a container, on the host",
    steps: "\
apt install linux-modules-extra-$(uname -r)   # Ubuntu
apt install linux-image-amd64                 # Debian, in the place of linux-image-cloud-amd64; then boot it
CONFIG_ZRAM=m                                 # a kernel of your own",
};

const PAGE_TABLES_ABSENT: Mend = Mend {
    id: "pagemap",
    what: "A /proc that shows a process its own page tables",
    steps: "\
mount -t proc proc /proc     # where it is not mounted, as root
CONFIG_PROC_PAGE_MONITOR=y   # where it is: the kernel must be built with it",
};

const PAGE_TABLES_DENIED: Mend = Mend {
    id: "pagemap",
    what: "Where a sandbox keeps a process from its own page tables",
    steps: "Allow reading /proc/self/pagemap in its profile (AppArmor: @{PROC}/@{pid}/pagemap r,)",
};

const DIRECT_IO: Mend = Mend {
    id: "direct_io",
    what: "Another directory for what is spilled, or none",
    steps: "\
pagoda run --store-dir DIRECTORY …   # on a disk with ext4 or xfs; or for all runs: export PAGODA_STORE=DIRECTORY
pagoda run --file-limit 0 …          # compressed memory only
docker run --volume /var/tmp …       # a container's own file system may be an overlay on memory",
};

const PRELOAD: Mend = Mend {
    id: "preload",
    what: "The preload library, on a path without spaces, colons and dollar signs, not mounted noexec",
    steps: "\
cargo build --release   # from the sources: it lies beside pagoda then
cargo install --path crates/pagoda-cli --features embed   # or inside of it
export PAGODA_PRELOAD=/lib/libpagoda_preload.so   # or where it was put",
};

const HALT_POLL: Mend = Mend {
    id: "halt_poll",
    what: "In a virtual machine, as root: faster wake-ups, for processor time while it idles",
    steps: "echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns",
};

const MEMCG: Mend = Mend {
    id: "memcg",
    what: "A memory cgroup to write to",
    steps: "systemd-run --user --scope -p Delegate=yes pagoda bench …   # with cgroup v2; otherwise as root",
};

/// The remedies, most important first. A limit without a consequence has none.
pub fn mends(report: &Report, rows: &[Row]) -> Vec<Mend> {
    let mut mends = match report.run {
        Ok(_) => Vec::new(),
        Err(Missing::Userfaultfd { device, system_call }) => userfaultfd(device, system_call),
        // An old kernel, which has its row; on a new one there is nothing to do but to report it.
        Err(Missing::Feature { .. } | Missing::Move(_)) => Vec::new(),
    };
    let lacking = |id| rows.iter().any(|row| row.id == id && row.state != State::Ok);
    if lacking("kernel") {
        mends.push(KERNEL);
    }
    if lacking("preload") {
        mends.push(PRELOAD);
    }
    // Only where there is a userfaultfd at all is the privilege for fork events the next thing to
    // want.
    if report.run.is_ok_and(|access| !access.fork_events) {
        mends.push(FORK);
    }
    let machine = &report.machine;
    // The kernel's row tells of features that a newer kernel brings.
    let page_tables = match report.scan.as_ref().map_err(std::io::Error::kind) {
        Err(ErrorKind::NotFound) => Some(PAGE_TABLES_ABSENT),
        Err(ErrorKind::PermissionDenied) => Some(PAGE_TABLES_DENIED),
        _ => None,
    };
    let zram = match machine.zram.module {
        ZramModule::Loaded | ZramModule::Loadable => ZRAM,
        ZramModule::Absent => ZRAM_MODULE,
    };
    let perf = match machine.perf {
        Ok(()) => None,
        Err(Errno::ACCESS | Errno::PERM) => Some(PERF_PERMISSION),
        Err(_) => Some(PERF_HARDWARE),
    };
    // Only a feature that is there but switched off can be switched on.
    let others = [
        page_tables,
        machine.thp_enabled.as_ref().map(|_| THP),
        machine.mthp.first().map(|_| MTHP),
        Some(MAPPINGS),
        Some(OPEN_FILES),
        Some(ADDRESS_SPACE),
        Some(DIRECT_IO),
        Some(HALT_POLL),
        perf,
        Some(zram),
        machine.memcg.as_ref().map(|_| MEMCG),
    ];
    mends.extend(others.into_iter().flatten().filter(|mend| lacking(mend.id)));
    mends
}

/// The first remedy for a run that was refused, short enough for its one line. Other cases are in
/// [`mends`] alone, or have no remedy but a report.
pub const fn in_one_line(missing: &Missing) -> Option<&'static str> {
    let (device, system_call) = match missing {
        Missing::Userfaultfd { device, system_call } => (device, system_call),
        Missing::Feature { .. } => return Some("boot Linux 6.8 or later"),
        Missing::Move(_) => return None,
    };
    match (device, system_call) {
        (_, Refusal::NotBuilt) => Some("boot a kernel with CONFIG_USERFAULTFD=y"),
        (Refusal::DevicePermissions, _) => Some("as root: chown YOUR_USER /dev/userfaultfd"),
        (_, Refusal::NotPrivileged) => Some("as root: sysctl -w vm.unprivileged_userfaultfd=1"),
        (Refusal::NoDevice | Refusal::DeviceBlocked(_), _) | (_, Refusal::Filtered(_)) => {
            Some("in a container: docker run --device /dev/userfaultfd …")
        }
        _ => None,
    }
}

fn userfaultfd(device: Refusal, system_call: Refusal) -> Vec<Mend> {
    if system_call == Refusal::NotBuilt {
        return vec![NOT_BUILT];
    }
    let mut mends = Vec::new();
    if device == Refusal::DevicePermissions {
        mends.push(DEVICE_OWN_MACHINE);
    }
    if system_call == Refusal::NotPrivileged {
        mends.push(SYSCTL);
    }
    // A device that is absent or blocked, or a filter: the marks of a container.
    let filtered = matches!(system_call, Refusal::Filtered(_));
    if filtered || matches!(device, Refusal::NoDevice | Refusal::DeviceBlocked(_)) {
        mends.extend([DOCKER, KUBERNETES]);
    }
    if filtered {
        mends.push(FILTER);
    }
    mends
}
