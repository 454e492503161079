//! Content arrives in huge frames where all of one comes together, or most of one if the base page
//! is 2 MiB, and only there. What comes in pieces is made huge later.

use std::ops::ControlFlow;
use std::ops::Range;

use pagoda::migrate::{Codec, LiveOptions, RegionDestination, Writer, ZeroPolicy};
use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::migrate::late_zero::held;
use crate::migrate::program::PAGE;
use crate::migrate::support::{any_port, late_options, live_options, manager, migrate_idle, receive_options};

/// OS pages of a huge frame, and where the `n`-th begins and ends.
const PAGES: usize = 512;
const fn frame(n: usize) -> Range<usize> {
    n * PAGES..(n + 1) * PAGES
}

/// Writes incompressible content.
fn fill(region: &Region, pages: Range<usize>) {
    let mut random = Random::new(7, pages.start as u64);
    for page in pages {
        let bytes: [u8; PAGE] = std::array::from_fn(|_| random.below(256) as u8);
        region.write_words(page * PAGE, &bytes).expect("written");
    }
}

fn assert_equal(one: &Region, other: &Region, context: &str) {
    let (mut found, mut wanted) = ([0; PAGE], [0; PAGE]);
    for page in 0..one.len() / PAGE {
        one.read_at(page * PAGE, &mut wanted).expect("read");
        other.read_at(page * PAGE, &mut found).expect("read");
        assert!(found == wanted, "{context}: page {page}");
    }
}

/// Changes the region when it is stopped, so that the last round has to say so.
struct Last<'a>(&'a dyn Fn());

impl Writer for Last<'_> {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        (self.0)();
    }
}

/// Moves a region to `to`, and returns the arrived one.
fn moved(region: &Region, to: &Manager, zero: ZeroPolicy, options: &LiveOptions, last: &dyn Fn()) -> Region {
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            Region::receive(to, listener, &receive_options(zero), &mut |_| ControlFlow::Continue(()))
        });
        let sent = region.migrate_to(&at, options, &mut Last(last), &mut |_, _| ControlFlow::Continue(()));
        sent.expect("sent");
        receiver.join().expect("the receiver").expect("received").0
    })
}

#[test]
fn a_region_arrives_in_one_of_another_base_page() {
    if skip_without_moves("regions of several base pages that arrive") {
        return;
    }
    let sizes = BasePage::ALL.into_iter();
    for (of_source, base) in sizes.clone().rev().zip(sizes) {
        // Both have entries of 64 KiB, so that stored pages travel as they are packed.
        let (from, to) = (manager(Bytes::mib(64), BasePage::K64), manager(Bytes::mib(64), BasePage::K64));
        let region = from.region(Bytes::mib(16)).base_page(of_source).create().expect("a region");
        // Three whole frames, and one page of each 64 KiB behind them; a part of both is stored.
        fill(&region, frame(0).start..frame(2).end);
        (frame(3).start..region.len() / PAGE).step_by(16).for_each(|page| fill(&region, page..page + 1));
        region.page_out(2 << 20, 8 << 20).expect("room");
        let listener = any_port();
        let at = listener.endpoint().expect("an address");
        let arrived = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let destination = RegionDestination::new(to.clone()).base_page(base);
                let options = receive_options(ZeroPolicy::ALL[0]);
                destination.receive(listener, &options, &mut |_| ControlFlow::Continue(()))
            });
            let options = live_options(Codec::Lz4, 2);
            let sent =
                region.migrate_to(&at, &options, &mut Last(&|| ()), &mut |_, _| ControlFlow::Continue(()));
            sent.expect("sent");
            receiver.join().expect("the receiver").expect("received").0
        });
        assert_eq!(arrived.base_page(), base);
        assert_eq!(to.stats().huge_arrived, 3, "{base} of {of_source}");
        assert_equal(&region, &arrived, &format!("{base} of {of_source}"));
    }
}

#[test]
fn dense_content_comes_in_huge_frames_and_sparse_content_takes_its_own_size() {
    if skip_without_moves("huge frames that arrive") {
        return;
    }
    for (zero, codec) in ZeroPolicy::ALL.into_iter().zip([Codec::None, Codec::Lz4, Codec::None]) {
        let (from, to) = (manager(Bytes::mib(64), BasePage::K4), manager(Bytes::mib(96), BasePage::M2));
        let region = from.region(Bytes::mib(16)).create().expect("a region");
        // Three whole frames, the last of which begins within another; two with most of one; less
        // than that; a page; zeroes.
        fill(&region, frame(0).start..frame(1).end);
        fill(&region, frame(2).start..frame(2).start + 300);
        fill(&region, frame(3).start + 200..frame(3).end);
        fill(&region, frame(4).start + 100..frame(4).start + 300);
        fill(&region, frame(5).start + 77..frame(5).start + 78);
        frame(6).for_each(|page| region.write_words(page * PAGE, &[0; PAGE]).expect("written"));
        // All of one is one word.
        frame(7).for_each(|page| region.write_words(page * PAGE, &[9; PAGE]).expect("written"));
        let arrived = moved(&region, &to, zero, &live_options(codec, 2), &|| ());
        assert_eq!(to.stats().huge_arrived, 5, "{zero}");
        for dense in [0, 1, 2, 3, 7] {
            assert_eq!(held(&arrived, frame(dense)), PAGES, "{zero}: frame {dense}");
        }
        // A look at each zero page faults it in.
        if zero != ZeroPolicy::CheckThenClear {
            assert_eq!([4, 5, 6].map(|n| held(&arrived, frame(n))), [200, 1, 0], "{zero}");
        }
        assert_equal(&region, &arrived, &format!("{zero}"));
    }
}

