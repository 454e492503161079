use super::super::geometry::STRIPE_PAGES;
use super::*;
use crate::size::Bytes;
use proptest::prelude::*;

const CHANNELS: u16 = 3;

fn geometry() -> Geometry {
    Geometry::new(Bytes::mib(32), CHANNELS).expect("a geometry")
}

/// A whole channel: rounds of some frames each, and the end.
fn stream(channel: u16, rounds: &[Vec<(u64, u32, u8)>]) -> Vec<Frame> {
    let (mut out, mut frames) = (Outbound::default(), Vec::new());
    for round in rounds {
        for &(stripe, page, kind) in round {
            let stripe = (stripe * u64::from(CHANNELS) + u64::from(channel)) % 15;
            let stripe = stripe - stripe % 3 + u64::from(channel);
            let first = stripe * u64::from(STRIPE_PAGES) + u64::from(page);
            let extent = Extent::new(first, 1).expect("a page");
            frames.push(out.frame(match kind {
                0 => Body::Zero { extent },
                1 => Body::Filled { extent, word: [7; 8] },
                _ => Body::Stored { extent, digest: u64::from(page) },
            }));
        }
        frames.push(out.sync().0);
    }
    frames.push(out.end());
    if channel == 0 {
        frames.push(out.commit());
    }
    frames
}

/// Whether all of it is taken, to its end.
fn arrives(channel: u16, frames: &[Frame]) -> bool {
    let mut inbound = Inbound::new(geometry(), channel);
    let last = if channel == 0 { State::Committed } else { State::Ended };
    frames.iter().all(|&frame| inbound.accept(frame).is_ok()) && inbound.state == last
}

fn rounds() -> impl Strategy<Value = Vec<Vec<(u64, u32, u8)>>> {
    let frame = (0u64..5, 0..STRIPE_PAGES, 0u8..3);
    prop::collection::vec(prop::collection::vec(frame, 0..12), 1..4)
}

proptest! {
    #[test]
    fn sent_frames_arrive(rounds in rounds(), channel in 0..CHANNELS) {
        prop_assert!(arrives(channel, &stream(channel, &rounds)));
    }

    #[test]
    fn a_frame_lost_doubled_swapped_cut_off_or_misdirected_is_noticed(
        rounds in rounds(), channel in 0..CHANNELS, fault in 0u8..5, at: prop::sample::Index, other: prop::sample::Index
    ) {
        let sent = stream(channel, &rounds);
        let (at, other) = (at.index(sent.len()), other.index(sent.len()));
        let mut arrived = sent.clone();
        let mut channel = channel;
        match fault {
            0 => drop(arrived.remove(at)),
            1 => arrived.insert(other, sent[at]),
            2 => arrived.swap(at, other),
            3 => arrived.truncate(at),
            // A channel's frames on another one. Between two others, frames that name no page
            // fit both.
            _ if channel > 0 && sent.iter().all(|frame| frame.body.extent().is_none()) => {
                arrived.clear();
            }
            _ => channel = (channel + 1) % CHANNELS,
        }
        let harmless = match fault {
            2 => at == other,
            _ => false,
        };
        prop_assert_eq!(arrives(channel, &arrived), harmless);
    }

    #[test]
    fn rounds_that_lie_are_refused(rounds in rounds(), lie in 0u8..3) {
        let mut sent = stream(1, &rounds);
        let last = sent.len() - 1;
        match (lie, &mut sent[last - 1].body) {
            (0, Body::Sync { pages, .. }) => *pages += 1,
            (1, Body::Sync { round, .. }) => *round += 1,
            _ => sent[last].body = Body::End { round: 0 },
        }
        prop_assert!(!arrives(1, &sent));
    }
}

#[test]
fn after_the_switch_a_channel_goes_on_and_owes_nothing_more() {
    let owed = |first| Body::Owed { extent: Extent::new(first, 4).expect("an extent") };
    let (mut out, mut inbound) = (Outbound::default(), Inbound::new(geometry(), 0));
    let mut accept = |frame| inbound.accept(frame);
    for frame in [out.frame(owed(0)), out.sync().0, out.end(), out.switch()] {
        assert_eq!(accept(frame), Ok(()));
    }
    assert_eq!(accept(out.clone().end()), Err(Violation::AfterEnd), "it goes on only when it is told to");
    let mut inbound = inbound.go_on();
    assert_eq!(inbound.accept(out.clone().frame(owed(4))), Err(Violation::Owes));
    let mut inbound = Inbound { next: out.next, ..inbound };
    let zero = out.frame(Body::Zero { extent: Extent::new(0, 4).expect("an extent") });
    assert_eq!([zero, out.sync().0].map(|frame| inbound.accept(frame)), [Ok(()); 2]);
    assert_eq!(
        inbound.accept(out.clone().last()),
        Err(Violation::EarlyLast),
        "owed pages belong to no channel anyway"
    );
    let mut inbound = Inbound { next: out.next, ..inbound };
    for frame in [out.sync().0, out.end()] {
        assert_eq!(inbound.accept(frame), Ok(()));
    }
    assert_eq!(
        inbound.accept(out.clone().commit()),
        Err(Violation::AfterEnd),
        "nothing is committed any more"
    );
    assert_eq!(inbound.accept(out.switch()), Err(Violation::AfterEnd));
}

