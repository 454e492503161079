//! Post-copy with restricted senders: owed pages arrive over connections that demand a token or
//! certificates. A peer with neither is refused while the source still has its writer and the
//! destination nothing.

use std::ops::ControlFlow;
use std::thread;

use pagoda::migrate::{
    ClientTls, Codec, Error, Event, LiveOptions, ReceiveOptions, ServerTls, Token, Writer, ZeroPolicy,
};
use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::authority::{Authority, client, server};
use crate::migrate::late::use_at_once;
use crate::migrate::program::Program;
use crate::migrate::support::{any_port, late_options, manager, migrate_late, receive_options, slow_options};

const REGION: Bytes = Bytes::mib(6);

/// One side's credentials, and its demands.
#[derive(Clone, Default)]
struct Trust {
    what: &'static str,
    token: Option<Token>,
    client: Option<ClientTls>,
    server: Option<ServerTls>,
}

impl Trust {
    fn send(&self, mut options: LiveOptions) -> LiveOptions {
        (options.send.token, options.send.tls) = (self.token.clone(), self.client.clone());
        options
    }
    fn receive(&self) -> ReceiveOptions {
        let (token, tls) = (self.token.clone(), self.server.clone());
        ReceiveOptions { token, tls, ..receive_options(ZeroPolicy::default()) }
    }
}

fn token(text: &str) -> Option<Token> {
    Some(Token::new(text.as_bytes()).expect("long enough"))
}

fn managers() -> [Manager; 2] {
    [(); 2].map(|()| manager(Bytes::mib(24), BasePage::K64))
}

#[test]
fn owed_pages_arrive_over_connections_with_a_token_and_with_tls() {
    if skip_without_moves("post-copy with a token and TLS") {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let ours = Authority::new(scratch.path(), "ours");
    let tls = Trust {
        what: "TLS",
        client: client(&ours.sign("sender"), &ours.ca()),
        server: server(&ours.sign("127.0.0.1"), &ours.ca()),
        ..Trust::default()
    };
    let by_token = Trust { what: "a token", token: token("a token of the tests"), ..Trust::default() };
    let both = Trust { what: "both", token: by_token.token.clone(), ..tls.clone() };
    let (mut seed, mut asked) = (0, 0);
    for trust in [by_token, tls, both] {
        // All of it is owed, over a line on which most is requested; or the remainder of two
        // rounds, packed.
        for options in [slow_options(2, Bytes::mib(8)), late_options(Codec::Zstd, 3, 2)] {
            seed += 1;
            let context = format!("{}, seed {seed}", trust.what);
            let [from, to] = managers();
            let region = from.region(REGION).create().expect("a region");
            let mut program = Program::new(&region, seed);
            program.fill();
            region.page_out(0, region.len() / 3).expect("stored");
            let (options, receiving) = (trust.send(options), trust.receive());
            let moved =
                migrate_late(&region, program, &to, &options, &receiving, |arrived, arrival, shadow| {
                    use_at_once(&arrived, arrival, shadow, seed, &context);
                });
            if options.rounds == 0 {
                assert!(moved.counts.owed_pages > 0, "{context}: {moved:?}");
            }
            asked += moved.counts.asked;
        }
    }
    assert!(asked > 0, "no page was asked for");
}

/// Must be neither slowed down nor stopped: its writes go to no receiver.
struct Untouched;

impl Writer for Untouched {
    fn throttle(&mut self, _percent: u8) {
        panic!("throttled for a peer that is no receiver");
    }
    fn stop(&mut self) {
        panic!("stopped for a peer that is no receiver");
    }
}

/// Fails to send to a receiver that trusts others; returns both errors. The destination has nothing
/// at any moment.
fn turned(region: &Region, to: &Manager, sender: &Trust, receiver: &Trust) -> [String; 2] {
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    let before = to.stats();
    let has_nothing = || {
        let now = to.stats();
        assert_eq!((now.table_bytes, now.held_bytes), (before.table_bytes, before.held_bytes));
    };
    thread::scope(|scope| {
        let sent = scope.spawn(|| {
            let options = sender.send(late_options(Codec::Lz4, 2, 0));
            region.migrate_to(&at, &options, &mut Untouched, &mut |_, _| ControlFlow::Continue(()))
        });
        let mut why = String::new();
        let receiving = receiver.receive();
        let received = Region::receive_late(to, listener, &receiving, &mut |event| {
            has_nothing();
            let Event::Turned(error) = event else { return ControlFlow::Continue(()) };
            why = error.to_string();
            ControlFlow::Break(())
        });
        assert!(matches!(received, Err(Error::Cancelled)), "{:?}", received.map(drop));
        has_nothing();
        let error = sent.join().expect("the sender").expect_err("it was turned away");
        [error.to_string(), why]
    })
}

#[test]
fn an_untrusted_peer_is_refused_before_anything_is_owed_and_the_writer_goes_on() {
    if skip_without_moves("post-copy without trust") {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let [ours, theirs] = ["ours", "theirs"].map(|name| Authority::new(scratch.path(), name));
    let host = server(&ours.sign("127.0.0.1"), &ours.ca());
    let known = Trust { token: token("one token of many bytes"), ..Trust::default() };
    let unknown = Trust { token: token("another token of many bytes"), ..Trust::default() };
    let nobody = Trust::default();
    let certified = Trust { server: host, ..Trust::default() };
    let stranger = Trust { client: client(&theirs.sign("stranger"), &ours.ca()), ..Trust::default() };
    let [from, to] = managers();
    let region = from.region(REGION).create().expect("a region");
    let mut program = Program::new(&region, 1);
    program.fill();
    for (sender, receiver, said) in [
        (&unknown, &known, ["the tokens differ", "refused a sender: the tokens differ"]),
        (&nobody, &known, ["demands a token", "does not speak"]),
        (&known, &nobody, ["has no token", "does not speak"]),
        (&stranger, &certified, ["TLS failed", "TLS failed"]),
        (&nobody, &certified, ["TLS or neither", "TLS or neither"]),
    ] {
        let errors = turned(&region, &to, sender, receiver);
        assert!(
            errors.iter().zip(said).all(|(error, said)| error.contains(said)),
            "{errors:?}, not {said:?}"
        );
        (0..2000).for_each(|_| program.step());
        assert_eq!(program.differs(&region), None, "the source after {errors:?}");
    }
    // And a trusted sender gets in, and owed pages change the counters that were looked at.
    let (options, before) = (known.send(late_options(Codec::Lz4, 2, 0)), to.stats());
    migrate_late(&region, program, &to, &options, &known.receive(), |arrived, arrival, shadow| {
        assert!(to.stats().table_bytes > before.table_bytes, "a region is counted");
        use_at_once(&arrived, arrival, shadow, 1, "with the token");
        assert!(to.stats().held_bytes > before.held_bytes, "its memory is counted");
    });
}
