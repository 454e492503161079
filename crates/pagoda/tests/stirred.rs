//! Regions while the kernel moves their pages to other frames, and swaps out all of the process:
//! the page tables often show no page then where there is one.
//!
//! `PAGODA_RUNS` says how many runs it makes, `PAGODA_SEED` repeats one of them.

use pagoda::{BasePage, Bytes, Manager};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::stir::{Stir, while_stirred};

#[allow(dead_code, reason = "each of the tests uses its own part")]
mod support;

use support::{PAGE, Shadow};

fn content(value: u64) -> [u8; PAGE] {
    let mut content = [0; PAGE];
    let words = content.as_chunks_mut().0.iter_mut().enumerate();
    words.for_each(|(i, word)| *word = (value ^ (i as u64 / 16)).to_le_bytes());
    content
}

/// All of the memory is written and read again and again, at each base page, in and over the
/// budget.
fn run(case: &str) {
    for seed in runs(1) {
        for base in BasePage::ALL {
            let budget_mib = if base == BasePage::M2 { 64 } else { 24 };
            for in_thread in [false, true] {
                let builder =
                    Manager::builder().budget(Bytes::mib(budget_mib)).base_page(base).user_mode_only(true);
                let manager = builder.serve_in_thread(in_thread).build().expect("a manager");
                let over_mib = length(8, 16);
                let mut region =
                    manager.region(Bytes::mib(budget_mib + over_mib)).create().expect("a region");
                let mut shadow = Shadow::new(region.len(), Random::new(seed, base.bytes() as u64), content);
                let case = format!("PAGODA_SEED={seed}, {case}, base page {base}, in thread: {in_thread}");
                let pages = region.len() / PAGE;
                shadow.run(&mut region, length(pages / 4, pages), &case);
            }
        }
    }
}

#[test]
fn every_byte_is_right_while_the_kernel_moves_pages_to_other_frames() {
    if skip_without_moves("a stirred region") {
        return;
    }
    while_stirred("regions under compaction", Stir::by_compaction(), || run("compacted"));
}

#[test]
fn every_byte_is_right_while_the_kernel_swaps_the_process_out() {
    if skip_without_moves("a stirred region") {
        return;
    }
    while_stirred("regions that are swapped out", Stir::by_swapping(), || run("swapped out"));
}
