//! Files that others change while they are mapped: made shorter, shorter and longer again, written.
//! No call may show older content, and no older content may be written over the others' changes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pagoda::{BasePage, Bytes, FileError, FileRegion, Manager};
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::directory::on_disk;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGE: usize = 4096;

/// The rest of a file that is cut: its end is within an OS page.
const KEPT: usize = (2 << 20) + 5000;
const CUT_PAGE: usize = KEPT / PAGE;

const BASES: [BasePage; 3] = [BasePage::K4, BasePage::K64, BasePage::M2];

/// A file of 1.5 times the budget, all of it as of value 0, and its manager.
struct Case {
    _directory: tempfile::TempDir,
    path: PathBuf,
    len: usize,
    manager: Manager,
}

impl Case {
    fn new(base: BasePage) -> Self {
        let directory = tempfile::tempdir_in(on_disk()).expect("room");
        let path = directory.path().join("file");
        let budget = Bytes::mib(if base == BasePage::M2 { 64 } else { 16 });
        let len = budget.as_usize() * 3 / 2;
        let bytes: Vec<u8> = (0..len / PAGE).flat_map(|page| content(page, 0)).collect();
        std::fs::write(&path, bytes).expect("room");
        let manager = Manager::builder().budget(budget).base_page(base).user_mode_only(true).build();
        Self { _directory: directory, path, len, manager: manager.expect("manager") }
    }

    fn map(&self, writable: bool) -> FileRegion {
        self.manager.map_file(&self.path).writable(writable).map().expect("a disk")
    }

    fn pages(&self) -> usize {
        self.len / PAGE
    }

    fn set_len(&self, len: usize) {
        other(&self.path).set_len(len as u64).expect("a disk");
    }

    /// Cuts the file and makes it as long as before, so that its length tells nothing. False if the
    /// region looked between the two.
    fn cut_and_regrow(&self, region: &FileRegion) -> bool {
        self.set_len(KEPT);
        self.set_len(self.len);
        read(region, self.pages() - 1) != Err(FileError::Truncated)
    }
}

/// A file that was mapped, prepared, cut and made longer again, without its region seeing it short.
fn cut_unseen(base: BasePage, writable: bool, prepare: impl Fn(&Case, &FileRegion)) -> (Case, FileRegion) {
    loop {
        let case = Case::new(base);
        let region = case.map(writable);
        prepare(&case, &region);
        if case.cut_and_regrow(&region) {
            return (case, region);
        }
    }
}

/// The file in another process's hands.
fn other(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).expect("it is there")
}

/// The content of page `page` as of `value`: never zero.
fn content(page: usize, value: u64) -> [u8; PAGE] {
    let word = (page as u64 + 1) << 16 | value << 8 | 1;
    let mut content = [0; PAGE];
    content.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
    content
}

/// The content of page `page`, as of `value`, of a file that was cut and made longer again.
fn regrown(page: usize, value: u64) -> [u8; PAGE] {
    let mut found = content(page, value);
    found[KEPT.saturating_sub(page * PAGE).min(PAGE)..].fill(0);
    found
}

fn read(region: &FileRegion, page: usize) -> Result<[u8; PAGE], FileError> {
    let mut found = [0; PAGE];
    region.read_at(page * PAGE, &mut found).map(|()| found)
}

fn write(region: &FileRegion, page: usize, value: u64) {
    region.write_at(page * PAGE, &content(page, value)).expect("memory");
}

#[test]
fn a_reader_of_a_file_that_was_cut_and_made_longer_again_sees_its_content() {
    if skip_without_moves("files that are cut and made longer") {
        return;
    }
    for base in BASES {
        let (case, region) = cut_unseen(base, false, |case, region| {
            for page in 0..case.pages() {
                assert!(read(region, page) == Ok(content(page, 0)), "page {page} at base page {base}");
            }
        });
        for page in (0..case.pages()).rev() {
            assert!(read(&region, page) == Ok(regrown(page, 0)), "page {page} at base page {base}");
        }
        // An access by address makes no call: the region looks by itself.
        other(&case.path).write_all_at(&vec![7; case.len], 0).expect("room");
        for page in 0..case.pages() {
            until("others' bytes are seen by address", || {
                load::<8>(region.as_ptr().wrapping_add(page * PAGE)) == [7; 8]
            });
        }
    }
}

