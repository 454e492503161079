use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagoda_core::page::OS_PAGE;

use super::*;
use crate::io::shared_file::memory_file;
use crate::io::sparse_file::{data_in, make_hole};
use crate::testing::shared::SharedMapping;
use crate::testing::skip::skip;
use crate::testing::wait::until;
use crate::uffd::Stop;

const LEN: usize = 64 * OS_PAGE;

fn filled() -> Option<(File, SharedMapping, SharedFill)> {
    let file = memory_file(c"test", (LEN + OS_PAGE) as u64).expect("a memfd");
    let mapping = SharedMapping::of(&file, OS_PAGE as u64, LEN).expect("mapped");
    match SharedFill::start(&file, OS_PAGE as u64, mapping.range()) {
        Ok(fill) => Some((file, mapping, fill)),
        Err(error) => {
            skip("missing pages of shared memory", error);
            None
        }
    }
}

/// Whether the kernel can read the page at `offset` for a system call.
fn is_readable(mapping: &SharedMapping, offset: usize) -> bool {
    let into = memory_file(c"into", OS_PAGE as u64).expect("a memfd");
    let at = mapping.as_ptr().wrapping_add(offset);
    // SAFETY: the kernel reads a page of the mapping, or refuses to.
    let wrote = unsafe { libc::pwrite(into.as_raw_fd(), at.cast(), OS_PAGE, 0) };
    wrote == OS_PAGE as isize
}

#[test]
fn a_thread_waits_for_a_missing_page_and_sees_nothing_but_its_content() {
    let Some((_file, mapping, fill)) = filled() else { return };
    let seen = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut found = [0; OS_PAGE];
            mapping.read(3 * OS_PAGE, &mut found);
            assert_eq!(found, [7; OS_PAGE]);
            seen.store(true, Ordering::SeqCst);
        });
        // The kernel waits as well.
        scope.spawn(|| assert!(is_readable(&mapping, 4 * OS_PAGE)));
        // Woken too early they fault again.
        for _ in 0..2 {
            let mut asked = BTreeSet::new();
            until("both faults are told", || {
                fill.faults(10, |offset| asked.extend([offset / OS_PAGE])).expect("told");
                asked.len() == 2
            });
            assert_eq!((asked, seen.load(Ordering::SeqCst)), (BTreeSet::from([3, 4]), false));
            fill.wake(3 * OS_PAGE, 2 * OS_PAGE);
        }
        assert_eq!(fill.copy(2 * OS_PAGE, &[7; 4 * OS_PAGE]), Progress { bytes: 4 * OS_PAGE, stop: None });
        assert!(!seen.load(Ordering::SeqCst));
        fill.wake(2 * OS_PAGE, 4 * OS_PAGE);
    });
    assert!(seen.load(Ordering::SeqCst));
}

#[test]
fn a_page_that_exists_is_never_written_and_the_page_beside_it_never_made() {
    let Some((file, mapping, fill)) = filled() else { return };
    let other = SharedMapping::of(&file, OS_PAGE as u64, LEN).expect("mapped");
    other.write(5 * OS_PAGE, &[9; 8]);
    let progress = fill.copy(4 * OS_PAGE, &[1; 3 * OS_PAGE]);
    assert_eq!(progress, Progress { bytes: OS_PAGE, stop: None });
    let rest = fill.copy(5 * OS_PAGE, &[1; 2 * OS_PAGE]);
    assert_eq!(rest, Progress { bytes: 0, stop: Some(Stop::Exists) });
    assert_eq!(fill.zero(5 * OS_PAGE, OS_PAGE).stop, Some(Stop::Exists));
    let page = OS_PAGE as u64;
    assert_eq!(data_in(&file, 0..65 * page).expect("asked"), Some(5 * page..7 * page));
    // A page that is given back is missing once more.
    make_hole(&file, 5 * page..6 * page).expect("a hole");
    assert_eq!(fill.zero(4 * OS_PAGE, OS_PAGE).stop, None);
    let mut found = [1; OS_PAGE];
    mapping.read(4 * OS_PAGE, &mut found);
    assert_eq!(found, [0; OS_PAGE]);
    // Beyond the end of the file nothing is put, and it stays as long as it is.
    file.set_len(10 * page).expect("shorter");
    assert_eq!(fill.copy(20 * OS_PAGE, &[1; OS_PAGE]).stop, Some(Stop::Refused));
    assert_eq!(file.metadata().expect("metadata").len(), 10 * page);
}

#[test]
fn a_poisoned_page_stays_so_and_other_missing_pages_are_zero_in_the_end() {
    let Some((file, mapping, fill)) = filled() else { return };
    assert_eq!(fill.copy(OS_PAGE, &[1; OS_PAGE]).stop, None);
    assert!(is_readable(&mapping, OS_PAGE));
    assert_eq!(fill.poison(OS_PAGE, OS_PAGE).stop, Some(Stop::Exists));
    assert_eq!(fill.poison(2 * OS_PAGE, 3 * OS_PAGE), Progress { bytes: 3 * OS_PAGE, stop: None });
    drop(fill);
    let readable: Vec<bool> = (1..6).map(|page| is_readable(&mapping, page * OS_PAGE)).collect();
    assert_eq!(readable, [true, false, false, false, true]);
    let anew = SharedMapping::of(&file, OS_PAGE as u64, LEN).expect("mapped");
    assert!((1..6).all(|page| is_readable(&anew, page * OS_PAGE)), "poison is the mapping's alone");
    // It can be had again, but by one at a time.
    let again = SharedFill::start(&file, OS_PAGE as u64, mapping.range()).expect("registered");
    let busy = SharedFill::start(&file, OS_PAGE as u64, mapping.range()).expect_err("one at a time");
    assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
    drop(again);
    let elsewhere = SharedFill::start(&file, 0, mapping.range()).expect_err("another part");
    assert_eq!(elsewhere.kind(), io::ErrorKind::InvalidInput);
}
