//! Real pages: untouched, written, only read, huge; by both ways of asking.

use std::time::{Duration, Instant};

use super::*;

use pagoda_core::page::HUGE_FRAME;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A private anonymous mapping that starts at a multiple of 2 MiB and has no huge pages unless
/// asked.
struct Pages {
    whole: *mut u8,
    whole_bytes: usize,
    at: *mut u8,
}

impl Pages {
    fn new(bytes: usize, advice: Advice) -> Self {
        let whole_bytes = bytes + HUGE_FRAME;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing; the aligned
        // part is inside.
        unsafe {
            let whole = mmap_anonymous(std::ptr::null_mut(), whole_bytes, protection, MapFlags::PRIVATE)
                .expect("map");
            let whole = whole.cast::<u8>();
            let at = whole.add(whole.align_offset(HUGE_FRAME));
            madvise(at.cast(), bytes, advice).expect("advise");
            Self { whole, whole_bytes, at }
        }
    }

    fn start(&self) -> usize {
        self.at.addr()
    }

    fn write(&self, page: usize) {
        // SAFETY: tests touch pages inside the mapping only.
        unsafe { self.at.add(page * OS_PAGE).write_volatile(1) };
    }

    fn read(&self, page: usize) -> u8 {
        // SAFETY: tests touch pages inside the mapping only.
        unsafe { self.at.add(page * OS_PAGE).read_volatile() }
    }

    /// The runs in `pages`, numbered from the start of the mapping. While the kernel gives one of
    /// them another frame (another test may make it compact memory) they are asked for again.
    fn runs(&self, method: ScanMethod, pages: Range<usize>) -> Vec<(Range<usize>, Presence)> {
        let mut scanner = PagemapScanner::with_method(method).expect("open");
        let address = |page| self.start() + page * OS_PAGE;
        let page = |address| (address - self.start()) / OS_PAGE;
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let mut found = Vec::new();
            scanner
                .populated_runs(address(pages.start), address(pages.end), |run, presence| {
                    found.push((page(run.start)..page(run.end), presence));
                })
                .expect("scan");
            if found.iter().all(|(_, presence)| *presence != Presence::Away) || Instant::now() > until {
                return found;
            }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { munmap(self.whole.cast(), self.whole_bytes).expect("unmap") };
    }
}

/// Both, or the fallback alone on a kernel before 6.7.
fn methods() -> Vec<ScanMethod> {
    match PagemapScanner::new().expect("open").method() {
        ScanMethod::Scan => vec![ScanMethod::Scan, ScanMethod::Entries],
        ScanMethod::Entries => vec![ScanMethod::Entries],
    }
}

#[test]
fn the_opcode_is_the_one_of_the_kernel_header() {
    assert_eq!(PAGEMAP_SCAN, 0xC060_6610);
}

#[test]
fn untouched_pages_are_not_present_and_written_ones_are() {
    let pages = Pages::new(64 * OS_PAGE, Advice::LinuxNoHugepage);
    for method in methods() {
        assert_eq!(pages.runs(method, 0..64), [], "{method:?}");
    }
    [3, 4, 5, 9, 63].into_iter().for_each(|page| pages.write(page));
    for method in methods() {
        let memory = [3..6, 9..10, 63..64].map(|run| (run, Presence::Memory));
        assert_eq!(pages.runs(method, 0..64), memory, "{method:?}");
        assert_eq!(pages.runs(method, 4..5), [(4..5, Presence::Memory)], "{method:?}");
        assert_eq!(pages.runs(method, 4..4), [], "{method:?}");
    }
}

#[test]
fn absent_pages_are_those_that_hold_nothing() {
    let mut scanner = PagemapScanner::new().expect("open");
    let pages = Pages::new(64 * OS_PAGE, Advice::LinuxNoHugepage);
    [3, 4, 9].into_iter().for_each(|page| pages.write(page));
    assert_eq!(pages.read(5), 0);
    let mut absent = Vec::new();
    let add = |run: Range<usize>| {
        absent.push((run.start - pages.start()) / OS_PAGE..(run.end - pages.start()) / OS_PAGE);
    };
    match scanner.absent_runs(pages.start(), pages.start() + 64 * OS_PAGE, add) {
        Ok(()) => assert_eq!(absent, [0..3, 6..9, 10..64]),
        Err(error) => {
            assert_eq!((error.kind(), scanner.method()), (io::ErrorKind::Unsupported, ScanMethod::Entries));
        }
    }
}

