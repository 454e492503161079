//! Why a migration did not happen: one line each, the event and the remedy.
//!
//! After any of them the source is as it was and the destination shows nothing, except for
//! [`Error::Unconfirmed`] and [`Error::AfterSwitch`]. Nothing here may show text that came from the
//! other side.

use std::io;
use std::time::Duration;

use pagoda_core::migrate::channel::Violation;
use pagoda_core::migrate::geometry::{CHANNELS_MAX, IMAGE_MOST};
use pagoda_core::migrate::handshake::{Refusal, VERSION};
use pagoda_core::migrate::reply::Failure;
use pagoda_core::size::Bytes;

use crate::net::endpoint::Endpoint;

/// Why there was no migration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such migration.
    #[error(
        "an image of {size} can't be sent over {channels} channels; use 1 to {CHANNELS_MAX} channels, and at most {IMAGE_MOST}"
    )]
    Geometry {
        /// The size of the image.
        size: Bytes,
        /// The channels that were asked for.
        channels: u16,
    },
    /// The other side is not there.
    #[error("could not connect ({0}); start `pagoda recv` there first, and check the address")]
    Connect(#[source] io::Error),
    /// The address can't be listened on.
    #[error("could not listen ({0}); choose an address of this machine that is free")]
    Listen(#[source] io::Error),
    /// Other machines reach the listener, and nothing is demanded of them.
    #[error("anyone could send to {0}; demand a token or certificates, or listen on 127.0.0.1")]
    OpenToAll(Endpoint),
    /// No sender has connected.
    #[error("nobody came within {0:?}; start `pagoda send`, or wait longer with --wait")]
    NobodyCame(Duration),
    /// Some channels came, and some did not.
    #[error("only {came} of {of} channels came within {within:?}; start both sides again")]
    ChannelsMissing {
        /// Those that are there.
        came: usize,
        /// Those that were announced.
        of: u16,
        /// How long they were waited for.
        within: Duration,
    },
    /// The message is not of this protocol, or was damaged.
    #[error(
        "the other side does not speak Pagoda's protocol; check the address, and that both sides use TLS or neither"
    )]
    NotPagoda,
    /// The other side is there and says nothing.
    #[error(
        "the other side said nothing for {0:?}; check the address, and that both sides use TLS or neither"
    )]
    Silent(Duration),
    /// The other side is of another time.
    #[error(
        "the other side speaks version {0} of the protocol, and this one {VERSION}; use the same pagoda on both sides"
    )]
    OtherVersion(u16),
    /// The receiver demands a token, and there is none.
    #[error("the receiver demands a token; give its file with --token-file")]
    TokenWanted,
    /// There is a token, and the receiver does not demand one: it may not be the right receiver.
    #[error("the receiver has no token, and this side has; give its file on both sides, or on neither")]
    TokenNotWanted,
    /// The receiver took the sender, and could not prove that it has the token.
    #[error("the receiver does not have this token; nothing was sent to it, check the address")]
    ReceiverUnproven,
    /// The receiver did not take a channel.
    #[error("the receiver refused: {}", refusal_text(*.0))]
    Refused(Refusal),
    /// This receiver did not take a channel.
    #[error("refused a sender: {}", refusal_text(*.0))]
    Refusing(Refusal),
    /// The receiver gave up.
    #[error("the receiver gave up: {}", failure_text(*.0))]
    Peer(Failure),
    /// A connection is gone.
    #[error(
        "channel {channel} was lost ({error}); look at the other side's message and at the network, then start again"
    )]
    Lost {
        /// Which channel.
        channel: u16,
        /// The error that this side saw.
        error: io::Error,
    },
    /// A connection is there, and nothing moves.
    #[error(
        "nothing moved on channel {channel} for {after:?}; check the network, or allow more with --timeout"
    )]
    Stalled {
        /// Which channel.
        channel: u16,
        /// How long.
        after: Duration,
    },
    /// Bytes are not those that were sent.
    #[error("what arrived on channel {channel} is damaged; check the network, then start again")]
    Damaged {
        /// Which channel.
        channel: u16,
    },
    /// A frame was not the one due.
    #[error(
        "channel {channel} does not keep to the protocol ({violation:?}); start again, and report it if it happens again"
    )]
    Violation {
        /// Which channel.
        channel: u16,
        /// The breach.
        violation: Violation,
    },
    /// A reply was not the one due.
    #[error(
        "the receiver answered what was not asked on channel {channel}; use the same pagoda on both sides"
    )]
    StrangeReply {
        /// Which channel.
        channel: u16,
    },
    /// The source can't be read.
    #[error("could not read the image ({0}); check the disk it is on")]
    Source(#[source] io::Error),
    /// The source was written meanwhile.
    #[error("the image was changed while it was sent; stop whoever writes to it, or send a copy")]
    SourceChanged,
    /// Rounds were used up, and more is written than can be sent.
    #[error(
        "{left} were written while as much was sent; allow more downtime, use a faster line or less of a codec, or slow the writer down"
    )]
    TooMuchWritten {
        /// The bytes left after the last round.
        left: Bytes,
    },
    /// There is still something to send long after the writer was stopped.
    #[error("the memory was still written after its writer had been stopped; stop all that write to it")]
    NotStopped,
    /// The memory is being sent already.
    #[error("the memory is being sent already; wait for that, or cancel it")]
    SentAlready,
    /// The destination can't be made or written.
    #[error("could not write the image ({0}); check the directory and the space there")]
    Destination(#[source] io::Error),
    /// All was sent, and the receiver did not say that it has it.
    #[error(
        "all was sent, and the receiver did not confirm it; look there: the image has its name if it is whole"
    )]
    Unconfirmed,
    /// The receiver used the image, and something failed before all owed pages arrived.
    #[error(
        "the image lives at the receiver, which did not confirm that all that was owed has arrived ({0}); look there, and do not go \
         on with it here"
    )]
    AfterSwitch(#[source] Box<Error>),
    /// After the switch all channels were lost, and not connected once more in time.
    #[error(
        "the connection was lost after the switch ({error}) and did not come back within {within:?}; owed pages that \
         had not arrived are lost, look at the network and the other side, and allow more time to recover the next time"
    )]
    NotRecovered {
        /// How long it was tried or waited for without a page that arrived.
        within: Duration,
        /// Why it was lost, or why it did not come back.
        error: Box<Error>,
    },
    /// The bandwidth would leave channels silent.
    #[error(
        "with {bandwidth} a second for all channels one may have nothing to send for too long (the limit is {stall:?}); use fewer \
         channels, or raise --bandwidth, or --timeout on both sides"
    )]
    TooSlow {
        /// The limit on all channels.
        bandwidth: Bytes,
        /// How long a channel may stand still.
        stall: Duration,
    },
    /// TLS failed.
    #[error("TLS failed ({0}); check --cert, --key and --ca on both sides, and the name in the address")]
    Tls(String),
    /// The system had no memory, thread or randomness to give.
    #[error("this system could not provide what is needed ({0}); free some memory, or use fewer channels")]
    System(#[source] io::Error),
    /// The user asked to end.
    #[error("ended before it was done; start again when it suits")]
    Cancelled,
}

