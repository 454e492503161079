//! What to do about what is missing: commands and lines to copy, each said to whom it applies.
//!
//! Pure. It must only name steps that remove the cause which the probe saw.

use pagoda_linux::probe::{Missing, Refusal, Report, ZramModule};
use rustix::io::Errno;
use serde::Serialize;

use super::rows::{Row, State};

/// One thing to do.
#[derive(Clone, Debug, Serialize)]
pub struct Mend {
    /// The row it mends.
    pub id: &'static str,
    /// For whom, in what case.
    pub what: &'static str,
    /// What to do, line by line.
    pub steps: &'static str,
}

const DEVICE_OWN_MACHINE: Mend = Mend {
    id: "userfaultfd.device",
    what: "On a machine of your own, once, as root (best: gives a group the device)",
    steps: "\
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

const MEMCG: Mend = Mend {
    id: "memcg",
    what: "A memory cgroup to write to",
    steps: "systemd-run --user --scope -p Delegate=yes pagoda bench …   # with cgroup v2; otherwise as root",
};

/// What to do, most important first. What is limited without consequence has no mend.
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
    // Only where there is a userfaultfd at all is the privilege for fork events the next thing to want.
    if report.run.is_ok_and(|access| !access.fork_events) {
        mends.push(FORK);
    }
    let machine = &report.machine;
    let perf = match machine.perf {
        Ok(()) => None,
        Err(Errno::ACCESS | Errno::PERM) => Some(PERF_PERMISSION),
        Err(_) => Some(PERF_HARDWARE),
    };
    // Only what is there but switched off can be switched on.
    let others = [
        machine.thp_enabled.as_ref().map(|_| THP),
        machine.mthp.first().map(|_| MTHP),
        Some(MAPPINGS),
        Some(OPEN_FILES),
        Some(ADDRESS_SPACE),
        perf,
        (machine.zram.module == ZramModule::Loadable).then_some(ZRAM),
        machine.memcg.as_ref().map(|_| MEMCG),
    ];
    mends.extend(others.into_iter().flatten().filter(|mend| lacking(mend.id)));
    mends
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
