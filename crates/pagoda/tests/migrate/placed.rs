//! Content arrives by a move where a frame is ready or 2 MiB are dense, and by the kernel's copy
//! elsewhere; both are counted.

use std::ops::ControlFlow;

use pagoda::migrate::{Codec, ZeroPolicy};
use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::program::{Idle, PAGE};
use crate::migrate::support::{any_port, live_options, manager, receive_options};

/// The moved region: all of it incompressible content, but for some pages that are zero.
const REGION: Bytes = Bytes::mib(8);

/// Fills all of it, or leaves one page in each 2 MiB.
fn fill(region: &Region, all: bool) {
    let mut random = Random::new(5, 0);
    for page in (0..region.len() / PAGE).filter(|page| all || page % 512 != 0) {
        let words: [u8; PAGE] = std::array::from_fn(|_| random.next() as u8);
        region.write_words(page * PAGE, &words).expect("written");
    }
}

/// The bytes that came by moves and by copies when a region arrived at `to`.
fn moved_and_copied(to: &Manager, dense: bool) -> (u64, u64) {
    let from = manager(Bytes::mib(32), BasePage::K64);
    let region = from.region(REGION).create().expect("a region");
    fill(&region, dense);
    let options = live_options(Codec::None, 2);
    let receiving = receive_options(ZeroPolicy::default());
    let before = to.stats();
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    let arrived = std::thread::scope(|scope| {
        let receiver =
            scope.spawn(|| Region::receive(to, listener, &receiving, &mut |_| ControlFlow::Continue(())));
        let sent = region.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(()));
        sent.expect("sent");
        receiver.join().expect("the receiver").expect("received").0
    });
    let after = to.stats();
    let (mut wanted, mut found) = ([0; PAGE], [0; PAGE]);
    for page in 0..region.len() / PAGE {
        region.read_at(page * PAGE, &mut wanted).expect("read");
        arrived.read_at(page * PAGE, &mut found).expect("read");
        assert!(found == wanted, "page {page}");
    }
    (
        after.arrived_moved_bytes - before.arrived_moved_bytes,
        after.arrived_copied_bytes - before.arrived_copied_bytes,
    )
}

#[test]
fn content_is_moved_in_where_frames_are_ready_and_copied_where_none_are() {
    if skip_without_moves("how content comes to its place") {
        return;
    }
    let (all, not_dense) = (REGION.get(), REGION.get() - 4 * PAGE as u64);
    let fresh = manager(Bytes::mib(64), BasePage::K16);
    assert_eq!(moved_and_copied(&fresh, false), (0, not_dense));
    for base in BasePage::ALL {
        let huge = manager(Bytes::mib(64), base);
        assert_eq!((moved_and_copied(&huge, true), huge.stats().huge_arrived), ((all, 0), 4), "{base}");
    }
    // Another region's stored pages left their frames behind.
    let used = manager(Bytes::mib(64), BasePage::K16);
    let other = used.region(REGION).create().expect("a region");
    fill(&other, true);
    other.page_out(0, other.len()).expect("stored");
    let ready = used.stats().ready_bytes;
    assert!(ready > 0, "no frame is ready");
    let (moved, copied) = moved_and_copied(&used, false);
    assert!(
        moved > 0 && moved + copied == not_dense,
        "{moved} moved and {copied} copied, with {ready} ready"
    );
}
