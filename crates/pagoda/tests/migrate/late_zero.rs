//! Pages that were received as zero before the switch: none of them is present, and a fault on one
//! is answered at once.

use std::ops::ControlFlow;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread;

use pagoda::migrate::{Codec, Writer, ZeroPolicy};
use pagoda::{Bytes, Manager, Region};
use pagoda_linux::procfs::pagemap::{PagemapScanner, Presence};
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::program::{Brake, PAGE};
use crate::migrate::support::{late_options, receive_options, use_early};

/// Pages that are written without end, that are zero and there, that have content, and that are
/// zero after they had some.
const WRITTEN: Range<usize> = 0..16;
const ZEROES: Range<usize> = 64..128;
const CONTENT: Range<usize> = 128..192;
const EMPTIED: Range<usize> = 192..256;

/// Writes a page when its writer has stopped: something is owed also where the writer had no
/// processor for the last round.
struct LastWord<'a> {
    brake: &'a Brake,
    region: &'a Region,
}

impl Writer for LastWord<'_> {
    fn throttle(&mut self, percent: u8) {
        Writer::throttle(&mut self.brake, percent);
    }
    fn stop(&mut self) {
        Writer::stop(&mut self.brake);
        self.region.write_words(WRITTEN.start * PAGE, &u64::MAX.to_ne_bytes()).expect("written");
    }
}

/// How many of `pages` hold a frame.
pub fn held(region: &Region, pages: Range<usize>) -> usize {
    let (at, mut held) = (region.as_ptr().addr(), 0);
    let count = |run: Range<usize>, presence| {
        held += if presence == Presence::Memory { run.len() / PAGE } else { 0 };
    };
    let mut scanner = PagemapScanner::new().expect("pagemap");
    scanner.populated_runs(at + pages.start * PAGE, at + pages.end * PAGE, count).expect("scanned");
    held
}

#[test]
fn a_page_that_was_received_as_zero_is_answered_with_zero_without_a_write_and_without_a_request() {
    if skip_without_moves("faults of zero pages after the switch") {
        return;
    }
    for zero in ZeroPolicy::ALL {
        // Pages that come with another's fault are there as zeroes, too.
        let builder = || {
            Manager::builder()
                .budget(Bytes::mib(64))
                .user_mode_only(true)
                .tune(|tuning| tuning.fault_around(false))
        };
        let [from, to] = [(); 2].map(|()| builder().build().expect("a manager"));
        let region = from.region(Bytes::mib(6)).create().expect("a region");
        ZEROES.for_each(|page| region.write_words(page * PAGE, &[0; PAGE]).expect("written"));
        CONTENT
            .chain(EMPTIED)
            .for_each(|page| region.write_words(page * PAGE, &content(page)).expect("written"));
        region.discard(EMPTIED.start * PAGE, EMPTIED.len() * PAGE).expect("discarded");
        let brake = Brake::default();
        // Slow enough that mostly something is written in every round.
        let mut options = late_options(Codec::None, 2, 2);
        options.send.bandwidth = Some(Bytes::mib(2));
        let moved = thread::scope(|scope| {
            scope.spawn(|| {
                let mut count = 0u64;
                brake.repeat(|| {
                    count += 1;
                    let page = WRITTEN.start + (count % WRITTEN.len() as u64) as usize;
                    region.write_words(page * PAGE, &count.to_ne_bytes()).expect("written");
                });
            });
            let send = |at: &_| {
                let mut writer = LastWord { brake: &brake, region: &region };
                // At the start of each round, whenever the writer runs: something is left after it.
                let mut round = 0u64;
                let sent = region.migrate_to(at, &options, &mut writer, &mut |_, _| {
                    round += 1;
                    if !brake.stands.load(Ordering::Acquire) {
                        region.write_words(WRITTEN.start * PAGE, &round.to_ne_bytes()).expect("written");
                    }
                    ControlFlow::Continue(())
                });
                brake.stop();
                sent
            };
            use_early(&to, &receive_options(zero), send, |arrived, arrival| {
                for pages in [ZEROES, EMPTIED] {
                    for page in pages.clone() {
                        let found = load(arrived.as_ptr().wrapping_add(page * PAGE));
                        assert!(found == [0; PAGE], "{zero}: page {page}");
                    }
                    assert_eq!(held(&arrived, pages), 0, "{zero}: a frame was written for a zero");
                }
                let counts = arrival.wait().expect("all of it");
                assert!(counts.owed_pages > 0, "{zero}: something was owed; {counts:?}");
                assert!(counts.zero_pages >= ZEROES.len() as u64, "{zero}: they were named; {counts:?}");
                assert_eq!(counts.asked, 0, "{zero}: no thread waits for zeroes");
                for page in CONTENT {
                    let mut found = [0; PAGE];
                    arrived.read_at(page * PAGE, &mut found).expect("read");
                    assert!(found == content(page), "{zero}: page {page}");
                }
            })
        });
        assert!(moved.expect("sent").owed_for.is_some(), "{zero}: it switched");
    }
}

fn content(page: usize) -> [u8; PAGE] {
    std::array::from_fn(|at| (page * 31 + at / 64 + 1) as u8)
}
