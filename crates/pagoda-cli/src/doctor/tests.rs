//! Findings of machines made up, from the best to one where nothing works.

use super::*;

use crate::exit_error::ExitError;
use crate::program::preload::Library;
use pagoda_core::size::Bytes;
use pagoda_linux::probe::{
    Access, Feature, Features, KernelVersion, Limits, Machine, Missing, Refusal, Userfault, Way, Zram,
    ZramModule,
};
use pagoda_linux::procfs::pagemap::ScanMethod;
use rows::State;
use rustix::io::Errno;

fn machine(kernel: (u32, u32)) -> Machine {
    let limits = Limits {
        open_files: Some(1024),
        address_space: None,
        locked: Some(Bytes::mib(8)),
        mappings: Some(65_530),
    };
    Machine {
        kernel: KernelVersion { number: kernel, release: format!("{}.{}.0", kernel.0, kernel.1) },
        thp_enabled: Some("madvise".to_owned()),
        thp_defrag: Some("madvise".to_owned()),
        mthp: Vec::new(),
        hugetlb: Vec::new(),
        perf: Ok(()),
        zram: Zram { module: ZramModule::Loaded, devices: Vec::new() },
        memcg: None,
        numa_nodes: 1,
        limits,
        swap: Vec::new(),
        halt_poll_ns: Some(0),
        io_uring: Ok(()),
    }
}

fn healthy() -> Report {
    let features: Features = Feature::ALL.into_iter().collect();
    Report {
        run: Ok(Access { way: Way::Device, features, fork_events: true }),
        userfault: Userfault {
            device: Ok(()),
            system_call: Err(Refusal::NotPrivileged),
            user_mode_only: Ok(()),
            features: Some(features),
            write_protect: true,
            moved: Some(Ok(())),
            fork_events: true,
        },
        scan: Ok(ScanMethod::Scan),
        machine: machine((6, 8)),
    }
}

fn installed() -> Installation {
    let library = Library { path: "/lib/p.so".into(), origin: "from a test" };
    let kernel_groups = Err("it needs root; run pagoda as root".to_owned());
    Installation { preload: Ok(library), store_directory: Ok("/var/tmp".into()), kernel_groups }
}

fn findings(report: &Report) -> Findings {
    Findings::new(report, &installed())
}

fn refused(device: Refusal, system_call: Refusal) -> Report {
    Report {
        run: Err(Missing::Userfaultfd { device, system_call }),
        userfault: Userfault {
            device: Err(device),
            system_call: Err(system_call),
            user_mode_only: Err(system_call),
            features: None,
            write_protect: false,
            moved: None,
            fork_events: false,
        },
        ..healthy()
    }
}

fn state(findings: &Findings, id: &str) -> State {
    findings.rows.iter().find(|row| row.id == id).expect(id).state
}

fn steps(findings: &Findings) -> String {
    findings.mends.iter().map(|mend| mend.steps).collect::<Vec<_>>().join("\n")
}

#[test]
fn one_open_way_is_enough_and_the_closed_one_is_no_lack() {
    let findings = self::findings(&healthy());
    assert_eq!(findings.headline(), "pagoda run: works here");
    assert_eq!(state(&findings, "userfaultfd.device"), State::Ok);
    assert_eq!(state(&findings, "userfaultfd.syscall"), State::Limited);
    assert!(findings.mends.iter().all(|mend| !mend.id.starts_with("userfaultfd")), "{:?}", findings.mends);
}

#[test]
fn a_user_without_the_device_is_told_the_udev_rule_and_the_sysctl() {
    let findings = self::findings(&refused(Refusal::DevicePermissions, Refusal::NotPrivileged));
    assert!(findings.headline().starts_with("pagoda run: does not work here: no full userfaultfd"));
    assert_eq!(state(&findings, "userfaultfd.device"), State::Missing);
    assert_eq!(state(&findings, "userfaultfd.move"), State::Missing);
    let steps = steps(&findings);
    assert!(
        steps.contains("KERNEL==\"userfaultfd\"") && steps.contains("vm.unprivileged_userfaultfd=1"),
        "{steps}"
    );
    assert!(!steps.contains("docker run --device"), "{steps}");
}

#[test]
fn in_a_container_it_is_told_how_to_pass_the_device_and_not_a_sysctl() {
    let denied = Refusal::Filtered(Errno::PERM);
    let steps = steps(&findings(&refused(Refusal::NoDevice, denied)));
    assert!(steps.contains("docker run --device /dev/userfaultfd") && steps.contains("squat.ai/userfaultfd"));
    assert!(!steps.contains("sysctl -w vm.unprivileged_userfaultfd"), "{steps}");
}

