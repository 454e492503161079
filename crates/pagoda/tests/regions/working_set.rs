//! A working set that does not compress, beside content that is not used any more: it gets the
//! memory, and the other goes to the file.

use std::time::{Duration, Instant};

use pagoda::{Bytes, Manager, Region};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;

const PAGE: usize = 4096;

/// Much longer than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A page's content: noise, or for a half of it.
fn content(seed: u64, page: usize, noise: usize) -> Vec<u8> {
    let mut random = Random::new(seed, page as u64);
    let words = (0..PAGE / 8).map(|word| if word * 8 < noise { random.next() } else { page as u64 });
    words.flat_map(u64::to_ne_bytes).collect()
}

fn fill(region: &mut Region, seed: u64, noise: usize) {
    for page in 0..region.len() / PAGE {
        region.write_at(page * PAGE, &content(seed, page, noise)).expect("there is room");
    }
}

#[test]
fn a_working_set_stayed_in_the_file_while_memory_held_what_was_not_used() {
    if skip_without_moves("a working set in the file") {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let builder = Manager::builder().budget(Bytes::mib(48)).user_mode_only(true);
    let manager = builder.spill_to(directory.path(), Bytes::gib(1)).build().expect("a manager");
    let mut hot = manager.region(Bytes::mib(32)).create().expect("a region");
    let mut cold = manager.region(Bytes::mib(128)).create().expect("a region");
    fill(&mut hot, 1, PAGE);
    fill(&mut cold, 2, PAGE / 2);
    let pages = hot.len() / PAGE;
    let mut random = Random::new(3, 0);
    let begin = Instant::now();
    let mut found = [0; 8];
    loop {
        let before = manager.stats().faults;
        for _ in 0..pages {
            let page = random.below(pages);
            hot.read_at(page * PAGE, &mut found).expect("read");
            assert_eq!(found, content(1, page, 8)[..8]);
        }
        let faults = manager.stats().faults - before;
        if faults < pages as u64 / 20 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{faults} faults in {pages} reads");
    }
    for page in (0..cold.len() / PAGE).step_by(61) {
        let mut found = vec![0; PAGE];
        cold.read_at(page * PAGE, &mut found).expect("read");
        assert!(found == content(2, page, PAGE / 2), "page {page}");
    }
}