#[test]
fn in_the_last_round_a_channel_names_any_page_of_the_image() {
    let zero = |stripe: u64| Body::Zero { extent: Extent::new(stripe * 512, 1).expect("an extent") };
    let (mut out, mut inbound) = (Outbound::default(), Inbound::new(geometry(), 1));
    let early = Inbound::new(geometry(), 1).accept(out.clone().last());
    assert_eq!(early, Err(Violation::EarlyLast), "no round has arrived");
    for frame in [out.frame(zero(1)), out.sync().0, out.last(), out.frame(zero(3)), out.frame(zero(4))] {
        assert_eq!(inbound.accept(frame), Ok(()));
    }
    assert_eq!(inbound.accept(out.clone().last()), Err(Violation::EarlyLast), "in the middle of a round");
    let mut inbound = Inbound { next: out.next, ..inbound };
    // Looked at again, and something more was written.
    for frame in [out.sync().0, out.last(), out.frame(zero(2)), out.sync().0, out.end()] {
        assert_eq!(inbound.accept(frame), Ok(()));
    }
    let (mut out, mut asked) = (Outbound::default(), Inbound::asked(geometry()));
    assert_eq!(asked.accept(out.sync().0), Ok(()));
    assert_eq!(asked.accept(out.last()), Err(Violation::EarlyLast), "there are no rounds");
}

#[test]
fn in_the_last_round_nothing_lies_beyond_the_image_and_nothing_is_owed() {
    let first = |body: fn(Extent) -> Body, page| {
        let (mut out, mut inbound) = (Outbound::default(), Inbound::new(geometry(), 0));
        let body = body(Extent::new(page, 1).expect("an extent"));
        [out.sync().0, out.last(), out.frame(body)].into_iter().try_for_each(|frame| inbound.accept(frame))
    };
    let zero = |extent| Body::Zero { extent };
    assert_eq!(first(zero, geometry().pages() - 1), Ok(()));
    assert!(matches!(first(zero, geometry().pages()), Err(Violation::NotOwned(_))));
    assert_eq!(first(|extent| Body::Owed { extent }, 0), Err(Violation::Owes));
}

#[test]
fn an_answer_names_any_page_of_the_image_and_never_ends_the_channel() {
    let zero = |first| Body::Zero { extent: Extent::new(first, 1).expect("an extent") };
    let (mut out, mut inbound) = (Outbound::default(), Inbound::asked(geometry()));
    for stripe in 0..4 {
        let answer = [out.frame(zero(stripe * u64::from(STRIPE_PAGES))), out.sync().0];
        assert!(answer.into_iter().all(|frame| inbound.accept(frame).is_ok()));
    }
    assert_eq!(inbound.accept(out.clone().end()), Err(Violation::EarlyEnd));
    let beyond = zero(geometry().pages());
    let mut inbound = Inbound { next: out.next, state: State::Synced, ..inbound };
    assert!(matches!(inbound.accept(out.frame(beyond)), Err(Violation::NotOwned(_))));
}

#[test]
fn an_end_without_a_round_is_early_and_nothing_follows_an_end() {
    let accept = |channel, frames: &[Frame]| {
        let mut inbound = Inbound::new(geometry(), channel);
        frames.iter().try_for_each(|&frame| inbound.accept(frame))
    };
    assert_eq!(accept(0, &[Outbound::default().end()]), Err(Violation::EarlyEnd));
    assert_eq!(accept(0, &[Outbound::default().commit()]), Err(Violation::EarlyEnd));
    let more = |sequence, body| Frame { sequence, body };
    let mut frames = stream(1, &[vec![]]);
    frames.push(more(2, Body::Commit));
    assert_eq!(accept(1, &frames), Err(Violation::AfterEnd), "only channel 0 commits");
    let mut frames = stream(0, &[vec![]]);
    frames.push(more(3, Body::End { round: 1 }));
    assert_eq!(accept(0, &frames), Err(Violation::AfterEnd));
}