#[test]
fn a_page_that_was_only_read_is_the_shared_page_of_zeros() {
    let pages = Pages::new(8 * OS_PAGE, Advice::LinuxNoHugepage);
    assert_eq!(pages.read(2) + pages.read(3), 0);
    pages.write(4);
    for method in methods() {
        let expected = match method {
            ScanMethod::Scan => vec![(2..4, Presence::ZeroPage), (4..5, Presence::Memory)],
            ScanMethod::Entries => vec![(2..5, Presence::Memory)],
        };
        assert_eq!(pages.runs(method, 0..8), expected);
    }
    pages.write(2);
    assert_eq!(pages.runs(methods()[0], 0..3), [(2..3, Presence::Memory)]);
}

#[test]
fn more_runs_than_a_buffer_holds_are_all_found_and_joined() {
    let count = 3 * ENTRIES;
    let pages = Pages::new(count * OS_PAGE, Advice::LinuxNoHugepage);
    (0..count).step_by(2).for_each(|page| pages.write(page));
    for method in methods() {
        let runs = pages.runs(method, 0..count);
        assert!(runs.len() > 2 * REGIONS);
        assert!(runs.into_iter().eq((0..count).step_by(2).map(|page| (page..page + 1, Presence::Memory))));
    }
    (0..count).for_each(|page| pages.write(page));
    for method in methods() {
        assert_eq!(pages.runs(method, 0..count), [(0..count, Presence::Memory)], "{method:?}");
    }
}

#[test]
fn a_huge_page_is_present_and_cut_to_the_range() {
    let pages = Pages::new(HUGE_FRAME, Advice::LinuxHugepage);
    pages.write(0);
    let all = HUGE_FRAME / OS_PAGE;
    let runs = pages.runs(methods()[0], 0..all);
    // Where huge pages are off or none is free the kernel maps less; the rest of the test then has
    // no subject.
    if runs == [(0..all, Presence::Memory)] {
        for method in methods() {
            assert_eq!(pages.runs(method, 7..100), [(7..100, Presence::Memory)], "{method:?}");
        }
        let mut scanner = PagemapScanner::new().expect("pagemap");
        match scanner.huge_bytes(pages.start() + 7 * OS_PAGE, pages.start() + HUGE_FRAME) {
            // All of it or nothing: the memory can have come as OS pages.
            Ok(bytes) => assert!(bytes == 0 || bytes == HUGE_FRAME - 7 * OS_PAGE, "{bytes}"),
            Err(error) => {
                assert_eq!(
                    (error.kind(), scanner.method()),
                    (io::ErrorKind::Unsupported, ScanMethod::Entries)
                );
            }
        }
    } else {
        assert_eq!((runs.len(), runs[0].0.start), (1, 0));
    }
}

#[test]
fn a_hole_in_the_address_space_is_not_present() {
    let pages = Pages::new(16 * OS_PAGE, Advice::LinuxNoHugepage);
    (0..16).for_each(|page| pages.write(page));
    // SAFETY: inside the mapping, and nothing refers to it.
    unsafe { munmap(pages.at.add(4 * OS_PAGE).cast(), 4 * OS_PAGE).expect("unmap") };
    for method in methods() {
        let runs = pages.runs(method, 0..16);
        // Another test's thread may have mapped something in the hole meanwhile: only its edges are
        // ours.
        assert_eq!(runs.first().map(|run| run.0.start), Some(0), "{method:?}");
        assert_eq!(runs.last().map(|run| run.0.end), Some(16), "{method:?}");
    }
    // Dropping would unmap a mapping that another thread may have made in the hole.
    std::mem::forget(pages);
}

#[test]
#[should_panic(expected = "whole OS pages")]
fn a_range_that_cuts_an_os_page_is_a_mistake_of_the_caller() {
    let mut scanner = PagemapScanner::new().expect("open");
    let _ = scanner.populated_runs(1, OS_PAGE, |_, _| {});
}
