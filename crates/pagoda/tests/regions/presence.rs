//! What a region's owner can ask and say of its pages: where they are, that they come, and that
//! they stay.

use pagoda::{AccessError, Bytes, Manager, ManagerBuilder, PinError, Region};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::regions::support::{PAGE, settled};

const BUDGET: Bytes = Bytes::mib(40);
const MIB: usize = 1 << 20;

fn builders() -> Vec<ManagerBuilder> {
    if skip_without_moves("the presence of pages") {
        return Vec::new();
    }
    let builder = || Manager::builder().budget(BUDGET).spill_to("/var/tmp", Bytes::gib(1));
    vec![builder().user_mode_only(true), builder().serve_in_thread(true)]
}

/// Half of it compresses.
fn content(page: usize) -> [u8; PAGE] {
    let (mut content, mut random) = ([0; PAGE], Random::new(9, page as u64));
    content[..PAGE / 2]
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&random.next().to_ne_bytes()));
    content[0] = 1;
    content
}

fn fill(region: &mut Region) {
    (0..region.len() / PAGE).for_each(|page| region.write_at(page * PAGE, &content(page)).expect("written"));
}

fn is_right(region: &Region, page: usize) -> bool {
    let mut found = [0; PAGE];
    region.read_at(page * PAGE, &mut found).expect("read");
    found == content(page)
}

/// Pages that a handler has only just given may stay for once.
fn page_out(region: &Region, offset: usize, len: usize) {
    until("all of it is swapped out", || {
        region.page_out(offset, len).expect("room in the store");
        let mut byte = [0];
        (offset..offset + len)
            .step_by(PAGE)
            .all(|at| region.try_read_at(at, &mut byte) == Err(AccessError::WouldBlock))
    });
}

#[test]
fn a_call_that_does_not_wait_tells_of_swapped_out_pages_and_touches_none() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let mut region = manager.region(Bytes::mib(8)).create().expect("a region");
        let half = 4 * MIB;
        (0..half / PAGE).for_each(|page| region.write_at(page * PAGE, &content(page)).expect("written"));
        page_out(&region, 0, half);
        let stored = manager.stats().faults_stored;
        let mut found = [7; 2 * PAGE];
        // Across the edge to pages that were never touched, too.
        for at in [0, 5 * PAGE + 9, half - PAGE] {
            assert_eq!(region.try_read_at(at, &mut found), Err(AccessError::WouldBlock));
            assert_eq!(region.try_write_at(at, &found), Err(AccessError::WouldBlock));
        }
        assert_eq!((found, manager.stats().faults_stored), ([7; 2 * PAGE], stored));
        region.try_read_at(half, &mut found).expect("never touched");
        assert_eq!(found, [0; 2 * PAGE]);
        region.try_write_at(half, b"first touch").expect("room");
        assert!((0..half / PAGE).all(|page| is_right(&region, page)));
        // A handler may be about to give the last entry back.
        until("all is in memory", || region.try_read_at(0, &mut found).is_ok());
        assert_eq!(found[..PAGE], content(0));
    }
}

#[test]
fn usage_tells_where_every_byte_is() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let mut region = manager.region(Bytes::mib(160)).create().expect("a region");
        assert_eq!(region.usage().empty, Bytes::mib(160));
        (0..128 * MIB / PAGE).for_each(|page| region.write_at(page * PAGE, &content(page)).expect("written"));
        // The last page is there before its entry says so.
        settled(&manager);
        let usage = region.usage();
        let parts = [usage.resident, usage.staged, usage.compressed, usage.spilled, usage.empty];
        assert_eq!(parts.map(Bytes::get).iter().sum::<u64>(), 160 << 20, "{usage:?}");
        assert!(usage.empty <= Bytes::mib(32) && usage.resident > Bytes::ZERO, "{usage:?}");
        // Half of 128 MiB is more than the budget.
        assert!(usage.spilled > Bytes::ZERO && usage.compressed > Bytes::ZERO, "{usage:?}");
        region.discard(0, 160 * MIB).expect("discarded");
        assert_eq!(region.usage().empty, Bytes::mib(160));
    }
}

