//! A library's regions on real userfaultfd: every byte against a shadow, far beyond the budget.

use pagoda::{BasePage, Bytes, Manager};
use pagoda_linux::testing::random::Random;

fn skip() -> bool {
    let skip = !pagoda::userfaultfd_allows_managers();
    if skip {
        assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here");
        eprintln!("SKIPPED regions: this machine offers no userfaultfd with UFFDIO_MOVE");
    }
    skip
}

#[test]
fn what_was_written_is_read_at_each_base_page() {
    if skip() {
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
        let pages = len / 4096;
        let mut shadow = vec![0u64; pages];
        let mut random = Random::new(base.bytes() as u64, 0);
        for round in 0..2 * pages {
            let page = if round < pages { round } else { random.below(pages) };
            let offset = page * 4096;
            let mut word = [0; 8];
            region.read_at(offset, &mut word);
            assert_eq!(u64::from_le_bytes(word), shadow[page], "page {page} at base page {base}");
            let value = random.next();
            shadow[page] = value;
            let mut content = [0u8; 4096];
            for (i, chunk) in content.chunks_exact_mut(64).enumerate() {
                chunk[..8].copy_from_slice(&value.wrapping_mul(i as u64 + 1).to_le_bytes());
            }
            region.write_at(offset, &content);
            if random.below(1000) == 0 {
                let from = random.below(pages - 40);
                let count = 1 + random.below(39);
                region.discard(from * 4096, count * 4096).expect("discard");
                shadow[from..from + count].fill(0);
            }
        }
        let stats = manager.stats();
        assert!(stats.stores > 0 && stats.faults_stored > 0, "it ran over its budget: {stats:?}");
        assert!(stats.anon_peak_bytes <= (64 + 16) << 20, "{} is over budget", stats.anon_peak_bytes);
        region.close();
        let stats = manager.stats();
        assert_eq!((stats.resident_bytes, stats.staged_bytes, stats.stored_bytes), (0, 0, 0));
    }
}
