//! Frames for faults: when more are got ready, and toward which byte one is cleared.

use std::sync::atomic::Ordering;

use pagoda_core::page::{BasePage, HUGE_FRAME, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::uffd::fault_address::FaultAddress;

use super::Cleared;
use crate::Manager;
use crate::region::Region;

#[test]
fn the_clearing_thread_is_woken_when_half_of_the_frames_are_gone() {
    if skip_without_moves("frames that are ready") {
        return;
    }
    // The thread that clears ahead elsewhere is the test's own here.
    let builder = Manager::builder().budget(Bytes::mib(256)).base_page(BasePage::M2).user_mode_only(true);
    let manager = builder.tune(|tuning| tuning.clear_ahead(0)).build().expect("a manager");
    let engine = manager.engine();
    engine.huge.note_asked();
    while engine.clear_one_ahead() {}
    let most = engine.huge.most(0);
    let nowhere = FaultAddress::of_byte(0);
    let taken: Vec<_> = (0..most)
        .map(|_| {
            let Cleared::Frame(slot) = engine.cleared_frame(nowhere) else { panic!("they are ready") };
            (slot, engine.clear_bell.is_rung())
        })
        .collect();
    let quiet = taken.iter().take_while(|(_, is_rung)| !is_rung).count();
    assert_eq!((most, quiet), (16, 7), "the eighth leaves eight");
    taken.into_iter().for_each(|(slot, _)| engine.huge.put_used(&engine.space, slot));
}

/// So often a frame is asked for that has to be cleared.
const TRIES: usize = 100;

/// Bytes of a frame: within its first page, within others, its last one.
const BYTES: [usize; 5] = [1, 4097, HUGE_FRAME / 2 + 2049, HUGE_FRAME - OS_PAGE - 1, HUGE_FRAME - 1];

#[test]
fn a_frame_is_cleared_toward_the_byte_that_was_touched() {
    if skip_without_moves("targets of clears") {
        return;
    }
    for (in_thread, is_masked) in [(false, false), (false, true), (true, false), (true, true)] {
        let builder = Manager::builder().budget(Bytes::mib(64)).base_page(BasePage::M2).user_mode_only(true);
        let builder = builder
            .tune(|tuning| tuning.clear_ahead(0))
            .serve_in_thread(in_thread)
            .masked_addresses(is_masked);
        let manager = builder.build().expect("a manager");
        let region =
            || -> Region { manager.region(Bytes::new(2 * HUGE_FRAME as u64)).create().expect("a region") };
        for byte in BYTES {
            // A closed region leaves a cleared frame for the next one; not if the kernel had no
            // huge page for it.
            let touched_in_cleared = || {
                let mut before = region();
                before.write_at(0, &[0xa5; HUGE_FRAME]).expect("written");
                drop(before);
                let cleared = manager.stats().cleared_in_fault_bytes;
                let mut region = region();
                let offset = region.as_ptr().addr().next_multiple_of(HUGE_FRAME) - region.as_ptr().addr();
                region.write_at(offset + byte, &[7]).expect("written");
                (manager.stats().cleared_in_fault_bytes > cleared).then_some((region, offset))
            };
            let found = std::iter::repeat_with(touched_in_cleared).take(TRIES).flatten().next();
            let (region, offset) = found.expect("a frame is cleared for a fault");
            let clears = &manager.engine().clears;
            let touched = region.as_ptr().addr() + offset + byte;
            // A signal has the byte in any case.
            let known = if is_masked && !in_thread { touched & !(OS_PAGE - 1) } else { touched };
            let context = format!("in thread: {in_thread}, masked: {is_masked}, byte {byte}");
            assert_eq!(clears.last_byte.load(Ordering::Relaxed), known, "{context}");
            assert_eq!(clears.last_target.load(Ordering::Relaxed) as usize, byte / OS_PAGE, "{context}");
            let mut found = vec![0; HUGE_FRAME];
            region.read_at(offset, &mut found).expect("read");
            assert_eq!(std::mem::take(&mut found[byte]), 7, "{context}");
            assert!(found.iter().all(|&byte| byte == 0), "{context}");
        }
    }
}

#[test]
fn bytes_anywhere_in_their_pages_read_as_written_at_each_base_page() {
    if skip_without_moves("faults at odd bytes") {
        return;
    }
    const PAGES: usize = 16 << 20 >> 12;
    for base in BasePage::ALL {
        for (in_thread, is_masked) in [(false, false), (false, true), (true, false)] {
            let budget = if base == BasePage::M2 { 32 } else { 16 };
            let builder = Manager::builder().budget(Bytes::mib(budget)).base_page(base).user_mode_only(true);
            let builder = builder.serve_in_thread(in_thread).masked_addresses(is_masked);
            let manager = builder.build().expect("a manager");
            let mut region = manager.region(Bytes::new((PAGES * OS_PAGE) as u64)).create().expect("a region");
            let byte = |page: usize| page * OS_PAGE + (page * 1367 + 1) % OS_PAGE;
            let value = |page: usize| (page * 31 % 251 + 1) as u8;
            for page in (0..PAGES).rev() {
                region.write_at(byte(page), &[value(page)]).expect("written");
            }
            // Out by request at least, so that each comes back by a fault at its byte.
            region.page_out(0, PAGES * OS_PAGE).expect("room in the store");
            for page in 0..PAGES {
                // Not upwards, where others come ahead.
                let page = page * 1021 % PAGES;
                let mut found = [0];
                region.read_at(byte(page), &mut found).expect("read");
                assert_eq!(found, [value(page)], "{base}, in thread: {in_thread}, page {page}");
            }
            assert!(manager.stats().faults > PAGES as u64 / 16, "{base}: {:?}", manager.stats());
        }
    }
}
