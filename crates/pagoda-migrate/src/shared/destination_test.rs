use std::os::unix::fs::FileExt;

use pagoda_linux::io::shared_file::memory_file;
use pagoda_linux::testing::shared::SharedMapping;
use pagoda_linux::testing::skip::skip_without_shared_faults;

use super::*;
use crate::shared::arrival::Serving;

const PAGES: u64 = 1024;

#[test]
fn owed_pages_are_holes_or_the_switch_is_refused() {
    if skip_without_shared_faults("owed pages of shared memory") {
        return;
    }
    let file = memory_file(c"guest", (PAGES + 1) * PAGE).expect("a memfd");
    let mapping = SharedMapping::of(&file, PAGE, (PAGES * PAGE) as usize).expect("mapped");
    let len = Bytes::new(PAGES * PAGE);
    let mut memory = SharedMemory::new(file.try_clone().expect("a descriptor"), PAGE, len).expect("memory");
    let serving = Serving::start(&memory, mapping.as_ptr()).expect("a userfaultfd");
    let mut destination = SharedDestination::new(&mut memory, Some(serving.owing()));
    destination.prepare(len).expect("prepared");
    // Older content of an owed page goes, and that beside it stays.
    destination.write_at(0, &[1; 4 * PAGE as usize]).expect("written");
    for owed in [1..2, 600..700] {
        destination.owe(owed.start * PAGE..owed.end * PAGE).expect("owed");
    }
    assert_eq!(serving.owing().runs().collect::<Vec<_>>(), [1..2, 600..700]);
    destination.check_owed().expect("all are holes");
    let mut beside = [0; PAGE as usize];
    destination.read_at(2 * PAGE, &mut beside).expect("read");
    assert_eq!(beside, [1; PAGE as usize]);
    // One byte anywhere in them, and the file has a page there.
    for page in [1, 600, 650, 699] {
        file.write_all_at(&[2], (1 + page) * PAGE + 100).expect("written");
        let refused = destination.check_owed().expect_err("there is a page").to_string();
        assert!(refused.contains(&format!("pages at {} of", (1 + page) * PAGE)), "{refused}");
        destination.discard(page * PAGE..(page + 1) * PAGE).expect("a hole");
    }
    file.write_all_at(&[2], 700 * PAGE + PAGE).expect("written");
    destination.check_owed().expect("the page behind them is not owed");
    file.set_len(PAGES * PAGE).expect("shorter");
    let refused = destination.check_owed().expect_err("it is shorter").to_string();
    assert!(refused.contains("cut it short"), "{refused}");
}
