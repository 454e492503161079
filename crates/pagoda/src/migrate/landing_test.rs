//! Receiving into frames: where content is read to, and that nothing of it is left where it was not
//! as sent.

use std::io::ErrorKind;

use pagoda_core::page::{BasePage, HUGE_FRAME};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_migrate::Destination;

use super::*;
use crate::frames::zones::Place;
use crate::migrate::RegionDestination;
use crate::stats::counters::Stats;
use crate::{Manager, Region};

const BASE: usize = 64 << 10;
const REGION: usize = 4 * HUGE_FRAME;

/// The kinds of wrong content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// It ends at half.
    Cut,
    /// All of it comes, and differs from the sent content.
    Content,
}

/// Content as a channel would bring it.
struct Sent<'a> {
    bytes: Vec<u8>,
    read: usize,
    wrong: Wrong,
    is_in_parts: bool,
    /// Done when half of it was read.
    meanwhile: &'a dyn Fn(),
    /// Where it was read to.
    to: Vec<usize>,
}

fn nothing() {}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed, 0);
    (0..len).map(|_| random.next() as u8 | 1).collect()
}

impl Sent<'_> {
    fn new(bytes: Vec<u8>, wrong: Wrong) -> Self {
        Self { bytes, read: 0, wrong, is_in_parts: true, meanwhile: &nothing, to: Vec::new() }
    }
}

impl Content for Sent<'_> {
    fn is_in_parts(&self) -> bool {
        self.is_in_parts
    }
    fn read(&mut self, into: &mut [u8]) -> io::Result<()> {
        assert!(self.is_in_parts || into.len() == self.bytes.len(), "it comes at once");
        self.to.push(into.as_ptr().addr());
        let half = self.bytes.len() / 2;
        for (chunk, bytes) in into.chunks_mut(OS_PAGE).zip(self.bytes[self.read..].chunks(OS_PAGE)) {
            if self.wrong == Wrong::Cut && self.read >= half {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            chunk.copy_from_slice(bytes);
            let before = self.read;
            self.read += chunk.len();
            if before < half && self.read >= half {
                (self.meanwhile)();
            }
        }
        Ok(())
    }
    fn check(&mut self) -> io::Result<()> {
        assert_eq!(self.read, self.bytes.len(), "all was read");
        if self.wrong == Wrong::Content { Err(ErrorKind::InvalidData.into()) } else { Ok(()) }
    }
}

fn manager(base: BasePage, budget: Bytes) -> Manager {
    let builder = Manager::builder()
        .budget(budget)
        .base_page(base)
        .user_mode_only(true)
        .tune(|tuning| tuning.clear_ahead(0));
    builder.spill_to("/var/tmp", Bytes::gib(1)).build().expect("a manager")
}

fn destination(manager: &Manager, len: usize) -> RegionDestination {
    let mut destination = RegionDestination::new(manager.clone());
    destination.prepare(Bytes::new(len as u64)).expect("a region");
    destination
}

/// A manager that has some used frames: pages that are written and stored leave them behind.
fn with_used_frames(base: BasePage) -> (Manager, Region) {
    let manager = manager(base, Bytes::mib(128));
    let other = manager.region(Bytes::mib(8)).create().expect("a region");
    let content = random(other.len(), 3);
    // Downwards, so that nothing comes ahead of it.
    (0..other.len())
        .step_by(OS_PAGE)
        .rev()
        .for_each(|at| other.write_words(at, &content[at..at + OS_PAGE]).expect("written"));
    other.page_out(0, other.len()).expect("stored");
    assert!(manager.stats().ready_bytes > 0, "no frame is ready");
    (manager, other)
}

/// Whether it was read to the buffer that came with it.
fn is_by_room(sent: &Sent<'_>, room: &[u8]) -> bool {
    sent.to.iter().any(|at| room.as_ptr_range().contains(&std::ptr::without_provenance(*at)))
}

