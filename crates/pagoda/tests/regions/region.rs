//! A library's regions on real userfaultfd: every byte against a shadow, far beyond the budget.

use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::regions::support::{PAGE, Shadow, settled};

/// Every line is another.
fn content(value: u64) -> [u8; PAGE] {
    let mut content = [0; PAGE];
    for (i, line) in content.chunks_exact_mut(64).enumerate() {
        line[..8].copy_from_slice(&value.wrapping_mul(i as u64 + 1).to_le_bytes());
    }
    content
}

#[test]
fn written_bytes_are_read_at_each_base_page() {
    if skip_without_moves("regions") {
        return;
    }
    for base in BasePage::ALL {
        let budget_mib = if base == BasePage::M2 { 64 } else { 16 };
        let manager = Manager::builder()
            .budget(Bytes::mib(budget_mib))
            .base_page(base)
            .user_mode_only(true)
            .spill_to("/var/tmp", Bytes::gib(1))
            .build()
            .expect("manager");
        let len = (budget_mib as usize * length(6, 10) / 4) << 20;
        let mut region = manager.region(Bytes::new(len as u64)).create().expect("region");
        let random = Random::new(base.bytes() as u64, 0);
        let mut shadow = Shadow::new(len, random, content);
        shadow.run(&mut region, len / PAGE / 2, &format!("at base page {base}"));
        let stats = manager.stats();
        assert!(stats.stores > 0 && stats.faults_stored > 0, "it ran over its budget: {stats:?}");
        let most = (budget_mib + 16) << 20;
        assert!(stats.anon_peak_bytes <= most, "{} is over budget", stats.anon_peak_bytes);
        region.close();
        // The thread that stored a page last counts that after it gave the entry back.
        until("nothing is left of it", || {
            let stats = manager.stats();
            (stats.resident_bytes, stats.staged_bytes, stats.stored_bytes) == (0, 0, 0)
        });
    }
}

/// A page that was only read costs nothing to evict again; of a written page the written part does.
#[test]
fn a_page_that_was_only_read_is_not_stored_again() {
    const BASE: usize = 64 << 10;
    const BASE_PAGES: usize = 64;
    if skip_without_moves("clean copies") {
        return;
    }
    let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build().expect("manager");
    let mut region = manager.region(Bytes::new((BASE_PAGES * BASE) as u64)).create().expect("region");
    let pages = BASE_PAGES * BASE / PAGE;
    (0..pages).for_each(|page| region.write_at(page * PAGE, &content(page as u64)).expect("written"));
    let out = |region: &Region| {
        // Pages that the kernel has only just made may be busy for a moment, and stay then; so do
        // pages that a handler is about to bring ahead.
        let mut stats = settled(&manager);
        until("all of it is out", || {
            region.page_out(0, region.len()).expect("room in the store");
            stats = manager.stats();
            stats.resident_bytes == 0
        });
        stats
    };
    let first = out(&region);
    assert!(first.stores >= BASE_PAGES as u64 && first.evictions_clean == 0, "{first:?}");
    let mut found = [0; PAGE];
    let read = |region: &Region, found: &mut [u8; PAGE]| {
        (0..pages).for_each(|page| {
            region.read_at(page * PAGE, found).expect("read");
            assert!(*found == content(page as u64), "page {page}");
        });
    };
    read(&region, &mut found);
    let second = out(&region);
    assert_eq!(second.stores, first.stores, "nothing was stored again");
    assert!(second.evictions_clean >= BASE_PAGES as u64, "{second:?}");
    read(&region, &mut found);
    region.write_at(5 * BASE + 3 * PAGE, &[1]).expect("written");
    let third = out(&region);
    assert_eq!(third.stores, second.stores + 1, "the base page that was written");
    region.read_at(5 * BASE + 3 * PAGE, &mut found).expect("read");
    assert!(found[0] == 1 && found[1..] == content((5 * BASE / PAGE + 3) as u64)[1..]);
}
