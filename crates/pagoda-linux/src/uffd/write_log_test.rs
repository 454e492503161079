use pagoda_core::page::OS_PAGE;

use super::*;
use crate::io::shared_file::memory_file;
use crate::testing::shared::SharedMapping;
use crate::testing::skip::skip;

const PAGES: usize = 1024;

/// What a look tells, by pages: written, and absent. Absent pages of `held` are protected.
fn take(log: &mut WriteLog, held: &Range<usize>) -> (Vec<usize>, Vec<usize>) {
    let (start, mut written, mut absent) = (log.range.start(), Vec::new(), Vec::new());
    let pages = |run: Range<usize>| (run.start - start) / OS_PAGE..(run.end - start) / OS_PAGE;
    log.take(
        |run| written.extend(pages(run)),
        |tracked, run| {
            let part = pages(run);
            let part = part.start.max(held.start)..part.end.min(held.end);
            absent.extend(part.clone());
            if part.is_empty() {
                return Ok(());
            }
            tracked.protect(start + part.start * OS_PAGE..start + part.end * OS_PAGE)
        },
    )
    .expect("told");
    (written, absent)
}

#[test]
fn a_write_to_shared_memory_is_told_whatever_became_of_its_page() {
    let file = memory_file(c"test", (PAGES * OS_PAGE) as u64).expect("a memfd");
    let [mapping, other] = [(); 2].map(|()| SharedMapping::of(&file, 0, PAGES * OS_PAGE).expect("mapped"));
    let mut log = match WriteLog::start(mapping.range()) {
        Ok(log) => log,
        Err(error) => return skip("tracking writes to shared memory", error),
    };
    // Content that this mapping has not in its page table.
    (600..PAGES).for_each(|page| other.write(page * OS_PAGE, &[1; 8]));
    (0..10).for_each(|page| mapping.write(page * OS_PAGE, &[2; 8]));
    let held = 600..PAGES;
    assert_eq!(take(&mut log, &held), ((0..10).collect(), held.clone().collect()));
    assert_eq!(take(&mut log, &held), (vec![], vec![]), "all is protected");
    // Reading a protected page is no write; writing it is, also the first time by this mapping.
    let mut byte = [0];
    mapping.read(700 * OS_PAGE, &mut byte);
    mapping.write(5 * OS_PAGE, &[3; 8]);
    mapping.write(601 * OS_PAGE, &[3; 8]);
    assert_eq!((take(&mut log, &held), byte), ((vec![5, 601], vec![]), [1]));
    // A written page that leaves the page table is told as absent, a protected one stays so.
    mapping.write(800 * OS_PAGE, &[4; 8]);
    mapping.forget_pages(512 * OS_PAGE, 512 * OS_PAGE).expect("forgotten");
    let (written, absent) = take(&mut log, &held);
    assert!(written.is_empty() && absent.contains(&800), "{written:?} {absent:?}");
    assert_eq!(take(&mut log, &held), (vec![], vec![]));
    mapping.write(800 * OS_PAGE, &[5; 8]);
    assert_eq!(take(&mut log, &held), (vec![800], vec![]));
    drop(log);
    let again = WriteLog::start(mapping.range()).expect("tracked once more");
    assert!(WriteLog::start(mapping.range()).is_err(), "one at a time");
    drop(again);
}
