//! A sender that switches and is not ours: the pages it owes, the pages it brings, and the peer it
//! has to be.

use std::ops::ControlFlow;
use std::time::Duration;

use pagoda_core::migrate::channel::Outbound;
use pagoda_core::migrate::frame::Body;
use pagoda_core::migrate::geometry::Extent;
use pagoda_core::migrate::handshake::{Codec, Refusal};

use super::*;
use crate::testing::late::{Late, Sender, receive_all, receive_from};
use crate::testing::{PAGE, digest, extent, options, token};

fn stored(extent: Extent, byte: u8) -> (Body, Vec<u8>) {
    let content = vec![byte; extent.len().as_usize()];
    (Body::Stored { extent, digest: digest(extent, &content) }, content)
}

#[test]
fn awaited_pages_are_requested_and_the_rest_comes_in_the_background() {
    let mut late = Late::default();
    late.wants.want(3);
    let (received, ()) = receive_from(&mut late, Codec::None, |sender| {
        sender.switch();
        // Whichever of the two asks; the other says now and then that it is there.
        let (mut outbound, mut asked) = (Outbound::default(), None);
        while asked.is_none() {
            for lane in [1, 2] {
                let reply = sender.lanes[lane].reply(lane as u16).expect("a reply");
                if reply == (Reply::Wanted { page: 0 }) {
                    asked = Some(lane);
                    break;
                }
                assert_eq!(reply, Reply::Working);
            }
        }
        let lane = asked.expect("it was asked");
        let (body, content) = stored(extent(0, 8), 3);
        let answer = [outbound.frame(body).encode().to_vec(), content, outbound.sync().0.encode().to_vec()];
        sender.lanes[lane].send(&answer.concat()).expect("sent");
        sender.frame(Body::Zero { extent: extent(32, 4) });
        sender.frame(Body::Filled { extent: extent(36, 4), word: [4; 8] });
        sender.end();
        assert_eq!(sender.lanes[0].reply(0).expect("a reply"), Reply::Synced { round: 2 });
        for lane in [1, 2] {
            while sender.lanes[lane].reply(lane as u16).expect("a reply") != Reply::Finished {}
        }
    });
    let counts = received.expect("received");
    assert_eq!((counts.owed_pages, counts.asked, counts.zero_pages), (16, 1, 4));
    assert_eq!(late.arrived(), (0..8).chain(32..40).collect::<Vec<_>>());
    for (page, byte) in [(0, 3), (7, 3), (8, 0), (16, 6), (32, 0), (36, 4), (39, 4)] {
        assert_eq!(late.page(page), vec![byte; PAGE], "page {page}");
    }
}