#[test]
fn nothing_of_before_is_shown_or_written_to_a_file_that_was_cut_and_made_longer_again() {
    const NEW: usize = 64;
    if skip_without_moves("files that are cut and made longer") {
        return;
    }
    for base in BASES {
        let is_new = |case: &Case, page: usize| page < NEW || page >= case.pages() - NEW;
        let (case, region) = cut_unseen(base, true, |case, region| {
            (0..case.pages()).for_each(|page| write(region, page, 1));
            region.sync().expect("a disk");
            (0..case.pages()).filter(|page| is_new(case, *page)).for_each(|page| write(region, page, 2));
        });
        let expected = |page: usize| regrown(page, if is_new(&case, page) { 2 } else { 1 });
        let mut refused = 0;
        for page in (0..case.pages()).rev() {
            match read(&region, page) {
                Err(FileError::Changed) if page >= CUT_PAGE => refused += 1,
                found => {
                    assert!(
                        found == Ok(expected(page)),
                        "page {page} at base page {base}: {:?}",
                        found.err()
                    );
                }
            }
        }
        assert!(refused >= NEW, "a write is lost, and a call has to say so: {refused}");
        assert_eq!(region.write_at((case.pages() - 1) * PAGE, &[1]), Err(FileError::Changed));
        assert_eq!(region.sync(), Err(FileError::Changed));
        assert_eq!(region.sync(), Ok(()), "it was told");
        region.close().expect("it was told");
        let found = std::fs::read(&case.path).expect("it is there");
        assert_eq!(found.len(), case.len);
        for (page, found) in found.chunks(PAGE).enumerate() {
            assert!(*found == expected(page), "page {page} of the file at base page {base}");
        }
    }
}

#[test]
fn bytes_before_a_cut_in_its_page_stay_and_those_behind_it_are_gone_for_good() {
    if skip_without_moves("files that are cut within a page") {
        return;
    }
    let case = Case::new(BasePage::K64);
    let region = case.map(true);
    for page in (0..case.pages()).rev() {
        write(&region, page, 1);
    }
    region.sync().expect("a disk");
    let (start, rest) = ((CUT_PAGE * PAGE), KEPT - CUT_PAGE * PAGE);
    let mut found = vec![0; rest];
    case.set_len(KEPT);
    for regrows in [false, true] {
        if regrows {
            case.set_len(case.len);
        }
        region.read_at(start, &mut found).expect("it is still there");
        assert!(found == content(CUT_PAGE, 1)[..rest]);
        assert_eq!(read(&region, CUT_PAGE), Err(FileError::Truncated));
        assert_eq!(read(&region, case.pages() - 1), Err(FileError::Truncated));
        assert_eq!(load(region.as_ptr().wrapping_add(KEPT)), [0; 1], "as behind the end of every file");
    }
    region.write_at(start, &vec![9; rest]).expect("it is still there");
    assert_eq!(region.sync(), Err(FileError::Truncated));
    drop(region);
    let file = std::fs::read(&case.path).expect("it is there");
    assert_eq!(file.len(), case.len);
    assert!(file[start..KEPT] == vec![9; rest]);
    assert!(file[KEPT..].iter().all(|byte| *byte == 0), "nothing of before was written");
}

#[test]
fn writes_of_others_are_seen_or_reported_and_other_bytes_are_kept() {
    if skip_without_moves("files that others write") {
        return;
    }
    let case = Case::new(BasePage::K64);
    let reader = case.map(false);
    assert!(read(&reader, 5) == Ok(content(5, 0)));
    let region = case.map(true);
    write(&region, 5, 1);
    write(&region, 6, 1);
    region.sync().expect("a disk");
    assert!(read(&reader, 5) == Ok(content(5, 1)), "by another region");
    write(&region, 6, 2);
    // Neither of these changes a byte.
    let mode = PermissionsExt::from_mode(0o640);
    std::fs::set_permissions(&case.path, mode).expect("it is ours");
    std::fs::rename(&case.path, case.path.with_extension("new")).expect("it is ours");
    assert!(read(&region, 5) == Ok(content(5, 1)) && read(&region, 6) == Ok(content(6, 2)));
    let read_bytes = region.stats().read;
    for value in 3..20 {
        write(&region, 6, value);
        region.sync().expect("a disk");
        assert!(read(&region, 6) == Ok(content(6, value)));
    }
    assert_eq!(region.stats().read, read_bytes, "our own writes are not taken for others'");
    write(&region, 6, 20);
    let path = case.path.with_extension("new");
    other(&path).write_all_at(&content(5, 30), (5 * PAGE) as u64).expect("room");
    assert_eq!(read(&region, 5), Err(FileError::Changed));
    assert!(read(&region, 6) == Ok(content(6, 20)));
    assert_eq!(region.sync(), Err(FileError::Changed));
    assert_eq!(region.sync(), Ok(()));
    // Also a write at once, before any look.
    write(&region, 6, 21);
    other(&path).write_all_at(&content(6, 31), (6 * PAGE) as u64).expect("room");
    assert_eq!(region.close(), Err(FileError::Changed));
    let found = std::fs::read(&path).expect("it is there");
    for (page, value) in [(4, 0), (5, 30), (6, 31)] {
        assert!(found[page * PAGE..][..PAGE] == content(page, value), "page {page}");
    }
}
