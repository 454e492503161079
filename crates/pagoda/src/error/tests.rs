use super::*;

#[test]
fn each_number_reads_back_as_the_error_that_has_it() {
    let errno = Errno(28);
    let starts: Vec<_> =
        (1..100).filter_map(|code| Some((code, StartError::from_code(code, errno)?))).collect();
    let stops: Vec<_> =
        (101..200).filter_map(|code| Some((code, StopReason::from_code(code, errno)?))).collect();
    assert_eq!((starts.len(), stops.len()), (23, 12));
    for (code, error) in starts {
        assert_eq!(error.code(), code);
        assert!(error.errno() == errno || error.errno() == Errno::NONE);
    }
    for (code, reason) in stops {
        assert_eq!(reason.code(), code);
        assert!(reason.errno() == errno || reason.errno() == Errno::NONE);
    }
}

#[test]
fn a_message_is_one_line_and_names_the_remedy() {
    let failures = (1..200).map(|code| Stats { error_code: code, error_errno: 28, ..Stats::default() });
    for failure in failures.filter_map(|counters| Failure::from_snapshot(&counters)) {
        let text = failure.to_string();
        assert!(!text.contains('\n') && text.contains(';'), "{text}");
        assert!(!text.ends_with('.') && !text.contains("  "), "{text}");
    }
}

#[test]
fn running_out_of_descriptors_or_addresses_names_the_limit_that_is_reached() {
    let said = |code, errno| StartError::from_code(code, errno).expect("a code in use").to_string();
    // Opening userfaultfd, the store's file, the counters and /proc.
    for code in [1, 9, 12, 15] {
        assert!(said(code, EMFILE).contains("ulimit -n"), "{}", said(code, EMFILE));
        assert!(said(code, ENFILE).contains("fs.file-max"), "{}", said(code, ENFILE));
    }
    assert!(said(14, ENOMEM).contains("ulimit -v") && said(14, Errno(11)).contains("ulimit -u"));
}

#[test]
fn a_message_is_right_for_a_library_too() {
    let codes = 1..200;
    for failure in codes.filter_map(|error_code| {
        Failure::from_snapshot(&Stats { error_code, error_errno: 28, ..Stats::default() })
    }) {
        let text = failure.to_string();
        assert!(!text.contains(" --") && !text.contains("program was ended"), "{text}");
    }
}

#[test]
fn no_number_is_no_failure_and_a_strange_one_is_said_so() {
    assert_eq!(Failure::from_snapshot(&Stats::default()), None);
    let strange = Stats { error_code: 4242, ..Stats::default() };
    assert_eq!(Failure::from_snapshot(&strange), Some(Failure::Unknown { code: 4242, errno: Errno::NONE }));
}
