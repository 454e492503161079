//! A region that is sent while its pages are evicted for another region: an eviction is no write,
//! at any moment.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagoda::migrate::{Codec, Writer, ZeroPolicy};
use pagoda::{BasePage, Bytes, Region};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::program::{Brake, Program};
use crate::migrate::support::{any_port, live_options, manager, migrate, receive_options};

/// The bytes that are evicted at once.
const BASE_BYTES: usize = 64 << 10;

/// Writes a last word when it is stopped, so that there is something to send.
struct LastWord<'a> {
    region: &'a Region,
    stopped: AtomicBool,
}

impl Writer for &LastWord<'_> {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        self.region.write_words(self.region.len() - 8, &[1; 8]).expect("written");
        self.stopped.store(true, Ordering::Release);
    }
}

#[test]
fn a_page_that_is_evicted_once_its_writer_is_stopped_is_not_taken_for_written() {
    if skip_without_moves("a region that goes out while it is sent") {
        return;
    }
    // Far more base pages than there may be rounds with the writer stopped.
    let (from, to) = (manager(Bytes::mib(32), BasePage::K64), manager(Bytes::mib(32), BasePage::K64));
    let region = from.region(Bytes::mib(16)).create().expect("a region");
    (0..region.len())
        .step_by(4096)
        .for_each(|at| region.write_words(at, &(at as u64 | 1).to_ne_bytes()).expect("written"));
    let writer = LastWord { region: &region, stopped: AtomicBool::new(false) };
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    let receiving = receive_options(ZeroPolicy::default());
    let mut gone = 0;
    let (sent, received) = thread::scope(|scope| {
        let receiver =
            scope.spawn(|| Region::receive(&to, listener, &receiving, &mut |_| ControlFlow::Continue(())));
        // Called at the start of each round: more is out after it than before, as when others need
        // the memory.
        let sent = region.migrate_to(&at, &live_options(Codec::Lz4, 2), &mut &writer, &mut |_, _| {
            if writer.stopped.load(Ordering::Acquire) && gone < region.len() {
                region.page_out(gone, BASE_BYTES).expect("stored");
                gone += BASE_BYTES;
            }
            ControlFlow::Continue(())
        });
        (sent, receiver.join().expect("the receiver"))
    });
    sent.expect("there was no write");
    let (arrived, _) = received.expect("received");
    assert!(gone > 0);
    let (mut here, mut there) = ([0; 4096], [0; 4096]);
    for at in (0..region.len()).step_by(4096) {
        region.read_at(at, &mut here).expect("read");
        arrived.read_at(at, &mut there).expect("read");
        assert!(here == there, "page {}", at / 4096);
    }
}

/// Half of the two regions' memory.
const BUDGET: Bytes = Bytes::mib(24);

#[test]
fn a_region_arrives_while_its_neighbour_takes_its_memory() {
    if skip_without_moves("a region beside another") {
        return;
    }
    for seed in runs(length(2, 3)) {
        let (from, to) = (manager(BUDGET, BasePage::K64), manager(Bytes::mib(64), BasePage::K64));
        let region = from.region(BUDGET).create().expect("a region");
        let neighbour = from.region(BUDGET).create().expect("another region");
        let mut program = Program::new(&region, seed);
        program.fill();
        let brake = Brake::default();
        let receiving = receive_options(ZeroPolicy::default());
        let (sent, received) = thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(seed, 2);
                brake.repeat(|| {
                    let at = random.below(neighbour.len() / 8) * 8;
                    neighbour.write_words(at, &random.next().to_ne_bytes()).expect("written");
                });
            });
            let options = live_options(Codec::Lz4, 2);
            let outcome = migrate(&region, &mut program, &to, &options, &receiving, |to| to);
            brake.stop();
            outcome
        });
        let moved = sent.unwrap_or_else(|error| panic!("PAGODA_SEED={seed}: {error}"));
        let (arrived, _) = received.unwrap_or_else(|error| panic!("PAGODA_SEED={seed}: {error}"));
        assert_eq!(program.differs(&arrived), None, "PAGODA_SEED={seed}: a page differs; {moved:?}");
        assert_eq!(program.differs(&region), None, "PAGODA_SEED={seed}: a page of the source differs");
    }
}
