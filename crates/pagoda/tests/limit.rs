//! One tenant's noise ended all: a region that fills the store. With a limit it alone is refused.

use pagoda::{AccessError, BasePage, Bytes, Manager, ManagerBuilder, Region};
use pagoda_linux::testing::bus::end_on_bus_error;
use pagoda_linux::testing::process::{fork, wait};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;

const PAGE: usize = 4096;
const LIMIT: Bytes = Bytes::mib(16);

/// Without a file: pages that do not fit have nowhere to go.
fn builders() -> Vec<ManagerBuilder> {
    if skip_without_moves("regions with a limit") {
        return Vec::new();
    }
    let builder = || Manager::builder().budget(Bytes::mib(40));
    vec![
        builder().user_mode_only(true),
        builder().user_mode_only(true).base_page(BasePage::K64),
        builder().serve_in_thread(true),
    ]
}

/// Content that does not compress, of a page.
fn noise(seed: u64, page: usize) -> Vec<u8> {
    let mut random = Random::new(seed, page as u64);
    (0..PAGE / 8).flat_map(|_| random.next().to_ne_bytes()).collect()
}

/// Writes noise until it is refused. Returns how many pages were written.
fn fill(region: &mut Region, seed: u64) -> usize {
    for page in 0..region.len() / PAGE {
        match region.write_at(page * PAGE, &noise(seed, page)) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, AccessError::LimitReached);
                return page;
            }
        }
    }
    region.len() / PAGE
}

fn holds(region: &Region, seed: u64, pages: usize) {
    let mut found = vec![0; PAGE];
    for page in 0..pages {
        region.read_at(page * PAGE, &mut found).expect("its content is read");
        assert!(found == noise(seed, page), "page {page}");
    }
}

#[test]
fn a_region_that_would_fill_the_store_is_refused_and_all_others_go_on() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let mut quiet = manager.region(Bytes::mib(2)).create().expect("a region");
        assert_eq!(fill(&mut quiet, 1), 512);
        let mut noisy = manager.region(Bytes::gib(1)).limit(LIMIT).create().expect("a region");
        let written = fill(&mut noisy, 2);
        let most = LIMIT.as_usize() / PAGE;
        assert!(written <= most && written > most - 32, "{written} pages of {most}");
        assert_eq!(noisy.read_at(800 << 20, &mut [0; 8]), Err(AccessError::LimitReached));
        holds(&noisy, 2, written);
        holds(&quiet, 1, 512);
        // Its present pages may be written anew, paged out, and brought back.
        noisy.page_out(0, written * PAGE).expect("paged out");
        for page in 0..written {
            noisy.write_at(page * PAGE, &noise(3, page)).expect("it holds this page");
        }
        holds(&noisy, 3, written);
        // Discarding makes room, elsewhere too.
        noisy.discard(0, 4 << 20).expect("discarded");
        for page in 0..768 {
            noisy.write_at((512 << 20) + page * PAGE, &noise(4, page)).expect("there is room again");
        }
        holds(&quiet, 1, 512);
    }
}

/// By its address it is SIGBUS, for that thread alone.
#[test]
fn an_access_by_address_beyond_the_limit_is_a_bus_error() {
    for builder in builders() {
        // In a child that has a manager of its own, which the signal ends.
        let child = fork(|| {
            end_on_bus_error().expect("a handler");
            let manager = builder.clone().build().expect("a manager");
            let mut noisy = manager.region(Bytes::mib(64)).limit(LIMIT).create().expect("a region");
            let words = noisy.words_mut();
            for page in 0..words.len() / 512 {
                words[page * 512] = page as u64 + 1;
                assert!(page <= LIMIT.as_usize() / PAGE, "it was not refused");
            }
            0
        });
        let status = wait(child.expect("forked")).expect("waited for");
        assert_eq!(status.exit_status(), Some(pagoda_linux::testing::bus::BUS_ERROR), "{status:?}");
    }
}
