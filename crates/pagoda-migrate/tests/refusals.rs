//! Which peers may send, and to which receivers: tokens and certificates. A refused peer is refused
//! before anything is made, and gets the reason.

mod support;

use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;

use pagoda_migrate::{
    ClientTls, Credentials, Error, ImageDestination, Listener, ReceiveOptions, SendOptions, ServerTls, Token,
    receive,
};
use support::authority::{Authority, client, server};
use support::{Outcome, Place, receive_options, send_options, transfer};

fn refused(place: &Place, (sent, received): Outcome, sender: &str, receiver: &str) {
    let (sent, received) = (sent.expect_err(sender).to_string(), received.expect_err(receiver).to_string());
    assert!(sent.contains(sender), "{sent}");
    assert!(received.contains(receiver), "{received}");
    assert_eq!(place.names(), ["image"], "{sent}: something was made");
}

/// A receiver that waits no longer than it takes to see that no sender comes.
fn impatient() -> ReceiveOptions {
    ReceiveOptions { wait: Duration::from_millis(500), ..receive_options() }
}

#[test]
fn only_a_holder_of_the_token_gets_in_and_only_where_it_is_known() {
    let place = Place::with_image(1, 3 << 20);
    let token = |text: &str| Some(Token::new(text.as_bytes()).expect("long enough"));
    let (one, other) = (token("one token of many bytes"), token("another token of many bytes"));
    let sending = |token: &Option<Token>| SendOptions { token: token.clone(), ..send_options() };
    let receiving = |token: &Option<Token>| ReceiveOptions { token: token.clone(), ..receive_options() };
    let run = |sender, receiver| transfer(&place, &sending(sender), &receiving(receiver));
    refused(&place, run(&one, &other), "the tokens differ", "refused a sender: the tokens differ");
    refused(&place, run(&None, &one), "demands a token", "does not speak");
    refused(&place, run(&one, &None), "has no token", "does not speak");
    let (sent, received) = run(&one, &one);
    sent.expect("sent");
    received.expect("received");
    assert!(place.is_equal());
}

#[test]
fn an_image_that_is_too_large_is_refused() {
    let place = Place::with_image(1, 3 << 20);
    let receiving = ReceiveOptions { image_most: pagoda_core::size::Bytes::mib(2), ..receive_options() };
    let outcome = transfer(&place, &send_options(), &receiving);
    refused(&place, outcome, "raise its --max-size", "raise its --max-size");
}

#[test]
fn with_certificates_both_sides_must_be_of_the_authority() {
    let scratch = tempfile::tempdir().expect("a directory");
    let ours = Authority::new(scratch.path(), "ours");
    let theirs = Authority::new(scratch.path(), "theirs");
    let (host, elsewhere, sender) = (ours.sign("127.0.0.1"), ours.sign("127.0.0.2"), ours.sign("sender"));
    let stranger = theirs.sign("127.0.0.1");
    let place = Place::with_image(2, 3 << 20);
    let run = |client: Option<ClientTls>, server: Option<ServerTls>| {
        let sending = SendOptions { tls: client, stall: Duration::from_secs(3), ..send_options() };
        let receiving = ReceiveOptions { tls: server, stall: Duration::from_secs(3), ..receive_options() };
        transfer(&place, &sending, &receiving)
    };
    let ca = ours.ca();
    let not_ours = run(client(&stranger, &ca), server(&host, &ca));
    refused(&place, not_ours, "TLS failed", "TLS failed");
    let not_theirs = run(client(&sender, &ca), server(&stranger, &ca));
    refused(&place, not_theirs, "TLS failed", "TLS failed");
    let not_there = run(client(&sender, &ca), server(&elsewhere, &ca));
    refused(&place, not_there, "TLS failed", "TLS failed");
    refused(&place, run(None, server(&host, &ca)), "TLS or neither", "TLS or neither");
    refused(&place, run(client(&sender, &ca), None), "TLS failed", "TLS or neither");
    for codec in [pagoda_core::migrate::handshake::Codec::None, Default::default()] {
        let sending = SendOptions { tls: client(&sender, &ca), codec, ..send_options() };
        let receiving = ReceiveOptions { tls: server(&host, &ca), ..receive_options() };
        let (sent, received) = transfer(&place, &sending, &receiving);
        sent.expect("sent");
        received.expect("received");
        assert!(place.is_equal());
        fs::remove_file(place.arrived()).expect("removed");
    }
}

