use super::*;

const STOCK: Standing = Standing { unprivileged: Some(false), may_ptrace: false };
const ROOT: Standing = Standing { unprivileged: Some(false), may_ptrace: true };
const NOT_BUILT: Standing = Standing { unprivileged: None, may_ptrace: true };
const OPENED: Standing = Standing { unprivileged: Some(true), may_ptrace: false };

#[test]
fn each_refusal_is_explained_by_the_privileges_of_the_process() {
    for (standing, way, error, expected) in [
        (STOCK, Way::Device, Errno::NOENT, Refusal::NoDevice),
        (STOCK, Way::Device, Errno::ACCESS, Refusal::DevicePermissions),
        (ROOT, Way::Device, Errno::PERM, Refusal::DeviceBlocked(Errno::PERM)),
        (ROOT, Way::Device, Errno::NOTTY, Refusal::DeviceBlocked(Errno::NOTTY)),
        (STOCK, Way::SystemCall, Errno::PERM, Refusal::NotPrivileged),
        (ROOT, Way::SystemCall, Errno::PERM, Refusal::Filtered(Errno::PERM)),
        (OPENED, Way::SystemCall, Errno::PERM, Refusal::Filtered(Errno::PERM)),
        (STOCK, Way::SystemCall, Errno::NOSYS, Refusal::Filtered(Errno::NOSYS)),
        (STOCK, Way::UserModeOnly, Errno::PERM, Refusal::Filtered(Errno::PERM)),
        (NOT_BUILT, Way::SystemCall, Errno::NOSYS, Refusal::NotBuilt),
        (ROOT, Way::Device, Errno::MFILE, Refusal::Other(Errno::MFILE)),
        (ROOT, Way::SystemCall, Errno::MFILE, Refusal::Other(Errno::MFILE)),
    ] {
        assert_eq!(standing.explain(way, error), expected, "{standing:?} {way:?}");
    }
}

#[test]
fn opcodes_are_those_of_the_kernel_header() {
    let opcodes = [USERFAULTFD_IOC_NEW, UFFDIO_API, UFFDIO_REGISTER, UFFDIO_MOVE];
    assert_eq!(opcodes, [0xAA00, 0xC018_AA3F, 0xC020_AA00, 0xC028_AA05]);
}

#[test]
fn a_missing_feature_is_named_with_the_kernel_that_has_it() {
    let text = Missing::Feature { feature: Feature::Move }.to_string();
    assert!(text.contains("MOVE") && text.contains("6.8"), "{text}");
    let missing = Missing::Userfaultfd { device: Refusal::NoDevice, system_call: Refusal::NotPrivileged };
    assert!(missing.to_string().contains("vm.unprivileged_userfaultfd"), "{missing}");
}

#[test]
fn an_answer_agrees_with_the_ways() {
    let userfault = userfault();
    match can_run() {
        Ok(access) => {
            let open = if access.way == Way::Device { userfault.device } else { userfault.system_call };
            assert_eq!((open, userfault.moved), (Ok(()), Some(Ok(()))));
            assert!(Feature::REQUIRED.into_iter().all(|feature| access.features.has(feature)));
            assert_eq!(userfault.features, Some(access.features));
        }
        Err(Missing::Userfaultfd { device, system_call }) => {
            assert_eq!((userfault.device, userfault.system_call), (Err(device), Err(system_call)));
        }
        Err(Missing::Feature { feature }) => {
            assert!(!userfault.features.is_some_and(|has| has.has(feature)));
        }
        Err(Missing::Move(error)) => assert_eq!(userfault.moved, Some(Err(error))),
    }
}
