//! Memory that is shared by a fork and then written to is counted at once. In a process of its own,
//! whose faults are its own.

use std::time::{Duration, Instant};

use pagoda_linux::procfs::proportional::AnonReader;
use pagoda_linux::testing::process::{end, fork, sleep_until_killed};

const BYTES: usize = 64 << 20;
/// The test's own memory beside it.
const SLACK: usize = 8 << 20;
/// Reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn memory_that_a_fork_shares_is_ours_as_soon_as_it_is_written() {
    let mut reader = AnonReader::new().expect("opened");
    let mut memory = vec![1u8; BYTES];
    let (alone, others) = reader.read(true).expect("read");
    assert!(alone >= BYTES && others < SLACK, "{alone} {others}");
    let child = fork(sleep_until_killed).expect("forked");
    // The count of before the fork holds for a quarter of a second, or fifty times as long as it
    // took, which may be long beside other load.
    let begin = Instant::now();
    let mut shared = false;
    while !shared && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
        shared = reader.read(true).expect("read").1 >= BYTES / 2 - SLACK;
    }
    let after = [1, 2, 3].map(|quarters| {
        memory[BYTES / 4 * (quarters - 1)..BYTES / 4 * quarters].fill(2);
        // At once: a budget can't wait for the next proportional count.
        reader.read(true).expect("read")
    });
    end(child).expect("killed");
    assert!(shared, "half of it was seen to be the child's");
    for (written, (resident, others)) in (1..).map(|quarters| BYTES / 4 * quarters).zip(after) {
        assert!(resident >= BYTES, "{resident}");
        assert!(others <= (BYTES - written) / 2 + SLACK, "{others} of others after {written} were written");
    }
    assert_eq!(std::hint::black_box(&memory).len(), BYTES);
}
