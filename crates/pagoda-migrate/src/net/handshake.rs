//! The two sides of the handshake, each within one deadline.
//!
//! Until it has succeeded on every channel, no byte of the image is read, and no destination is
//! prepared.

use std::io::{self, Read};
use std::time::Duration;

use pagoda_core::migrate::handshake::{
    ANSWER_BYTES, Answer, GREETING_BYTES, Greeting, HELLO_BYTES, Hello, PROOF_BYTES, Refusal, VERSION,
    VERSION_BYTES, version_of,
};
use pagoda_linux::process::child::random_bytes;

use crate::error::Error;
use crate::net::connection::{Connection, lost, tls_error};
use crate::net::socket::Deadline;
use crate::net::token::{Side, Token};

/// How long a receiver lets a handshake take in all: it is three small messages. A sender waits for
/// its turn as long as for any reply.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

/// The error for a handshake that breaks off: more likely another protocol than a bad network.
fn broken(channel: u16, limit: Duration, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
            tls_error(&error).unwrap_or(Error::NotPagoda)
        }
        io::ErrorKind::TimedOut => Error::Silent(limit),
        _ => lost(channel, limit, error),
    }
}

/// The sender's side. `hello` needs neither nonce nor proof yet.
pub(crate) fn introduce(
    connection: &mut Connection,
    hello: Hello,
    token: Option<&Token>,
    limit: Duration,
) -> Result<(), Error> {
    connection.set_deadline(Some(Deadline::after(limit)));
    let channel = hello.channel;
    let broken = |error| broken(channel, limit, error);
    let said: [u8; GREETING_BYTES] = connection.read_message().map_err(broken)?;
    let greeting = Greeting::decode(&said).map_err(|_| Error::NotPagoda)?;
    if greeting.version != VERSION {
        // So that the receiver can name both versions, too; it reads no more than the version.
        let _ = connection.send(&hello.encode());
        return Err(Error::OtherVersion(greeting.version));
    }
    match (greeting.wants_token, token) {
        (true, None) => return Err(Error::TokenWanted),
        (false, Some(_)) => return Err(Error::TokenNotWanted),
        _ => {}
    }
    let token = token.cloned().unwrap_or_else(Token::none);
    let nonce = random_bytes().map_err(Error::System)?;
    let hello = Hello { nonce, ..hello };
    let unproven = hello.unproven();
    let proof = token.proof(Side::Sender, &said, &unproven).bytes();
    connection.send(&Hello { proof, ..hello }.encode()).map_err(broken)?;
    let answer: [u8; ANSWER_BYTES] = connection.read_message().map_err(broken)?;
    match Answer::decode(&answer) {
        Ok(Answer::Taken { proof }) if token.proof(Side::Receiver, &said, &unproven).is(proof) => {
            connection.set_deadline(None);
            Ok(())
        }
        Ok(Answer::Taken { .. }) => Err(Error::ReceiverUnproven),
        Ok(Answer::Refused(refusal)) => Err(Error::Refused(refusal)),
        Err(_) => Err(Error::NotPagoda),
    }
}

/// A peer's hello of a channel, and the receiver's proof to answer it with; or why the peer is
/// refused.
pub(crate) struct Heard(Result<(Hello, [u8; PROOF_BYTES]), Refusal>);

/// The receiver's side, first half: reads the hello. May take as long as `limit`.
pub(crate) fn hear(
    connection: &mut Connection,
    token: Option<&Token>,
    limit: Duration,
) -> Result<Heard, Error> {
    connection.set_deadline(Some(Deadline::after(limit)));
    let nonce: [u8; PROOF_BYTES] = random_bytes().map_err(Error::System)?;
    let greeting = Greeting { version: VERSION, wants_token: token.is_some(), nonce }.encode();
    let broken = |error| broken(0, limit, error);
    connection.send(&greeting).map_err(broken)?;
    // The version first: a hello of another one may be shorter.
    let start: [u8; VERSION_BYTES] = connection.read_message().map_err(broken)?;
    if let Some(version) = version_of(&start).filter(|version| *version != VERSION) {
        let _ = connection.send(&Answer::Refused(Refusal::Version).encode());
        return Err(Error::OtherVersion(version));
    }
    let mut said = [0; HELLO_BYTES];
    said[..VERSION_BYTES].copy_from_slice(&start);
    connection.read_exact(&mut said[VERSION_BYTES..]).map_err(broken)?;
    let token = token.cloned().unwrap_or_else(Token::none);
    Ok(Heard(Hello::decode(&said).and_then(|hello| {
        let unproven = hello.unproven();
        if !token.proof(Side::Sender, &greeting, &unproven).is(hello.proof) {
            return Err(Refusal::Token);
        }
        Ok((hello, token.proof(Side::Receiver, &greeting, &unproven).bytes()))
    })))
}

/// The second half: takes the channel if it `may_come`, and refuses any other, which is told why.
pub(crate) fn answer(
    connection: &mut Connection,
    heard: Heard,
    may_come: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<Hello, Error> {
    let judged = heard.0.and_then(|(hello, proof)| may_come(&hello).map(|()| (hello, proof)));
    match judged {
        Ok((hello, proof)) => {
            let broken = |error| broken(hello.channel, HANDSHAKE, error);
            connection.send(&Answer::Taken { proof }.encode()).map_err(broken)?;
            connection.set_deadline(None);
            Ok(hello)
        }
        Err(refusal) => {
            // The peer may be gone already; then no one reads the reason.
            let _ = connection.send(&Answer::Refused(refusal).encode());
            Err(Error::Refusing(refusal))
        }
    }
}
