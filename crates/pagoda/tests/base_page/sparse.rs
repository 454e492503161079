//! Sparse memory beyond the budget: only touched OS pages are held, stored and told.

use pagoda::{Bytes, Manager, Purpose};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::pages::{check, write};

/// One OS page of each base page.
const STEP: usize = 16;

#[test]
fn sparse_memory_beyond_the_budget_counts_what_was_touched() {
    if skip_without_moves("sparse memory beyond the budget") {
        return;
    }
    let len = 512 << 20;
    let budget = Bytes::mib(16);
    let manager = Manager::builder().budget(budget).user_mode_only(true).build().expect("manager");
    let region = manager.region(Bytes::new(len as u64)).purpose(Purpose::Unknown).create();
    let mut region = region.expect("region");
    let pages = || (0..len / 4096).step_by(STEP).map(|page| page + page / STEP * 7 % STEP);
    write(&mut region, pages());
    check(&mut region, pages());
    let touched = (pages().count() * 4096) as u64;
    let stats = manager.stats();
    let told = [stats.held_peak_bytes, stats.stored_peak_bytes].map(|bytes| 100 * bytes / touched);
    assert!((90..=125).contains(&told[0]) && told[1] <= 100, "{told:?} percent of {touched}: {stats:?}");
    assert!(stats.staged_bytes <= stats.resident_bytes, "{stats:?}");
    assert!(stats.anon_peak_bytes <= budget.get() + budget.get() / 4, "{stats:?}");
}