#[test]
fn a_wrong_token_opens_no_channel_not_even_one_on_which_pages_are_asked_for() {
    let (known, unknown) = (token("one token of many bytes"), token("another token of many bytes"));
    let options = ReceiveOptions { token: Some(known.clone()), ..options() };
    let is_refused = |outcome: Result<Connection, Error>| {
        assert!(matches!(outcome, Err(Error::Refused(Refusal::Token))), "{:?}", outcome.map(drop));
    };
    let lane = |to: &_, channel, token| Sender::lane(to, Codec::None, channel, token);
    // No other sender comes, and no memory could be owed a page.
    let mut late = Late::default();
    let mut left = 4;
    let mut until_all_came = |event: Event<'_>| {
        left -= u32::from(matches!(event, Event::Turned(_)));
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let (received, ()) = receive_all(&mut late, &options, &mut until_all_came, |to| {
        (0..3).for_each(|channel| is_refused(lane(&to, channel, Some(&unknown))));
        let outcome = lane(&to, 0, None);
        assert!(matches!(outcome, Err(Error::TokenWanted)), "{:?}", outcome.map(drop));
    });
    assert!(matches!(received, Err(Error::Cancelled)), "{received:?}");
    assert_eq!(late.memory.size(), Bytes::ZERO, "something was made");
    // Beside an admitted sender, whose channels come one after the other.
    let mut turned = 0;
    let mut watch = |event: Event<'_>| {
        turned += u32::from(matches!(event, Event::Turned(Error::Refusing(Refusal::Token))));
        ControlFlow::Continue(())
    };
    let (received, ()) = receive_all(&mut late, &options, &mut watch, |to| {
        let mut lanes = Vec::new();
        for channel in 0..3 {
            is_refused(lane(&to, channel, Some(&unknown)));
            lanes.push(lane(&to, channel, Some(&known)).expect("admitted"));
        }
        let mut sender = Sender { lanes, outbound: Outbound::default() };
        sender.switch();
        sender.frame(Body::Zero { extent: extent(0, 8) });
        let (body, content) = stored(extent(32, 8), 5);
        sender.frame(body);
        sender.say(&content);
        sender.end();
        for lane in [1, 2] {
            while sender.lanes[lane].reply(lane as u16).expect("a reply") != Reply::Finished {}
        }
    });
    received.expect("received");
    assert_eq!(turned, 3);
    assert_eq!(late.arrived(), (0..8).chain(32..40).collect::<Vec<_>>());
    for (page, byte) in [(0, 0), (7, 0), (16, 6), (32, 5), (39, 5)] {
        assert_eq!(late.page(page), vec![byte; PAGE], "page {page}");
    }
}

/// A frame for the last owed pages that is refused, by the memory here or as none that is owed.
#[test]
fn the_last_owed_pages_are_not_taken_as_arrived_without_being_in_place() {
    let options = ReceiveOptions { recover_for: Duration::from_secs(60), ..options() };
    for refuses in [Some(32), None] {
        let mut late = Late::default();
        late.refuses = refuses;
        let (received, ()) = receive_all(&mut late, &options, &mut |_| ControlFlow::Continue(()), |to| {
            let mut sender = Sender::new(&to, Codec::None);
            sender.switch();
            sender.frame(Body::Zero { extent: extent(0, 8) });
            if refuses.is_none() {
                sender.frame(Body::Zero { extent: extent(32, 7) });
            }
            let last = if refuses.is_none() { extent(39, 2) } else { extent(32, 8) };
            let (body, content) = stored(last, 5);
            sender.frame(body);
            sender.say(&content);
            // Until the receiver gives up.
            while sender.lanes[0].reply(0).is_ok() {}
        });
        let is_told = match &received {
            Err(Error::Destination(_)) => refuses.is_some(),
            Err(Error::Violation { violation: Violation::NotOwed(_), .. }) => refuses.is_none(),
            _ => false,
        };
        assert!(is_told, "{refuses:?}: {received:?}");
        assert!(!late.arrived().contains(&39));
    }
}

#[test]
fn a_sender_that_comes_back_again_and_again_is_not_waited_for_once_all_is_here() {
    let options = ReceiveOptions { recover_for: Duration::from_secs(60), ..options() };
    let mut late = Late::default();
    let (received, attempts) = receive_all(&mut late, &options, &mut |_| ControlFlow::Continue(()), |to| {
        let mut sender = Sender::new(&to, Codec::None);
        sender.switch();
        sender.frame(Body::Zero { extent: extent(0, 8) });
        sender.frame(Body::Zero { extent: extent(32, 8) });
        sender.end();
        assert_eq!(sender.lanes[0].reply(0).expect("a reply"), Reply::Synced { round: 2 });
        sender.close();
        drop(sender);
        // All channels, which end at once, until they are not taken any more.
        (1..100_000)
            .take_while(|attempt| (0..3).all(|n| Sender::lane_again(&to, *attempt, n).is_ok()))
            .count()
    });
    received.expect("all is here");
    assert!(attempts > 0 && attempts < 99_999, "{attempts} attempts");
    assert_eq!(late.arrived(), (0..8).chain(32..40).collect::<Vec<_>>());
}
