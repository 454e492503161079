//! A library's budget of which nothing can be moved out: the process was aborted after ten seconds,
//! with all other tenants.

use std::sync::{Arc, Mutex};

use pagoda::error::StopReason;
use pagoda::{Bytes, Exhausted, Manager, ManagerBuilder, Region};
use pagoda_linux::testing::random::mix;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGE: usize = 4096;
const BUDGET: Bytes = Bytes::mib(32);

/// Words that can't be compressed, so that the store, which has no file, is soon full.
fn page(seed: u64, number: usize) -> Vec<u8> {
    let word = |word: u64| mix(seed << 40 ^ (number as u64) << 10 ^ word).to_le_bytes();
    (0..PAGE as u64 / 8).flat_map(word).collect()
}

fn fill(region: &mut Region, seed: u64) {
    for number in 0..region.len() / PAGE {
        region.write_at(number * PAGE, &page(seed, number)).expect("written");
    }
}

fn is_intact(region: &Region, seed: u64) -> bool {
    let mut found = vec![0; PAGE];
    (0..region.len() / PAGE).all(|number| {
        region.read_at(number * PAGE, &mut found).expect("read");
        found == page(seed, number)
    })
}

fn passes_its_budget(builder: ManagerBuilder) {
    let told = Arc::new(Mutex::new(Vec::<Exhausted>::new()));
    let tell = Arc::clone(&told);
    let builder = builder.on_exhausted(move |exhausted| tell.lock().expect("whole").push(exhausted));
    let manager = builder.build().expect("a manager");
    let mut quiet = manager.region(Bytes::mib(8)).create().expect("a region");
    fill(&mut quiet, 1);
    let mut noisy = manager.region(Bytes::mib(64)).create().expect("a region");
    fill(&mut noisy, 2);
    assert!(is_intact(&quiet, 1) && is_intact(&noisy, 2));
    let passed = manager.stats().passed_budget_bytes;
    assert!(passed >= 8 << 20, "72 MiB are held in 32: {passed}");
    until("the host is told", || !told.lock().expect("whole").is_empty());
    let first = told.lock().expect("whole")[0];
    assert!(matches!(first.reason, StopReason::StoreFull | StopReason::NothingEvictable(_)), "{first:?}");
    assert!(first.passed > Bytes::ZERO);
    noisy.close();
    until("the budget is kept again", || manager.stats().passed_budget_bytes == 0);
    assert!(is_intact(&quiet, 1));
}

#[test]
fn a_full_store_aborted_the_process() {
    if skip_without_moves("an exhausted budget") {
        return;
    }
    passes_its_budget(Manager::builder().budget(BUDGET).user_mode_only(true));
}

#[test]
fn a_full_store_aborted_a_process_that_serves_its_own_faults() {
    if skip_without_moves("an exhausted budget") {
        return;
    }
    passes_its_budget(Manager::builder().budget(BUDGET).serve_in_thread(true));
}
