//! A file that fails, which no real one can be made to do at a given moment.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_linux::testing::directory::on_disk;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;
use pagoda_linux::uffd::Errno as KernelErrno;

use super::page_file::Trouble;
use super::*;
use crate::error::Errno;
use crate::frames::zones::Place;
use crate::state::helpers::HELPERS;
use crate::{BasePage, Manager};

const LEN: usize = (48 << 20) + 1234;

/// A file of `LEN` bytes with a page's number in each, mapped by a manager of a third of that.
pub(super) fn mapped(base: BasePage) -> (tempfile::NamedTempFile, Manager, FileRegion) {
    let file = tempfile::NamedTempFile::new_in(on_disk()).expect("room");
    let content: Vec<u8> = (0..LEN).map(|at| (at / OS_PAGE % 251) as u8).collect();
    std::fs::write(file.path(), content).expect("room");
    let manager = Manager::builder()
        .budget(Bytes::mib(if base == BasePage::M2 { 64 } else { 16 }))
        .base_page(base)
        .spill_to("/var/tmp", Bytes::mib(256))
        .user_mode_only(true)
        .build()
        .expect("manager");
    let region = manager.map_file(file.path()).writable(true).map().expect("a disk");
    (file, manager, region)
}

/// Each file had four threads of its own: 50 files had 200.
#[test]
fn all_files_of_a_manager_share_its_helpers_and_each_is_read_ahead() {
    const FILES: usize = 50;
    const FILE: usize = 2 << 20;
    if skip_without_moves("files that share helpers") {
        return;
    }
    let directory = tempfile::tempdir_in(on_disk()).expect("room");
    let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build().expect("a manager");
    let threads = |region: &FileRegion| region.inner().shared.count_threads("pagoda-ahead");
    let mut regions = Vec::new();
    for number in 0..FILES {
        let path = directory.path().join(number.to_string());
        std::fs::write(&path, vec![number as u8 + 1; FILE]).expect("room");
        regions.push(manager.map_file(&path).writable(true).map().expect("a disk"));
        assert_eq!(threads(&regions[0]), HELPERS, "with {} files", number + 1);
    }
    // All readers at once, each as far as its first windows.
    let mut found = vec![0; OS_PAGE];
    for at in (0..FILE / 4).step_by(OS_PAGE) {
        for (region, number) in regions.iter().zip(1u8..) {
            region.read_at(at, &mut found).expect("a disk");
            assert!(found.iter().all(|byte| *byte == number), "file {number} at {at}");
        }
    }
    until("each is read ahead", || regions.iter().all(|region| region.stats().read_ahead > Bytes::ZERO));
    // Files that are closed meanwhile take nothing of the others with them.
    let others = regions.split_off(FILES / 2);
    regions.into_iter().for_each(|region| region.close().expect("closed"));
    for (region, number) in others.iter().zip(FILES as u8 / 2 + 1..) {
        region.write_at(FILE - 1, &[0]).expect("a disk");
        region.read_at(FILE - OS_PAGE, &mut found).expect("a disk");
        assert!(found[..OS_PAGE - 1].iter().all(|byte| *byte == number) && found[OS_PAGE - 1] == 0);
        region.sync().expect("a disk");
    }
    assert_eq!(threads(&others[0]), HELPERS);
}

#[test]
fn a_page_that_can_not_be_read_is_an_error_and_stays_one() {
    if skip_without_moves("a file that can't be read") {
        return;
    }
    let (_file, _manager, region) = mapped(BasePage::K64);
    let failing = &region.inner().file.failing;
    let mut byte = [0];
    region.read_at(0, &mut byte).expect("it works");
    failing.reads.store(true, Ordering::Release);
    let at = (24 << 20) + 5000;
    let errno = Errno(KernelErrno::IO.raw_os_error());
    let error = FileError::Unreadable { offset: Bytes::new((24 << 20) + 4096), errno };
    assert_eq!(region.read_at(at, &mut byte), Err(error));
    failing.reads.store(false, Ordering::Release);
    assert_eq!(region.read_at(at, &mut byte), Err(error), "it was never tried again");
    assert!(region.write_at(at, &[1]).is_err());
    region.read_at(40 << 20, &mut byte).expect("a page elsewhere was not lost");
    assert_eq!(byte, [((40 << 20) / OS_PAGE % 251) as u8]);
}