#[test]
fn credentials_that_are_none_name_their_file() {
    let scratch = tempfile::tempdir().expect("a directory");
    let ours = Authority::new(scratch.path(), "ours");
    let (certificate, key) = ours.sign("host");
    let (empty, missing, authority) =
        (scratch.path().join("empty"), scratch.path().join("missing"), ours.ca());
    fs::write(&empty, "").expect("written");
    let good = Credentials { certificate: &certificate, key: &key, authority: &authority };
    ClientTls::new(good).expect("credentials");
    for (bad, name) in [
        (Credentials { certificate: &empty, ..good }, "empty"),
        (Credentials { key: &empty, ..good }, "empty"),
        (Credentials { key: &missing, ..good }, "missing"),
        (Credentials { authority: &missing, ..good }, "missing"),
        (Credentials { authority: &empty, ..good }, "empty"),
    ] {
        for error in [ClientTls::new(bad).map(drop), ServerTls::new(bad).map(drop)] {
            let error = error.expect_err(name);
            assert!(matches!(error, Error::Tls(_)) && error.to_string().contains(name), "{error}");
        }
    }
    let other = ours.sign("other");
    let mixed = Credentials { key: &other.1, ..good };
    assert!(matches!(ServerTls::new(mixed), Err(Error::Tls(_))), "a key of another certificate");
}

#[test]
fn a_listener_that_others_can_reach_demands_something_of_them() {
    let place = Place::with_image(1, 1 << 20);
    let receive_at = |at: &str, options: &ReceiveOptions| {
        let listener = Listener::bind(&at.parse().expect("an address")).expect("a listener");
        let mut destination = ImageDestination::new(place.arrived()).expect("nothing is there");
        receive(listener, &mut destination, options, &mut |_| ControlFlow::Continue(()))
    };
    for at in ["0.0.0.0:0", "[::]:0"] {
        let received = receive_at(at, &impatient());
        let Err(Error::OpenToAll(endpoint)) = &received else { panic!("{at}: {received:?}") };
        assert!(!endpoint.is_local(), "{endpoint}");
        assert!(received.is_err_and(|error| error.to_string().contains("demand a token")));
    }
    let token = Some(Token::new(b"one token of many bytes").expect("long enough"));
    let received = receive_at("0.0.0.0:0", &ReceiveOptions { token, ..impatient() });
    assert!(matches!(received, Err(Error::NobodyCame(_))), "{received:?}");
    let scratch = tempfile::tempdir().expect("a directory");
    let ours = Authority::new(scratch.path(), "ours");
    let tls = server(&ours.sign("host"), &ours.ca());
    let received = receive_at("0.0.0.0:0", &ReceiveOptions { tls, ..impatient() });
    assert!(matches!(received, Err(Error::NobodyCame(_))), "{received:?}");
    assert_eq!(place.names(), ["image"]);
}

#[test]
fn a_missing_sender_is_not_waited_for_longer_than_asked() {
    let place = Place::with_image(1, 1 << 20);
    let none = SendOptions { channels: 0, ..send_options() };
    let (sent, received) = transfer(&place, &none, &impatient());
    assert!(matches!(sent, Err(Error::Geometry { channels: 0, .. })), "{sent:?}");
    assert!(matches!(received, Err(Error::NobodyCame(_))), "{received:?}");
    assert_eq!(place.names(), ["image"]);
}
