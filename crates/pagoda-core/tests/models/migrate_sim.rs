//! A seeded simulation of whole migrations: a source that changes between rounds, channels whose
//! frames arrive in any order of channels and are encoded and decoded on the way, and a destination
//! under each zero policy.
//!
//! `PAGODA_SEED` takes the seed of a failure back; `PAGODA_SIM_RUNS` says how many runs there are.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::AtomicU64;

use pagoda_core::migrate::channel::{Inbound, Outbound};
use pagoda_core::migrate::frame::{Body, Frame};
use pagoda_core::migrate::geometry::{Extent, Geometry, STRIPE_PAGES};
use pagoda_core::migrate::received::{ReceivedMap, words_for};
use pagoda_core::migrate::zero::{ZeroAction, ZeroPolicy};
use pagoda_core::size::Bytes;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// A page is one number here: 0 is zero, an even one fills its page, an odd one is data.
type Page = u64;

/// Pages at the destination: none is a page that was never touched, or was given back.
struct Destination {
    pages: Vec<Option<Page>>,
    policy: ZeroPolicy,
    /// First touches of pages, by reading or writing: each costs a fault.
    faults: u64,
    cleared: u64,
}

impl Destination {
    fn touch(&mut self, page: u64) -> &mut Page {
        let slot = &mut self.pages[page as usize];
        self.faults += u64::from(slot.is_none());
        slot.get_or_insert(0)
    }

    fn zero(&mut self, page: u64, again: bool) {
        match self.policy.action(again) {
            ZeroAction::Leave => {}
            ZeroAction::Discard => self.pages[page as usize] = None,
            ZeroAction::Clear => {
                *self.touch(page) = 0;
                self.cleared += 1;
            }
            ZeroAction::Check => {
                let content = self.touch(page);
                let cleared = u64::from(*content != 0);
                *content = 0;
                self.cleared += cleared;
            }
        }
    }
}

struct Totals {
    /// Pages of all frames.
    named: u64,
    zero_new: u64,
    zero_again: u64,
    data_new: u64,
}

/// Applies one frame. The digest stands for the content.
fn apply(frame: Frame, received: &ReceivedMap, to: &mut Destination, totals: &mut Totals) {
    let Some(extent) = frame.body.extent() else { return };
    let Ok(()) = received.mark(extent, |pages, again| {
        for page in pages {
            totals.named += 1;
            match frame.body {
                Body::Zero { .. } => {
                    *(if again { &mut totals.zero_again } else { &mut totals.zero_new }) += 1;
                    to.zero(page, again);
                }
                Body::Filled { word, .. } => *to.touch(page) = u64::from_le_bytes(word),
                Body::Stored { digest, .. } => *to.touch(page) = digest,
                _ => unreachable!("not sent here"),
            }
            totals.data_new += u64::from(!again && !matches!(frame.body, Body::Zero { .. }));
        }
        Ok::<_, Infallible>(())
    });
}

/// The frames of one stripe's pages that are to be sent: runs of the same content.
fn frames_of(source: &[Page], wanted: &[bool], stripe: u64, out: &mut Outbound, into: &mut VecDeque<Frame>) {
    let end = (stripe + u64::from(STRIPE_PAGES)).min(source.len() as u64);
    let mut at = stripe;
    while at < end {
        let page = source[at as usize];
        let run = (at..end).take_while(|&i| wanted[i as usize] && source[i as usize] == page).count() as u64;
        if let Some(extent) = Extent::new(at, run as u32) {
            into.push_back(out.frame(match page {
                0 => Body::Zero { extent },
                even if even % 2 == 0 => Body::Filled { extent, word: even.to_le_bytes() },
                odd => Body::Stored { extent, digest: odd },
            }));
        }
        at += run.max(1);
    }
}

fn run(seed: u64, policy: ZeroPolicy) {
    let mut random = Random(seed | 1);
    let pages = 1 + random.below(3000);
    let channels = 1 + random.below(5) as u16;
    let geometry = Geometry::new(Bytes::new(pages * 4096), channels).expect("a geometry");
    let mut source: Vec<Page> =
        (0..pages).map(|_| if random.below(2) == 0 { 0 } else { random.below(9) }).collect();
    let words = (0..words_for(pages)).map(|_| AtomicU64::new(0)).collect();
    let received = ReceivedMap::new(words, pages);
    let mut to = Destination { pages: vec![None; pages as usize], policy, faults: 0, cleared: 0 };
    let mut totals = Totals { named: 0, zero_new: 0, zero_again: 0, data_new: 0 };
    let mut ends: Vec<(Outbound, Inbound)> =
        (0..channels).map(|channel| (Outbound::default(), Inbound::new(geometry, channel))).collect();
    // Holes are never named: a part of the zero pages is not in the first round.
    let mut wanted: Vec<bool> = source.iter().map(|&page| page != 0 || random.below(3) > 0).collect();
    let rounds = 1 + random.below(4);
    for round in 1..=rounds {
        let mut lines: Vec<VecDeque<Frame>> = vec![VecDeque::new(); usize::from(channels)];
        for channel in 0..channels {
            let (out, line) = (&mut ends[usize::from(channel)].0, &mut lines[usize::from(channel)]);
            geometry.stripes_of(channel).for_each(|stripe| frames_of(&source, &wanted, stripe, out, line));
            line.push_back(out.sync().0);
        }
        // Channels don't wait for each other: any of them may be ahead.
        while lines.iter().any(|line| !line.is_empty()) {
            let channel = random.below(u64::from(channels)) as usize;
            if let Some(frame) = lines[channel].pop_front() {
                let frame = Frame::decode(&frame.encode()).expect("as it was");
                ends[channel].1.accept(frame).expect("in order");
                apply(frame, &received, &mut to, &mut totals);
            }
        }
        wanted.fill(false);
        for _ in 0..random.below(pages) * u64::from(round < rounds) {
            let page = random.below(pages) as usize;
            source[page] = if random.below(3) == 0 { 0 } else { random.below(9) };
            wanted[page] = true;
        }
    }
    for (mut out, mut inbound) in ends {
        inbound.accept(out.end()).expect("the end");
    }
    for (page, content) in to.pages.iter().enumerate() {
        assert_eq!(content.unwrap_or(0), source[page], "page {page}");
    }
    match policy {
        ZeroPolicy::CheckThenClear => assert_eq!(to.faults, totals.zero_new + totals.data_new),
        ZeroPolicy::ReceivedMap => {
            assert!(to.faults <= totals.named - totals.zero_new && to.cleared == totals.zero_again);
        }
        ZeroPolicy::Drop => {
            assert_eq!(to.cleared, 0);
            assert!(to.pages.iter().all(|page| *page != Some(0)), "a frame is spent on zeroes");
        }
    }
    if rounds == 1 && policy != ZeroPolicy::CheckThenClear {
        assert_eq!(to.faults, totals.data_new, "a first zero page costs nothing");
    }
}

#[test]
fn the_image_that_arrives_is_the_source_at_its_last_round() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, runs) = match number("PAGODA_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("PAGODA_SIM_RUNS").unwrap_or(300)),
    };
    for number in first..first + runs {
        for policy in ZeroPolicy::ALL {
            let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let outcome = std::panic::catch_unwind(|| run(seed, policy));
            assert!(outcome.is_ok(), "with {policy} and PAGODA_SEED={number}");
        }
    }
}