/// All frames that are ready or in regions, but for those that came from the kernel: moving content
/// changes nothing of it.
fn frames(manager: &Manager) -> u64 {
    let (engine, stats) = (manager.engine(), manager.stats());
    assert_eq!(engine.ledger.receiving_bytes(), 0, "nothing is on its way");
    let from_kernel = stats.arrived_copied_bytes + stats.kernel_zeroed_bytes;
    engine.ready_bytes() + engine.ledger.resident_bytes() + (1 << 40) - from_kernel
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![9; region.len()];
    region.read_at(0, &mut bytes).expect("read");
    bytes
}

#[test]
fn all_of_a_huge_frame_is_received_into_one_and_less_into_base_frames_that_are_ready() {
    if skip_without_moves("receiving into frames") {
        return;
    }
    for base in [BasePage::K64, BasePage::M2] {
        for is_in_parts in [true, false] {
            let (manager, _other) = with_used_frames(base);
            let destination = destination(&manager, REGION);
            let before = manager.stats();
            let mut wanted = vec![0; REGION];
            let parts =
                [(0, HUGE_FRAME), (HUGE_FRAME, HUGE_FRAME - OS_PAGE), (2 * HUGE_FRAME + 3 * BASE, 5 * BASE)];
            for (part, (at, len)) in parts.into_iter().enumerate() {
                let mut sent = Sent { is_in_parts, ..Sent::new(random(len, part as u64), Wrong::Nothing) };
                wanted[at..at + len].copy_from_slice(&sent.bytes);
                let mut room = vec![0; len];
                destination.receive_at(at as u64, &mut sent, &mut room).expect("received");
                // An end that is no whole base page goes by way of the buffer. Of a base page of 2
                // MiB no small frames are ready.
                let by_room = match part {
                    0 => false,
                    1 => base == BasePage::K64,
                    _ => base == BasePage::M2 || !is_in_parts,
                };
                assert_eq!(is_by_room(&sent, &room), by_room, "{base:?}, {is_in_parts}: part {part}");
            }
            let after = manager.stats();
            let huge = if base == BasePage::M2 { 2 } else { 1 };
            assert_eq!(after.huge_arrived - before.huge_arrived, huge, "{base:?}, {is_in_parts}");
            let arrived = after.arrived_moved_bytes + after.arrived_copied_bytes;
            let was = before.arrived_moved_bytes + before.arrived_copied_bytes;
            assert_eq!(arrived - was, parts.iter().map(|(_, len)| *len as u64).sum::<u64>());
            let region = destination.into_region().expect("prepared");
            assert!(bytes(&region) == wanted, "{base:?}, {is_in_parts}");
        }
    }
}

/// Nothing of it is in the region, its frame is ready for another use, and its content is not
/// visible.
#[test]
fn content_that_is_cut_off_or_wrong_leaves_nothing_anywhere() {
    if skip_without_moves("content that is wrong") {
        return;
    }
    for (base, wrong) in [BasePage::K4, BasePage::K64, BasePage::M2]
        .into_iter()
        .flat_map(|base| [Wrong::Cut, Wrong::Content].map(|wrong| (base, wrong)))
    {
        let (manager, _other) = with_used_frames(base);
        let destination = destination(&manager, REGION);
        let engine = manager.engine();
        let (were, resident, before) = (frames(&manager), engine.ledger.resident_bytes(), manager.stats());
        for (at, len) in [(0, HUGE_FRAME), (HUGE_FRAME, HUGE_FRAME / 2), (2 * HUGE_FRAME, 7 * OS_PAGE)] {
            let mut sent = Sent::new(random(len, 1), wrong);
            let error = destination.receive_at(at as u64, &mut sent, &mut vec![0; len]).expect_err("wrong");
            assert!(matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData), "{error}");
        }
        assert_eq!(frames(&manager), were, "{base:?}, {wrong:?}: all frames are back");
        assert_eq!(engine.ledger.resident_bytes(), resident, "{base:?}, {wrong:?}");
        let after = manager.stats();
        let arrived =
            |stats: &Stats| (stats.arrived_moved_bytes, stats.arrived_copied_bytes, stats.huge_arrived);
        assert_eq!(arrived(&after), arrived(&before), "{base:?}, {wrong:?}");
        let region = destination.into_region().expect("prepared");
        let start = region.as_ptr().addr();
        for at in (0..region.len()).step_by(BASE) {
            let held = engine.space.held_pages(PageRange::at(start + at, BASE));
            assert!(held.is_empty(), "{base:?}, {wrong:?}: {at}");
        }
        // The next touch of memory gets those frames, and so does content with zeroes around it.
        let again = self::destination(&manager, REGION);
        let mut sent = Sent::new(random(300 * OS_PAGE, 2), Wrong::Nothing);
        let wanted = sent.bytes.clone();
        again.receive_at(OS_PAGE as u64, &mut sent, &mut vec![0; 300 * OS_PAGE]).expect("received");
        let again = again.into_region().expect("prepared");
        (0..REGION).step_by(BASE).for_each(|at| region.write_words(at, &[5; 8]).expect("written"));
        let found = bytes(&region);
        assert!(
            found.chunks(BASE).all(|page| page[..8] == [5; 8] && page[8..].iter().all(|byte| *byte == 0))
        );
        let found = bytes(&again);
        assert!(found[OS_PAGE..][..wanted.len()] == wanted);
        assert!(found[..OS_PAGE].iter().chain(&found[OS_PAGE + wanted.len()..]).all(|byte| *byte == 0));
    }
}

