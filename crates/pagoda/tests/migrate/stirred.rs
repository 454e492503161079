//! A region that moves while the kernel moves its pages to other frames, or swaps out all of the
//! process: pages that the page tables do not show for a moment are sent all the same.

use pagoda::migrate::{Codec, ZeroPolicy};
use pagoda::{BasePage, Bytes};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::runs;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::stir::{Stir, while_stirred};

use crate::migrate::program::Program;
use crate::migrate::support::{live_options, manager, migrate, receive_options};

/// Moves regions, each of them twice: the leftovers of the first time must not keep anything from
/// the second.
fn move_regions(case: &str) {
    for seed in runs(length(4, 12)) {
        let base = [BasePage::K64, BasePage::K4][seed as usize % 2];
        let (from, to) = (manager(Bytes::mib(24), base), manager(Bytes::mib(24), base));
        let region = from.region(Bytes::mib(8)).create().expect("a region");
        let mut program = Program::new(&region, seed);
        program.fill();
        region.page_out(0, region.len() / 2).expect("stored");
        for time in 0..2 {
            let context = format!("PAGODA_SEED={seed}, {case}, time {time}");
            let options = live_options(Codec::ALL[seed as usize % 4], 1 + seed as u16 % 3);
            let receiving = receive_options(ZeroPolicy::default());
            let (sent, received) = migrate(&region, &mut program, &to, &options, &receiving, |to| to);
            sent.unwrap_or_else(|error| panic!("{context}: {error}"));
            let (arrived, _) = received.unwrap_or_else(|error| panic!("{context}: {error}"));
            let differ = (program.differs(&region), program.differs(&arrived));
            assert_eq!(differ, (None, None), "{context}");
        }
    }
}

#[test]
fn a_region_arrives_while_the_kernel_moves_its_pages_to_other_frames() {
    if skip_without_moves("live migration") {
        return;
    }
    while_stirred("live migration under compaction", Stir::by_compaction(), || move_regions("compacted"));
}

#[test]
fn a_region_arrives_while_the_kernel_swaps_it_out() {
    if skip_without_moves("live migration") {
        return;
    }
    let what = "live migration of swapped-out pages";
    while_stirred(what, Stir::by_swapping(), || move_regions("swapped out"));
}
