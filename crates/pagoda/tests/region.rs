//! A library's regions on real userfaultfd: every byte against a shadow, far beyond the budget.

mod support;

use pagoda::{BasePage, Bytes, Manager};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;

use support::{PAGE, Shadow};

/// Every line is another.
fn content(value: u64) -> [u8; PAGE] {
    let mut content = [0; PAGE];
    for (i, line) in content.chunks_exact_mut(64).enumerate() {
        line[..8].copy_from_slice(&value.wrapping_mul(i as u64 + 1).to_le_bytes());
    }
    content
}

#[test]
fn what_was_written_is_read_at_each_base_page() {
    if skip_without_moves("regions") {
        return;
    }
    for base in BasePage::ALL {
        let manager = Manager::builder()
            .budget(Bytes::mib(64))
            .base_page(base)
            .user_mode_only(true)
            .spill_to("/var/tmp", Bytes::gib(1))
            .build()
            .expect("manager");
        let len = 160 << 20;
        let mut region = manager.region(Bytes::new(len as u64)).create().expect("region");
        let random = Random::new(base.bytes() as u64, 0);
        let mut shadow = Shadow::new(len, random, content);
        shadow.run(&mut region, len / PAGE, &format!("at base page {base}"));
        let stats = manager.stats();
        assert!(stats.stores > 0 && stats.faults_stored > 0, "it ran over its budget: {stats:?}");
        assert!(stats.anon_peak_bytes <= (64 + 16) << 20, "{} is over budget", stats.anon_peak_bytes);
        region.close();
        let stats = manager.stats();
        assert_eq!((stats.resident_bytes, stats.staged_bytes, stats.stored_bytes), (0, 0, 0));
    }
}
