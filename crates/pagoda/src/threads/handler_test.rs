//! Fault counters, under pressure and beside discards, which make handlers try again.

use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::{BasePage, Manager};

const PAGES: usize = 48 << 20 >> 12;
const THREADS: usize = 2;
const STEPS: usize = 6000;

#[test]
fn each_fault_is_counted_once_and_under_one_kind() {
    if skip_without_moves("counts of faults") {
        return;
    }
    for base in [BasePage::K4, BasePage::K64, BasePage::M2] {
        let budget = Bytes::mib(if base == BasePage::M2 { 32 } else { 16 });
        let manager = Manager::builder().budget(budget).base_page(base).user_mode_only(true).build();
        let manager = manager.expect("a manager");
        let region = manager.region(Bytes::new((PAGES * OS_PAGE) as u64)).create().expect("a region");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let region = &region;
                scope.spawn(move || {
                    let mut random = Random::new(7, thread as u64);
                    for step in 0..STEPS {
                        let at = random.below(PAGES) * OS_PAGE;
                        match random.below(8) {
                            // Events, which a thread that serves a fault meanwhile has to wait for.
                            0 => region.discard(at, OS_PAGE).expect("discarded"),
                            // Not all of one word, so that it is really stored.
                            1..=5 => region
                                .write_words(at, &[step as u8, 1, 2, 3, 4, 5, 6, 7].repeat(64))
                                .expect("written"),
                            _ => region.read_at(at, &mut [0; 8]).expect("read"),
                        }
                    }
                });
            }
        });
        drop(region);
        until("all faults to be counted", || manager.stats().faults_in_service == 0);
        let stats = manager.stats();
        assert!(stats.retries_again > 0 && stats.stores > 0, "{base}: {stats:?}");
        let kinds = [stats.faults_zero, stats.faults_staged, stats.faults_stored, stats.faults_spurious];
        assert_eq!(kinds.iter().sum::<u64>(), stats.faults, "{base}: {kinds:?}");
        assert!(stats.faults_huge <= stats.faults_zero && stats.faults_spilled <= stats.faults_stored);
    }
}