#[test]
fn a_page_that_can_not_be_written_is_kept_told_once_and_written_later() {
    if skip_without_moves("a file that can't be written") {
        return;
    }
    // The usual one and the one in huge frames; or all.
    for &base in length(&[BasePage::K64, BasePage::M2][..], &BasePage::ALL) {
        let (file, manager, region) = mapped(base);
        let failing = &region.inner().file.failing;
        failing.writes.store(true, Ordering::Release);
        // More than the budget is written; the rest is as it was.
        let written = LEN.div_ceil(OS_PAGE) / length(2, 1);
        let value = |page: usize| match page {
            _ if page >= written => (page % 251) as u8,
            _ if page.is_multiple_of(3) => 0,
            _ => (page % 239) as u8,
        };
        for page in 0..written {
            let len = (LEN - page * OS_PAGE).min(OS_PAGE);
            region.write_at(page * OS_PAGE, &vec![value(page); len]).expect("memory");
        }
        let is_whole = |when: &str| {
            let mut page = [0; OS_PAGE];
            for number in (0..LEN / OS_PAGE).rev() {
                region.read_at(number * OS_PAGE, &mut page).expect("it is kept");
                assert!(page == [value(number); OS_PAGE], "page {number} {when}, base page {base}");
            }
        };
        is_whole("while nothing could be written");
        let error = Err(FileError::Unwritten { errno: Errno(KernelErrno::IO.raw_os_error()) });
        assert_eq!(region.sync(), error);
        assert_eq!(region.sync(), error, "it was tried again");
        failing.writes.store(false, Ordering::Release);
        if base != BasePage::M2 {
            // Reclaim's trouble was returned; the pages to be written are written.
            assert!(manager.stats().stores > 0, "it was kept in the store");
        }
        let mut last = region.sync();
        if last.is_err() {
            // Something left memory between the sync before and the end of the trouble.
            last = region.sync();
        }
        assert_eq!(last, Ok(()));
        is_whole("afterwards");
        let found = std::fs::read(file.path()).expect("it is there");
        assert_eq!(found.len(), LEN);
        assert!((0..LEN).all(|at| found[at] == value(at / OS_PAGE)), "base page {base}");
        failing.flushes.store(true, Ordering::Release);
        assert!(matches!(region.sync(), Err(FileError::Unsafe { .. })));
    }
}

/// The kernel tells once that it lost writes: the next sync must not take the pages in memory for
/// safe.
#[test]
fn pages_that_a_failed_flush_may_have_lost_are_written_anew() {
    if skip_without_moves("a disk that loses writes") {
        return;
    }
    let (file, _manager, region) = mapped(BasePage::K64);
    let failing = &region.inner().file.failing;
    let unsafe_ = Err(FileError::Unsafe { errno: Errno(KernelErrno::IO.raw_os_error()) });
    let written = || region.stats().written.get();
    region.write_at(0, &[7; OS_PAGE]).expect("memory");
    region.sync().expect("a disk");
    assert_eq!(written(), OS_PAGE as u64);
    region.write_at(5 * OS_PAGE, &[8; OS_PAGE]).expect("memory");
    failing.flushes.store(true, Ordering::Release);
    assert_eq!(region.sync(), unsafe_);
    failing.flushes.store(false, Ordering::Release);
    let before = written();
    // The same again, as the error says.
    region.write_at(5 * OS_PAGE, &[8; OS_PAGE]).expect("memory");
    assert_eq!(region.sync(), Ok(()));
    assert!(written() >= before + 2 * OS_PAGE as u64, "{} of both pages", written() - before);
    // And the worse error is returned first.
    failing.writes.store(true, Ordering::Release);
    failing.flushes.store(true, Ordering::Release);
    region.write_at(9 * OS_PAGE, &[9; OS_PAGE]).expect("memory");
    assert_eq!(region.sync(), unsafe_);
    failing.writes.store(false, Ordering::Release);
    failing.flushes.store(false, Ordering::Release);
    assert_eq!(region.sync(), Ok(()));
    let found = std::fs::read(file.path()).expect("it is there");
    assert!(
        [(0, 7), (5, 8), (9, 9)]
            .iter()
            .all(|(page, value)| found[page * OS_PAGE..][..OS_PAGE] == [*value; OS_PAGE])
    );
}