#[test]
fn a_prefetch_brings_in_a_part_of_the_budget() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let mut region = manager.region(Bytes::mib(128)).create().expect("a region");
        fill(&mut region);
        page_out(&region, 0, 128 * MIB);
        assert_eq!(region.prefetch(16 * MIB, 4 * MIB), Ok(4 * MIB));
        let mut found = [0; PAGE];
        for page in 4096..5120 {
            region.try_read_at(page * PAGE, &mut found).expect("in memory");
            assert!(found == content(page), "page {page}");
        }
        assert_eq!(region.prefetch(16 * MIB, 4 * MIB), Ok(0), "all of it is there");
        let brought_in = region.prefetch(0, 128 * MIB).expect("in this process");
        assert!((MIB..=11 * MIB).contains(&brought_in), "{brought_in}");
        until("the budget is kept", || manager.stats().anon_bytes <= BUDGET.get());
        assert!((0..128 * MIB / PAGE).all(|page| is_right(&region, page)));
    }
}

#[test]
fn advice_brings_pages_in_while_their_owner_goes_on() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let mut region = manager.region(Bytes::mib(32)).create().expect("a region");
        fill(&mut region);
        page_out(&region, 0, 32 * MIB);
        // More than can wait: the rest is forgotten.
        (0..1000).for_each(|_| region.will_need(8 * MIB, 2 * MIB).expect("in this process"));
        let mut found = vec![0; 2 * MIB];
        until("all of it is in memory", || region.try_read_at(8 * MIB, &mut found).is_ok());
        assert!(found.chunks(PAGE).zip(2048..).all(|(found, page)| found == content(page)));
        // Of a region that is closed meanwhile nothing is touched.
        region.will_need(0, 32 * MIB).expect("in this process");
        region.close();
        until("nothing is left of it", || manager.stats().resident_bytes == 0);
    }
}

#[test]
fn pinned_pages_stay_until_the_pin_is_dropped() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let mut pinned = manager.region(Bytes::mib(24)).create().expect("a region");
        let mut other = manager.region(Bytes::mib(128)).create().expect("a region");
        fill(&mut pinned);
        fill(&mut other);
        // Pages that are swapped out, and one that never was touched.
        let fresh = manager.region(Bytes::kib(64)).create().expect("a region");
        let pins = [pinned.pin(4 * MIB, 8 * MIB), fresh.pin(100, 1)].map(|pin| pin.expect("pinned"));
        let mut found = [0; PAGE];
        let mut all_stay = |region: &Region| {
            for page in 1024..3072 {
                region.try_read_at(page * PAGE, &mut found).expect("it stays");
                assert!(found == content(page), "page {page}");
            }
        };
        pinned.page_out(0, 24 * MIB).expect("the rest");
        fresh.page_out(0, 1).expect("nothing");
        all_stay(&pinned);
        (0..128 * MIB / PAGE).for_each(|page| assert!(is_right(&other, page), "page {page}"));
        all_stay(&pinned);
        assert!(fresh.usage().resident >= Bytes::new(PAGE as u64));
        let refused = other.pin(0, 3 * MIB).err();
        let too_much =
            PinError::TooMuch { asked: Bytes::mib(3), pinned: Bytes::kib(8192 + 4), most: Bytes::mib(10) };
        assert_eq!(refused, Some(too_much));
        drop(pins);
        page_out(&pinned, 4 * MIB, 8 * MIB);
        drop(other.pin(0, 10 * MIB).expect("there is room for pins again"));
        assert!((0..24 * MIB / PAGE).all(|page| is_right(&pinned, page)));
    }
}

#[test]
fn a_pin_beyond_the_limit_of_its_region_is_refused() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let region = manager.region(Bytes::mib(8)).limit(Bytes::mib(4)).create().expect("a region");
        let refused = Some(PinError::Access(AccessError::LimitReached));
        assert_eq!(region.pin(0, 5 * MIB).err(), refused);
        let pin = region.pin(0, 3 * MIB).expect("within its limit");
        assert_eq!(region.pin(4 * MIB, 2 * MIB).err(), refused);
        drop(pin);
    }
}
