//! Several addresses of one receiver: the channels are spread over them, and go round a dead one.

mod support;

use std::sync::atomic::Ordering;

use pagoda_migrate::{Endpoint, ImageDestination, SendOptions};
use support::proxy::counted_line;
use support::{Place, receive_options, send_options, transfer_to};

/// Nothing listens at this port of the loopback.
const DEAD: &str = "127.0.0.3:1";

#[test]
fn channels_are_spread_over_addresses_and_go_round_a_dead_one() {
    let at: Endpoint = "tcp://127.0.0.1:0,127.0.0.2:0".parse().expect("two addresses");
    for (with_dead, expected) in [(false, [3, 3]), (true, [4, 2])] {
        let place = Place::with_image(1, 26 << 20);
        let mut destination = ImageDestination::new(place.arrived()).expect("nothing is there");
        let sending = SendOptions { channels: 6, ..send_options() };
        let mut counts = Vec::new();
        let route = |to: Endpoint| {
            let Endpoint::Several(all) = to else { panic!("it listens at two") };
            let lines = all.iter().map(|one| counted_line(one, None));
            let (mut lines, connections): (Vec<_>, Vec<_>) = lines.unzip();
            counts = connections;
            lines.extend(with_dead.then(|| DEAD.parse().expect("an address")));
            Endpoint::Several(lines)
        };
        let (sent, received) =
            transfer_to(&place.image(), &mut destination, &at, &sending, &receive_options(), route);
        sent.expect("sent");
        received.expect("received");
        assert!(place.is_equal());
        let counts: Vec<_> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        assert_eq!(counts, expected);
    }
}

#[test]
fn the_error_of_the_last_address_is_told_if_all_are_dead() {
    let place = Place::with_image(1, 1 << 20);
    let source = pagoda_migrate::ImageSource::open(&place.image()).expect("an image");
    let to = format!("tcp://{DEAD},{DEAD}").parse().expect("two addresses");
    let sent =
        pagoda_migrate::send(&source, &to, &send_options(), &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(matches!(sent, Err(pagoda_migrate::Error::Connect(_))), "{sent:?}");
}