/// A sync that fails for another reason has not told that pages are gone.
#[test]
fn changes_by_others_are_told_by_the_sync_after_one_that_failed() {
    if skip_without_moves("a disk that fails while others write") {
        return;
    }
    let (file, _manager, region) = mapped(BasePage::K64);
    let failing = &region.inner().file.failing;
    // By another tick of the kernel's clock than the file was made.
    std::thread::sleep(std::time::Duration::from_millis(20));
    region.write_at(5 * OS_PAGE, &[7; OS_PAGE]).expect("memory");
    let other = std::fs::File::options().write(true).open(file.path()).expect("it is ours");
    other.write_all_at(&[30; OS_PAGE], 5 * OS_PAGE as u64).expect("room");
    failing.flushes.store(true, Ordering::Release);
    assert!(matches!(region.sync(), Err(FileError::Unsafe { .. })));
    failing.flushes.store(false, Ordering::Release);
    assert_eq!(region.sync(), Err(FileError::Changed));
    assert_eq!(region.sync(), Ok(()));
    // Nor does trouble that comes to nothing hide it.
    region.inner().file.is_untold(Trouble::Os(Errno(KernelErrno::IO.raw_os_error())));
    region.inner().file.is_untold(Trouble::Changed);
    assert_eq!(region.sync(), Err(FileError::Changed));
}

#[test]
fn a_writer_beyond_the_dirty_limit_of_a_zone_waits_for_write_back() {
    const THREADS: usize = 4;
    if skip_without_moves("dirty limits") {
        return;
    }
    let zoned = || {
        let zone = |name, mib| (name, Bytes::mib(mib), Place::Local);
        [zone("small", 4), zone("large", 28)]
            .into_iter()
            .fold(Manager::builder(), |builder, (name, bytes, place)| builder.zone(name, bytes, place))
    };
    for builder in [Manager::builder().budget(Bytes::mib(32)), zoned()] {
        let (file, _manager, region) = mapped(BasePage::K64);
        drop(region);
        let manager = builder.user_mode_only(true).build().expect("manager");
        let region = manager.map_file(file.path()).writable(true).map().expect("a disk");
        let engine = manager.engine();
        let zones = || {
            (0..engine.zones.count()).map(|zone| (engine.zones.dirty_bytes(zone), engine.zones.size(zone)))
        };
        let excess = |slack: u64| zones().find(|(dirty, size)| dirty.get() > size.get() / 5 + slack);
        let write = |page: usize| {
            region.write_at(page * OS_PAGE, &[(page % 239) as u8 + 1; OS_PAGE]).expect("memory");
        };
        // It fits: without a limit nothing of it would be written.
        for page in 0..(16 << 20) / OS_PAGE {
            write(page);
            assert_eq!(excess(0), None, "after page {page}");
        }
        let stats = region.stats();
        assert!(stats.written >= Bytes::mib(8), "the rest was written back: {stats:?}");
        // Until then the thread that has nothing else to do writes back.
        until("the zones count the file's dirty bytes", || {
            region.stats().dirty.get() == zones().map(|(dirty, _)| dirty.get()).sum::<u64>()
        });
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let write = &write;
                scope.spawn(move || (thread..LEN / OS_PAGE).step_by(THREADS).for_each(write));
            }
        });
        assert_eq!(excess((THREADS as u64 * 64) << 10), None, "each is one base page beyond it at most");
        let mut page = [0; OS_PAGE];
        for number in 0..LEN / OS_PAGE {
            region.read_at(number * OS_PAGE, &mut page).expect("a disk");
            assert!(page == [(number % 239) as u8 + 1; OS_PAGE], "page {number}");
        }
        region.sync().expect("a disk");
        assert_eq!((region.stats().dirty, zones().map(|(dirty, _)| dirty.get()).sum()), (Bytes::ZERO, 0));
        // A region that is closed takes its marks with it, also where nothing can be written.
        write(0);
        region.inner().file.failing.writes.store(true, Ordering::Release);
        assert_eq!(region.stats().dirty, Bytes::kib(64));
        drop(region);
        assert_eq!(zones().map(|(dirty, _)| dirty.get()).sum::<u64>(), 0);
    }
}

#[test]
fn excess_dirty_pages_are_written_back_in_idle_times() {
    if skip_without_moves("writing back in the background") {
        return;
    }
    let (_file, _manager, region) = mapped(BasePage::K64);
    // More than a tenth of 16 MiB, and less than a fifth.
    for page in 0..(5 << 19) / OS_PAGE {
        region.write_at(page * OS_PAGE, &[7; OS_PAGE]).expect("memory");
    }
    until("the excess is written back", || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let stats = region.stats();
        // A mark is removed before its page is written.
        stats.dirty <= Bytes::new((16 << 20) / 10) && stats.written > Bytes::ZERO
    });
}
