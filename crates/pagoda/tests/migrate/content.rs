//! The region arrives unchanged, for any work of the program meanwhile.

use pagoda::migrate::{Codec, ZeroPolicy};
use pagoda::{BasePage, Bytes};
use pagoda_linux::testing::random::runs;
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::program::Program;
use crate::migrate::support::{combinations, live_options, manager, migrate, receive_options};

/// More than the budget, so that a part of it is out at any time.
const REGION: Bytes = Bytes::mib(18);
const BUDGET: Bytes = Bytes::mib(16);

/// The base page of the source, and the numbers of channels.
const SOURCES: [(BasePage, &[u16]); 4] = [
    (BasePage::K64, &[1, 2, 4]),
    (BasePage::K4, &[1, 2, 4]),
    (BasePage::K16, &[1, 3]),
    (BasePage::M2, &[1, 3]),
];

#[test]
fn a_region_arrives_as_it_was_when_its_writer_was_stopped() {
    if skip_without_moves("live migration") {
        return;
    }
    for seed in runs(1) {
        let mut case = 0;
        for (at, (base, numbers)) in SOURCES.into_iter().enumerate() {
            for (codec_at, codec) in Codec::ALL.into_iter().enumerate() {
                let mut packed_pages = 0;
                for (zero, channels) in combinations(at, codec_at, numbers) {
                    case += 1;
                    packed_pages += one(seed * 1000 + case, base, codec, zero, channels);
                }
                // In one of them the writer may have had it all back before anything was sent.
                assert_eq!(
                    packed_pages > 0,
                    codec != Codec::None,
                    "{base:?}, {codec}: stored pages travel packed"
                );
            }
        }
    }
}

/// How many pages travelled packed.
fn one(seed: u64, base: BasePage, codec: Codec, zero: ZeroPolicy, channels: u16) -> u64 {
    let context = format!("seed {seed}: {base:?}, {codec}, {zero}, {channels} channels");
    // A manager with huge frames has to have room for some.
    let least = if base == BasePage::M2 { Bytes::mib(64) } else { BUDGET };
    let from = manager(least, base);
    // Here and there, within the budget or not, and with the same base page or another.
    let (budget, to_base) = match seed % 5 {
        0 => (Bytes::mib(64), base),
        1 => (least, base),
        2 => (Bytes::mib(64), BasePage::K16),
        3 => (Bytes::mib(64), BasePage::M2),
        _ => (BUDGET, BasePage::K64),
    };
    let to = manager(budget, to_base);
    let region = from.region(REGION).create().expect("a region");
    let mut program = Program::new(&region, seed);
    program.fill();
    region.page_out(0, region.len() / 3).expect("stored");
    let receiving = receive_options(zero);
    let (sent, received) =
        migrate(&region, &mut program, &to, &live_options(codec, channels), &receiving, |to| to);
    let moved = sent.unwrap_or_else(|error| panic!("{context}: {error}"));
    let (arrived, counts) = received.unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(program.differs(&arrived), None, "{context}: a page differs; {moved:?}");
    assert_eq!(program.differs(&region), None, "{context}: a page of the source differs");
    if to_base == BasePage::K16 && base != to_base {
        // Pages that are packed for another base page can't be kept so.
        assert_eq!(counts.unpacked_pages, counts.packed_pages, "{context}: {counts:?}");
    }
    moved.counts.packed_pages
}