#[test]
fn where_the_base_page_is_smaller_only_full_frames_come_in_huge_frames() {
    if skip_without_moves("huge frames that arrive by density") {
        return;
    }
    for (base, codec) in [
        (BasePage::K64, Codec::None),
        (BasePage::K16, Codec::None),
        (BasePage::K4, Codec::None),
        (BasePage::K64, Codec::Zstd),
        (BasePage::K4, Codec::Lz4),
    ] {
        let (from, to) = (manager(Bytes::mib(64), BasePage::K4), manager(Bytes::mib(96), base));
        let region = from.region(Bytes::mib(12)).create().expect("a region");
        // All of two; all of one but a page; half of one; a page; a page that is zero among
        // content.
        fill(&region, frame(0).start..frame(1).end);
        fill(&region, frame(2).start..frame(2).end - 1);
        fill(&region, frame(3).start + 100..frame(3).start + 356);
        fill(&region, frame(4).start + 77..frame(4).start + 78);
        fill(&region, frame(5));
        region.write_words((frame(5).start + 300) * PAGE, &[0; PAGE]).expect("written");
        let last = || {
            // A part of a huge frame becomes zero, and other content: both where it is.
            region.write_words((frame(1).start + 9) * PAGE, &[0; PAGE]).expect("written");
            fill(&region, frame(1).start + 40..frame(1).start + 50);
        };
        let arrived = moved(&region, &to, ZeroPolicy::Drop, &live_options(codec, 2), &last);
        let context = format!("{base}, {codec}");
        assert_eq!(to.stats().huge_arrived, 2, "{context}");
        let expected = [PAGES, PAGES, PAGES - 1, 256, 1, PAGES - 1];
        assert_eq!([0, 1, 2, 3, 4, 5].map(|n| held(&arrived, frame(n))), expected, "{context}");
        assert_equal(&region, &arrived, &context);
        // A part of a frame is evicted, and of another one discarded: the rest stays.
        arrived.page_out(100 * PAGE, 40 * PAGE).expect("stored");
        for one in [&region, &arrived] {
            one.discard((frame(1).start + 16) * PAGE, 100 * PAGE).expect("discarded");
        }
        assert_equal(&region, &arrived, &format!("{context}, in parts"));
        arrived.page_out(0, arrived.len()).expect("stored");
        assert_equal(&region, &arrived, &format!("{context}, from the store"));
    }
}

#[test]
fn content_that_comes_in_pieces_is_huge_later_if_it_is_dense() {
    if skip_without_moves("pieces of huge frames that arrive") {
        return;
    }
    for base in BasePage::ALL {
        let (from, to) = (manager(Bytes::mib(64), BasePage::K4), manager(Bytes::mib(96), base));
        let region = from.region(Bytes::mib(8)).create().expect("a region");
        fill(&region, frame(0).start..frame(1).end);
        // These are not dense.
        fill(&region, frame(2).start..frame(2).end - 1);
        fill(&region, frame(3).start + 9..frame(3).start + 10);
        // All of it is owed, and comes by pieces of 256 KiB at most.
        let options = late_options(Codec::None, 2, 0);
        let sent = migrate_idle(&region, &to, &options, ZeroPolicy::Drop, |arrived, arrival| {
            arrival.wait().expect("all of it");
            assert_eq!(to.stats().huge_arrived, 0, "{base}: a thread may wait for each piece");
            until("dense places are huge", || to.stats().huge_rebuilt >= 2);
            assert_equal(&region, &arrived, &format!("{base}"));
            assert_eq!(to.stats().huge_rebuilt, 2, "{base}: those alone");
            arrived.page_out(0, arrived.len()).expect("stored");
            assert_equal(&region, &arrived, &format!("{base}, from the store"));
        });
        sent.expect("sent");
    }
}

#[test]
fn a_huge_range_that_becomes_zero_holds_nothing_and_a_part_of_one_is_cleared_in_place() {
    if skip_without_moves("huge frames that become zero") {
        return;
    }
    for zero in ZeroPolicy::ALL {
        let (from, to) = (manager(Bytes::mib(64), BasePage::K64), manager(Bytes::mib(96), BasePage::M2));
        let region = from.region(Bytes::mib(8)).create().expect("a region");
        fill(&region, 0..4 * PAGES);
        let last = || {
            frame(0).for_each(|page| region.write_words(page * PAGE, &[0; PAGE]).expect("written"));
            region.write_words((frame(1).start + 5) * PAGE, &[0; PAGE]).expect("written");
            (0..256).for_each(|page| {
                region.write_words((frame(2).start + page) * PAGE, &[0; PAGE]).expect("written");
            });
            region.discard(frame(3).start * PAGE, PAGES * PAGE).expect("discarded");
            // And content again, over zeroes and over content.
            fill(&region, frame(2).start + 10..frame(2).start + 20);
            fill(&region, frame(1).start + 5..frame(1).start + 7);
        };
        let arrived = moved(&region, &to, zero, &live_options(Codec::None, 2), &last);
        assert_eq!(to.stats().huge_arrived, 4, "{zero}");
        let expected = if zero == ZeroPolicy::Drop { [0, PAGES, PAGES, 0] } else { [PAGES; 4] };
        assert_eq!([0, 1, 2, 3].map(|n| held(&arrived, frame(n))), expected, "{zero}");
        assert_equal(&region, &arrived, &format!("{zero}"));
        // A page that was cleared in place can still be evicted, whole.
        arrived.page_out(0, arrived.len()).expect("stored");
        assert_equal(&region, &arrived, &format!("{zero}, from the store"));
    }
}
