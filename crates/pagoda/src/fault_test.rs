//! Faults of pages that lie in the file: several threads use parts of the same base pages, and each reads what it wrote last.

use std::sync::atomic::Ordering;
use std::thread;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::random::Random;

use crate::Manager;
use crate::store::page_of;

const OS_PAGES: usize = 96 << 20 >> 12;
const THREADS: usize = 3;

/// An OS page that was written for the `version`th time: about half of them compress away.
fn content(page: usize, version: u32) -> Vec<u8> {
    page_of(4096, 43, page as u64 * 1000 + u64::from(version))
}

#[test]
fn parts_of_pages_from_the_file_are_what_was_written_last() {
    if !crate::userfaultfd_allows_managers() {
        assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here");
        eprintln!("SKIPPED parts of pages: this machine offers no userfaultfd with UFFDIO_MOVE");
        return;
    }
    for (base, in_thread) in [(BasePage::K64, false), (BasePage::K64, true), (BasePage::K16, false)] {
        let builder = Manager::builder().budget(Bytes::mib(24)).base_page(base).user_mode_only(true);
        let builder = builder.serve_in_thread(in_thread).spill_to("/var/tmp", Bytes::mib(512));
        let manager = builder.build().expect("a manager");
        let region = manager.region(Bytes::new(OS_PAGES as u64 * 4096)).create().expect("a region");
        thread::scope(|scope| {
            for id in 0..THREADS {
                let region = &region;
                scope.spawn(move || {
                    let mut random = Random::new(7, id as u64);
                    let mut versions = [0; OS_PAGES / THREADS];
                    let mut back = vec![0; 4096];
                    for step in 0..2 * versions.len() {
                        // First each one, then any: a base page has parts of all threads.
                        let own = if step < versions.len() { step } else { random.below(versions.len()) };
                        let page = own * THREADS + id;
                        if versions[own] > 0 {
                            region.read_at(page * 4096, &mut back);
                            assert!(back == content(page, versions[own]), "page {page} at step {step}");
                        }
                        if versions[own] == 0 || random.one_in(4) {
                            versions[own] += 1;
                            region.write_words(page * 4096, &content(page, versions[own]));
                        }
                    }
                });
            }
        });
        let store = &manager.engine().store;
        let (usage, parts) = (store.usage(), store.parts_read.load(Ordering::Relaxed));
        println!("{base}, in thread {in_thread}: {parts} parts from a file of {}", usage.file_bytes);
        assert!(usage.file_bytes > Bytes::mib(8) && parts > 1000, "{parts} parts, {usage:?}");
    }
}
