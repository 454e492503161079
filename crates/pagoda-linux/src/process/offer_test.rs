use rustix::process::{Signal, kill_process};

use super::*;
use crate::testing::wait::until;

#[test]
fn an_offer_is_the_same_as_words_and_a_stream_says_when_the_other_side_is_gone() {
    let (one, other) = Stream::pair(Duration::from_secs(5)).expect("a pair");
    let offer =
        Offer { process: 1, thread: 2, uffd: 3, stream: 4, lent: [5, NONE], word: 1 << 40, number: 1 << 50 };
    assert_eq!(Offer::from_words(offer.to_words()), offer);
    assert!(!one.is_over() && !other.is_over());
    one.send(b"all of it").expect("sent");
    assert!(!one.is_over());
    drop(other);
    // A child that another test forks has the other end until it ends itself.
    until("it is over, though the other has not read all", || one.is_over());
    let (one, other) = Stream::pair(Duration::from_secs(5)).expect("a pair");
    one.end();
    assert!(one.is_over() && other.receive(&mut [0]).is_err());
}

#[test]
fn a_peer_that_was_stopped_used_up_the_patience() {
    let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().expect("it starts");
    let id = Pid::from_child(&sleeper);
    let peer = id.as_raw_nonzero().get().cast_unsigned();
    let send = |signal| kill_process(id, signal).expect("it is there");
    let (mut one, other) = Stream::pair(SLICE).expect("a pair");
    one.peer = peer;
    send(Signal::STOP);
    until("it is stopped", || is_stopped(peer));
    std::thread::scope(|scope| {
        let got = scope.spawn(|| one.receive(&mut [0]));
        std::thread::sleep(5 * SLICE);
        other.send(b"x").expect("sent");
        got.join().expect("no panic").expect("it waited for as long as the other was stopped");
    });
    send(Signal::CONT);
    until("it runs", || !is_stopped(peer));
    let told = one.receive(&mut [0]).expect_err("nothing comes");
    assert_eq!(told.kind(), io::ErrorKind::WouldBlock);
    sleeper.kill().and_then(|()| sleeper.wait()).expect("it ends");
}

#[test]
fn an_error_that_is_not_the_other_sides_end_is_no_end() {
    let (one, other) = Stream::pair(Duration::from_secs(5)).expect("a pair");
    one.send(b"unread").expect("sent");
    drop(other);
    // As above.
    until("it ends with bytes that were not read", || {
        let told = recv(&one.end, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        told.is_err_and(|error| error == Errno::CONNRESET)
    });
    // No socket, so that all that is asked of it is refused.
    let file = std::fs::File::open("/dev/null").expect("it is there");
    assert!(!Stream { end: file.into(), peer: 0, patience: SLICE }.is_over());
}