impl Error {
    /// How close it is to the cause: when one channel fails, the others fail after it, knowing
    /// less.
    pub(crate) const fn tells(&self) -> u8 {
        match self {
            Self::Lost { .. } => 0,
            Self::Peer(Failure::Lost) => 1,
            Self::Cancelled => 3,
            // Its pages are gone, even where the line failed as well.
            Self::Destination(_) => 4,
            _ => 2,
        }
    }

    /// Whether it is of the line between both sides, which may be another one the next time. Bytes
    /// that a line damages, loses or doubles are.
    pub(crate) const fn is_of_the_line(&self) -> bool {
        matches!(
            self,
            Self::Lost { .. }
                | Self::Stalled { .. }
                | Self::Damaged { .. }
                | Self::Tls(_)
                | Self::Violation { violation: Violation::OutOfOrder { .. }, .. }
                | Self::Peer(Failure::Damaged | Failure::Protocol | Failure::Lost)
        )
    }

    /// A receiver's message to its sender about it.
    pub(crate) const fn as_failure(&self) -> Failure {
        match self {
            Self::Damaged { .. } => Failure::Damaged,
            Self::Violation { .. } => Failure::Protocol,
            Self::Destination(_) | Self::System(_) => Failure::Destination,
            Self::Cancelled => Failure::Cancelled,
            _ => Failure::Lost,
        }
    }
}

fn refusal_text(refusal: Refusal) -> String {
    match refusal {
        Refusal::Damaged => {
            "what was said made no sense; check the address, and that both sides use TLS or neither"
                .to_owned()
        }
        Refusal::Version => {
            "the versions of the protocol differ; use the same pagoda on both sides".to_owned()
        }
        Refusal::Token => "the tokens differ; give the same --token-file on both sides".to_owned(),
        Refusal::Geometry => {
            format!(
                "page sizes differ, or there are more than {CHANNELS_MAX} channels; use the same pagoda on both sides"
            )
        }
        Refusal::TooLarge => "the image is larger than the receiver allows; raise its --max-size".to_owned(),
        Refusal::Codec => "the codec is unknown to it; choose another with --codec".to_owned(),
        Refusal::Channel => "the channels do not belong together; start both sides again".to_owned(),
        Refusal::Switches => {
            "it takes nothing that is used before all of it has arrived; send without post-copy".to_owned()
        }
        Refusal::Busy => "it is taking another migration; wait for that, or use another address".to_owned(),
    }
}

const fn failure_text(failure: Failure) -> &'static str {
    match failure {
        Failure::Damaged => "what arrived there was damaged; check the network, then start again",
        Failure::Protocol => {
            "frames were lost or out of order on the way; check what is between both sides, then start again"
        }
        Failure::Destination => {
            "it could not write the image; look at its own message, and at the space there"
        }
        Failure::Lost => "it lost a channel; look at its own message and at the network, then start again",
        Failure::Cancelled => "it was asked to end; start again when it suits",
    }
}