#[test]
fn an_old_kernel_is_told_which_one_it_takes() {
    let mut report = healthy();
    report.run = Err(Missing::Feature { feature: Feature::Move });
    report.userfault.moved = None;
    report.machine = machine((6, 1));
    let findings = self::findings(&report);
    assert!(findings.headline().contains("6.8"), "{}", findings.headline());
    assert_eq!(state(&findings, "kernel"), State::Missing);
    assert_eq!(findings.mends.iter().filter(|mend| mend.id == "kernel").count(), 1);
}

#[test]
fn a_move_that_works_counts_more_than_the_number_of_the_kernel() {
    let findings = self::findings(&Report { machine: machine((5, 14)), ..healthy() });
    assert_eq!((findings.works, state(&findings, "kernel")), (true, State::Ok));
}

#[test]
fn only_a_step_that_removes_the_cause_is_told() {
    for (error, step) in [(Errno::ACCESS, "perf_event_paranoid"), (Errno::NOENT, "pmu=on")] {
        let mut report = healthy();
        report.machine.perf = Err(error);
        let findings = self::findings(&report);
        let about: Vec<_> = findings.mends.iter().filter(|mend| mend.id == "perf").collect();
        assert!(about.len() == 1 && about[0].steps.contains(step), "{about:?}");
    }
    let mut report = healthy();
    report.machine.zram.module = ZramModule::Absent;
    assert!(!steps(&findings(&report)).contains("modprobe"));
    for (kind, step, other) in [
        (io::ErrorKind::NotFound, "CONFIG_PROC_PAGE_MONITOR", "AppArmor"),
        (io::ErrorKind::PermissionDenied, "AppArmor", "CONFIG_PROC_PAGE_MONITOR"),
    ] {
        let findings = self::findings(&Report { scan: Err(kind.into()), ..healthy() });
        assert_eq!(state(&findings, "pagemap"), State::Missing);
        let steps = steps(&findings);
        assert!(steps.contains(step) && !steps.contains(other), "{kind}: {steps}");
    }
}

#[test]
fn zram_that_is_absent_has_a_mend_and_no_reserved_huge_pages_are_no_lack() {
    let mut report = healthy();
    report.machine.zram.module = ZramModule::Absent;
    let findings = self::findings(&report);
    assert_eq!((state(&findings, "zram"), state(&findings, "hugetlb")), (State::Missing, State::Ok));
    assert!(steps(&findings).contains("linux-modules-extra-"), "{}", steps(&findings));
}

#[test]
fn a_run_that_would_not_start_does_not_work() {
    let refused = |what: &str| ExitError::own(format!("{what} is refused"));
    let without_library = Installation { preload: Err(refused("a b.so")), ..installed() };
    let without_store = Installation { store_directory: Err(refused("/tmp")), ..installed() };
    for (installation, id, what, step) in [
        (without_library, "preload", "a b.so", "PAGODA_PRELOAD"),
        (without_store, "direct_io", "/tmp", "--file-limit 0"),
    ] {
        let findings = Findings::new(&healthy(), &installation);
        let reason = findings.reason.as_deref();
        assert!(!findings.works && reason == Some(&format!("{what} is refused")), "{reason:?}");
        assert_eq!(state(&findings, id), State::Missing);
        assert!(steps(&findings).contains(step), "{}", steps(&findings));
    }
}

/// A run takes the kernel's swap where the machine refuses the engine, and not for want of a
/// library.
#[test]
fn a_machine_that_refuses_the_engine_works_by_the_kernels_swap_where_that_is_possible() {
    let root = || Installation { kernel_groups: Ok(()), ..installed() };
    let denied = || refused(Refusal::NoDevice, Refusal::NotBuilt);
    let findings = Findings::new(&denied(), &root());
    assert_eq!((findings.works, findings.backend), (true, Some("kernel")));
    let headline = findings.headline();
    assert!(
        headline.starts_with("pagoda run: works here by the kernel's swap (--backend kernel)"),
        "{headline}"
    );
    assert!(headline.contains("not by the engine: no full userfaultfd"), "{headline}");
    assert_eq!(state(&findings, "kernel_swap"), State::Ok);
    assert_eq!(Findings::new(&healthy(), &root()).backend, Some("engine"));

    let mut without_zram = denied();
    without_zram.machine.zram.module = ZramModule::Absent;
    let no = || Err(ExitError::own("refused"));
    for (report, installation) in [
        (without_zram, root()),
        (denied(), installed()),
        (denied(), Installation { store_directory: Err(ExitError::own("refused")), ..root() }),
        (healthy(), Installation { preload: no(), ..root() }),
    ] {
        let findings = Findings::new(&report, &installation);
        assert_eq!((findings.works, findings.backend), (false, None), "{}", findings.headline());
        assert!(findings.headline().starts_with("pagoda run: does not work here: "));
    }
}

