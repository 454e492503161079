//! Why a part of a file on a server can't be had: one line each, the event and the remedy.
//!
//! Nothing here may show the query of an address, which can be a secret.

use std::io;

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The server refuses.
    #[error("the server answers {0}; check the address, and the right to read there")]
    Status(String),
    /// The server has trouble of its own.
    #[error("the server answers {0}, also when asked again; try later")]
    Trouble(String),
    /// It is elsewhere.
    #[error("the server answers that it is at {0}; give that address")]
    Moved(String),
    /// The server sends whole files alone.
    #[error("the server sends the whole file where a part was asked for; use one that knows range requests")]
    NoRanges,
    /// The answer breaks the protocol.
    #[error("the server's answer is wrong: {0}; use another server, or a copy of the file")]
    Wrong(&'static str),
    /// The answer ended too soon.
    #[error("the server's answer was cut off, also when asked again; check the network")]
    Cut,
    /// It is another file now.
    #[error("the file was replaced on the server; put the former one back, or start again")]
    Replaced,
    /// There was no answer in time.
    #[error("the server did not answer within {0} s; check the network, or allow more time")]
    Late(u64),
    /// No connection.
    #[error("the server can't be reached ({0}); check the address and the network")]
    Connection(String),
    /// The address is none.
    #[error("{0}; give http://, https:// or s3://BUCKET/KEY")]
    Address(String),
    /// The store's client refuses.
    #[error("the request can't be made ({0}); check the address and the AWS_ variables")]
    Request(String),
    /// The cache's directory can't be used.
    #[error("the cache {0} can't be used ({1}); give a directory of your own")]
    Cache(String, String),
    /// The system has no thread or descriptor to give.
    #[error("this system could not provide what is needed ({0})")]
    System(String),
}

impl Failure {
    /// Whether another try may end otherwise.
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(self, Self::Trouble(_) | Self::Cut | Self::Late(_) | Self::Connection(_))
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        Self::other(failure)
    }
}
