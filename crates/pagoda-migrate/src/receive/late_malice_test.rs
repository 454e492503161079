//! Malicious messages of a sender that switches, before and after the switch: each is noticed, and
//! overwrites nothing.

use std::net::Shutdown;

use pagoda_core::migrate::channel::{Outbound, Violation};
use pagoda_core::migrate::frame::{Body, Frame};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::reply::Reply;
use proptest::prelude::*;

use crate::error::Error;
use crate::testing::late::{Late, Sender, receive_from};
use crate::testing::tampering::Tampering;
use crate::testing::{IMAGE, PAGE, eight_pages, extent, is_damaged, is_lost, is_violation, owes, packed};

fn is_not_owed(error: &Error) -> bool {
    matches!(error, Error::Violation { violation: Violation::NotOwed(_), .. })
}

type Malice = (&'static str, fn(&mut Sender), fn(&Error) -> bool);

const BEFORE: [Malice; 9] = [
    (
        "pages that are owed and come all the same",
        |sender| sender.frame(Body::Zero { extent: extent(7, 1) }),
        is_not_owed,
    ),
    (
        "content of a page that is owed",
        |sender| sender.frame(Body::Filled { extent: extent(33, 9), word: [1; 8] }),
        is_not_owed,
    ),
    ("pages that are owed twice", |sender| sender.frame(Body::Owed { extent: extent(7, 2) }), owes),
    (
        "more that is owed than there is",
        |sender| {
            sender.frame(Body::Owed { extent: extent(IMAGE.get() / PAGE as u64, 1) });
        },
        is_violation,
    ),
    (
        "a switch in the middle",
        |sender| {
            let switch = sender.outbound.switch().encode();
            sender.say(&switch);
        },
        is_violation,
    ),
    (
        "a commit with pages owed",
        |sender| {
            sender.end();
            let commit = sender.outbound.clone().commit().encode();
            sender.say(&commit);
        },
        owes,
    ),
    (
        "something behind the switch",
        |sender| {
            sender.end();
            let switch = sender.outbound.switch().encode();
            let zero = sender.outbound.frame(Body::Zero { extent: extent(0, 1) }).encode();
            sender.say(&[switch, zero].concat());
            // Until it is refused.
            while sender.lanes[0].reply(0).is_ok_and(|reply| reply != Reply::Switched) {}
        },
        |error| {
            matches!(error, Error::Violation { violation: Violation::AfterEnd | Violation::Owes, .. })
                || is_lost(error)
        },
    ),
    (
        "a round that all share where pages are owed",
        |sender| {
            let (sync, last) = (sender.outbound.sync().0.encode(), sender.outbound.last().encode());
            sender.say(&[sync, last].concat());
        },
        is_violation,
    ),
    ("no switch", |sender| sender.end(), is_lost),
];

const AFTER: [Malice; 9] = [
    ("a page that is not owed", |sender| sender.frame(Body::Zero { extent: extent(16, 1) }), is_not_owed),
    (
        "pages of which half are owed",
        |sender| sender.frame(Body::Filled { extent: extent(4, 8), word: [1; 8] }),
        is_not_owed,
    ),
    (
        "a page twice",
        |sender| {
            sender.frame(Body::Zero { extent: extent(0, 8) });
            sender.frame(Body::Filled { extent: extent(7, 1), word: [1; 8] });
        },
        is_not_owed,
    ),
    ("more that is owed", |sender| sender.frame(Body::Owed { extent: extent(64, 1) }), owes),
    (
        "another switch",
        |sender| {
            let switch = sender.outbound.switch().encode();
            sender.say(&switch);
        },
        is_violation,
    ),
    (
        "an end with pages owed",
        |sender| {
            sender.frame(Body::Zero { extent: extent(0, 8) });
            sender.end();
        },
        owes,
    ),
    (
        "an answer without a request",
        |sender| {
            let zero = Outbound::default().frame(Body::Zero { extent: extent(0, 8) }).encode();
            sender.lanes[1].send(&zero).expect("sent");
            sender.frame(Body::Zero { extent: extent(32, 8) });
            sender.end();
        },
        owes,
    ),
    ("noise", |sender| sender.say(&[0x5a; 4096]), is_damaged),
    ("nothing", |_| {}, is_lost),
];

/// Sends each of them after `begin`; `looked` checks the state then.
fn each_is_noticed(malices: &[Malice], begin: fn(&mut Sender), looked: fn(&Late, &str)) {
    for (what, malice, is_noticed) in malices {
        let mut late = Late::default();
        let (received, ()) = receive_from(&mut late, Codec::None, |sender| {
            begin(sender);
            malice(sender);
            sender.close();
        });
        let error = received.map(drop).expect_err(what);
        assert!(is_noticed(&error), "{what}: {error}");
        looked(&late, what);
    }
}

#[test]
fn malice_before_the_switch_is_noticed_and_nothing_is_shown() {
    each_is_noticed(&BEFORE, Sender::owe, |late, what| assert_eq!(late.arrived(), [0; 0], "{what}"));
    // A switch for nothing.
    let (received, ()) = receive_from(&mut Late::default(), Codec::None, |sender| {
        sender.end();
        let switch = sender.outbound.switch().encode();
        sender.say(&switch);
    });
    assert!(owes(&received.map(drop).expect_err("nothing is owed")));
}

#[test]
fn malice_after_the_switch_is_noticed_and_overwrites_nothing() {
    each_is_noticed(&AFTER, Sender::switch, |late, what| {
        assert_eq!(late.page(16), vec![6; PAGE], "{what}");
        assert!(late.arrived().iter().all(|page| late.page(*page) == vec![0; PAGE]), "{what}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// For any tampering after the switch: a page that arrives is right, and either all arrive or
    /// it fails.
    #[test]
    fn arrived_pages_are_right_for_any_tampering(
        codec in prop::sample::select(&Codec::ALL[..]), tampering in Tampering::any()
    ) {
        let content = eight_pages();
        let mut late = Late::default();
        let (received, ()) = receive_from(&mut late, codec, |sender| {
            sender.switch();
            let mut says = packed(&mut sender.outbound, codec, extent(0, 8), &content);
            says.extend(sender.outbound.frame(Body::Zero { extent: extent(32, 8) }).encode());
            says.extend([sender.outbound.sync().0, sender.outbound.end()].map(Frame::encode).concat());
            tampering.happen_to(&mut says);
            sender.say(&says);
            sender.lanes[0].closer().expect("a handle").close(Shutdown::Write);
            // Until the receiver is done with it.
            while sender.lanes[1].reply(1).is_ok_and(|reply| reply == Reply::Working) {}
        });
        let arrived = late.arrived();
        for &page in &arrived {
            let at = page as usize * PAGE;
            let right = if page < 8 { content[at..at + PAGE].to_vec() } else { vec![0; PAGE] };
            prop_assert!(late.page(page) == right, "page {}", page);
        }
        match received {
            Ok(_) => prop_assert_eq!(arrived.len(), 16),
            Err(error) => prop_assert!(tampering.changes_something(), "{}", error),
        }
    }
}