/// Of the place a page is written while the frame is filled: all of the content comes, by base
/// pages.
#[test]
fn a_place_that_is_taken_meanwhile_gets_its_content_by_base_pages() {
    if skip_without_moves("a place that is taken") {
        return;
    }
    for (base, len) in
        [BasePage::K64, BasePage::M2].into_iter().flat_map(|base| [(base, HUGE_FRAME), (base, 4 * BASE)])
    {
        let (manager, _other) = with_used_frames(base);
        let destination = destination(&manager, REGION);
        let region = destination.place.region.as_ref().expect("prepared");
        let (were, before) = (frames(&manager), manager.stats());
        let write = || region.write_words(BASE + 8, &[7; 8]).expect("written");
        let mut sent = Sent { meanwhile: &write, ..Sent::new(random(len, 4), Wrong::Nothing) };
        let wanted = sent.bytes.clone();
        destination.receive_at(0, &mut sent, &mut vec![0; len]).expect("received");
        assert_eq!(frames(&manager), were, "{base:?}, {len}: no frame is lost");
        assert_eq!(manager.stats().huge_arrived, before.huge_arrived, "{base:?}");
        assert!(bytes(region)[..len] == wanted, "{base:?}, {len}");
    }
}

/// The place has a page that no entry shows, as a discard under way may have left. The kernel moves
/// the pages before it and stops, and the rest comes by base pages.
#[test]
fn a_frame_of_which_the_kernel_moves_a_part_gets_all_of_its_content_there() {
    if skip_without_moves("a part of a huge frame") {
        return;
    }
    for base in [BasePage::K64, BasePage::M2] {
        for page in [0, 300, 511] {
            let (manager, _other) = with_used_frames(base);
            let destination = destination(&manager, REGION);
            let (region, engine) = (destination.place.region.as_ref().expect("prepared"), manager.engine());
            let at = region.as_ptr().addr() + page * OS_PAGE;
            let there = engine.space.fill_with(PageRange::at(at, OS_PAGE), &[7; OS_PAGE]);
            assert_eq!(there.bytes, OS_PAGE, "{base:?}: {page}");
            let before = manager.stats();
            let mut sent = Sent::new(random(HUGE_FRAME, page as u64), Wrong::Nothing);
            let wanted = sent.bytes.clone();
            let mut room = vec![0; HUGE_FRAME];
            destination.receive_at(0, &mut sent, &mut room).expect("received");
            assert!(!is_by_room(&sent, &room), "{base:?}: it was received into a huge frame");
            let after = manager.stats();
            assert!(bytes(region)[..HUGE_FRAME] == wanted, "{base:?}: {page}");
            assert_eq!(after.huge_arrived, before.huge_arrived, "{base:?}: {page}");
            assert_eq!(engine.ledger.receiving_bytes(), 0, "{base:?}: {page}");
            // All of it but the page that was there is counted as having come.
            let resident = after.resident_bytes - before.resident_bytes;
            assert_eq!(resident, (HUGE_FRAME - OS_PAGE) as u64, "{base:?}: {page}");
        }
    }
}