#[test]
fn a_guest_whose_idle_processors_halt_at_once_is_told_how_they_poll() {
    for (ns, is_told) in [(None, false), (Some(0), true), (Some(200_000), false)] {
        let mut report = healthy();
        report.machine.halt_poll_ns = ns;
        let steps = steps(&findings(&report));
        assert_eq!(steps.contains("guest_halt_poll_ns"), is_told, "{ns:?}: {steps}");
    }
}

#[test]
fn a_refused_run_names_the_first_of_the_mends() {
    for (device, system_call, mend) in [
        (Refusal::DevicePermissions, Refusal::NotPrivileged, "chown YOUR_USER /dev/userfaultfd"),
        (Refusal::DevicePermissions, Refusal::Filtered(Errno::PERM), "chown YOUR_USER /dev/userfaultfd"),
        (Refusal::NoDevice, Refusal::NotPrivileged, "sysctl -w vm.unprivileged_userfaultfd=1"),
        (Refusal::NoDevice, Refusal::Filtered(Errno::PERM), "docker run --device /dev/userfaultfd"),
        (
            Refusal::DeviceBlocked(Errno::NOTTY),
            Refusal::Other(Errno::MFILE),
            "docker run --device /dev/userfaultfd",
        ),
        (Refusal::NoDevice, Refusal::NotBuilt, "CONFIG_USERFAULTFD=y"),
    ] {
        let report = refused(device, system_call);
        let line = in_one_line(&report.run.expect_err("refused")).expect("a mend");
        assert!(line.contains(mend) && !line.contains('\n'), "{line}");
        let first = findings(&refused(device, system_call)).mends.first().expect("a mend").steps;
        assert!(first.lines().next().is_some_and(|step| step.contains(mend)), "{first}");
    }
    let nothing = Missing::Userfaultfd {
        device: Refusal::Other(Errno::MFILE),
        system_call: Refusal::Other(Errno::MFILE),
    };
    assert_eq!((in_one_line(&nothing), in_one_line(&Missing::Move(Errno::IO))), (None, None));
    let old = Missing::Feature { feature: Feature::Move };
    assert!(in_one_line(&old).is_some_and(|mend| mend.contains("6.8")));
}

#[test]
fn a_kernel_without_it_is_told_the_option_and_nothing_that_would_not_help() {
    let findings = self::findings(&refused(Refusal::NoDevice, Refusal::NotBuilt));
    let about: Vec<_> = findings.mends.iter().filter(|mend| mend.id.starts_with("userfaultfd")).collect();
    assert!(about.len() == 1 && about[0].steps.contains("CONFIG_USERFAULTFD"), "{about:?}");
}

#[test]
fn without_the_privilege_for_fork_events_it_works_with_a_mend() {
    let mut report = healthy();
    report.run = report.run.map(|access| Access { fork_events: false, ..access });
    report.userfault.fork_events = false;
    let findings = self::findings(&report);
    assert!(findings.works);
    assert_eq!(state(&findings, "userfaultfd.fork"), State::Limited);
    assert!(steps(&findings).contains("SYS_PTRACE"));
}

#[test]
fn names_for_programs_are_of_one_row_each_and_every_mend_has_its_row() {
    for report in [healthy(), refused(Refusal::NoDevice, Refusal::NotPrivileged)] {
        let findings = self::findings(&report);
        let mut ids: Vec<_> = findings.rows.iter().map(|row| row.id).collect();
        assert!(findings.mends.iter().all(|mend| ids.contains(&mend.id)));
        ids.sort_unstable();
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    }
}

#[test]
fn the_table_has_the_verdict_first_and_every_row() {
    let findings = self::findings(&healthy());
    let mut text = Vec::new();
    print(&mut text, &findings).expect("printed");
    let text = String::from_utf8(text).expect("text");
    assert_eq!(text.lines().next(), Some("pagoda run: works here"));
    assert!(findings.rows.iter().all(|row| text.contains(row.what.split(' ').next().expect("a word"))));
}