#[test]
fn more_than_fits_arrives_within_the_budget() {
    if skip_without_moves("arriving beyond the budget") {
        return;
    }
    for base in [BasePage::K64, BasePage::M2] {
        let (manager, len) = (manager(base, Bytes::mib(32)), 32 * HUGE_FRAME);
        let destination = destination(&manager, len);
        let engine = manager.engine();
        for at in (0..len).step_by(HUGE_FRAME) {
            let mut sent = Sent::new(random(HUGE_FRAME, at as u64), Wrong::Nothing);
            destination.receive_at(at as u64, &mut sent, &mut vec![0; HUGE_FRAME]).expect("received");
            assert_eq!(engine.ledger.receiving_bytes(), 0, "{base:?}: nothing is on its way");
            let excess = engine.ledger.excess_bytes();
            // Of a huge frame that reclaim is just storing the count knows nothing for a moment.
            let most = engine.marks().min.get() + HUGE_FRAME as u64;
            assert!(excess <= most, "{base:?}: {excess} beyond the budget at {at}");
        }
        let huge = manager.stats().huge_arrived;
        assert!((1..32).contains(&huge), "{base:?}: {huge} came whole");
        let region = destination.into_region().expect("prepared");
        let mut found = vec![0; HUGE_FRAME];
        for at in (0..len).step_by(HUGE_FRAME) {
            region.read_at(at, &mut found).expect("read");
            assert!(found == random(HUGE_FRAME, at as u64), "{base:?}: {at}");
        }
    }
}

/// Else a zone would look freer than it is for as long as a sender takes.
#[test]
fn of_several_zones_a_frame_is_its_zones_also_while_it_is_filled() {
    if skip_without_moves("receiving into frames of zones") {
        return;
    }
    for (base, wrong) in
        [(BasePage::M2, Wrong::Nothing), (BasePage::M2, Wrong::Content), (BasePage::K64, Wrong::Nothing)]
    {
        let builder =
            Manager::builder().base_page(base).user_mode_only(true).tune(|tuning| tuning.clear_ahead(0));
        let builder =
            builder.zone("one", Bytes::mib(64), Place::Local).zone("two", Bytes::mib(96), Place::Local);
        let manager = builder.build().expect("a manager");
        let destination = destination(&manager, REGION);
        let held = || manager.zones().iter().map(|(_, zone)| zone.held.get()).sum::<u64>();
        let counted = || {
            let engine = manager.engine();
            engine.ready_bytes() + engine.ledger.resident_bytes() + engine.ledger.receiving_bytes()
        };
        for at in (0..REGION).step_by(HUGE_FRAME) {
            let meanwhile = || assert_eq!(held(), counted(), "{base:?}, {wrong:?}: {at}");
            let mut sent = Sent { meanwhile: &meanwhile, ..Sent::new(random(HUGE_FRAME, at as u64), wrong) };
            let received = destination.receive_at(at as u64, &mut sent, &mut vec![0; HUGE_FRAME]);
            assert_eq!(received.is_ok(), wrong == Wrong::Nothing, "{base:?}");
            assert_eq!(manager.engine().ledger.receiving_bytes(), 0, "{base:?}, {wrong:?}");
            assert_eq!(held(), counted(), "{base:?}, {wrong:?}");
        }
        let whole = if (base, wrong) == (BasePage::M2, Wrong::Nothing) { 4 } else { 0 };
        assert_eq!(manager.stats().huge_arrived, whole, "{base:?}, {wrong:?}");
    }
}
