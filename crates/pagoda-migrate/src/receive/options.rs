//! How to receive, and what a receiver tells its caller meanwhile.

use std::ops::ControlFlow;
use std::time::Duration;

use pagoda_core::migrate::geometry::{CHANNELS_MAX, STRIPE_BYTES};
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;

use crate::error::Error;
use crate::net::admission::AT_ONCE;
use crate::net::tls::ServerTls;
use crate::net::token::Token;
use crate::progress::Progress;

/// How long both sides try to connect once more after a switch, if nothing else is said: longer
/// than a switch or a link takes to come back.
pub(crate) const RECOVER_FOR: Duration = Duration::from_secs(60);

/// How to receive: by default any sender in the clear within ten minutes, up to 1 TiB, and with 30
/// s of patience, 60 s after a switch. Where other machines can reach the listener, demand a token
/// or certificates.
#[derive(Clone)]
pub struct ReceiveOptions {
    /// The token that a sender has to have, if any.
    pub token: Option<Token>,
    /// TLS; plain without.
    pub tls: Option<ServerTls>,
    /// The policy for zero pages.
    pub zero: ZeroPolicy,
    /// The largest image that is taken. The received map takes up to a 32,768th of it.
    pub image_most: Bytes,
    /// How long to wait for a sender.
    pub wait: Duration,
    /// How long a channel may stand still, and how long after the first channel the last may come.
    pub stall: Duration,
    /// How long the sender may be gone after a switch, without a page that arrives meanwhile:
    /// threads that touch an owed page wait for as long. With zero the pages are lost with the
    /// first channel.
    pub recover_for: Duration,
}

/// What one channel takes at most beside its stripes: buffers, and contexts of codecs and TLS.
const CHANNEL_MOST: Bytes = Bytes::mib(1);

/// What a peer takes at most before it is admitted: buffers of TLS and its thread's stack.
const STRANGER_MOST: Bytes = Bytes::kib(256);

impl ReceiveOptions {
    /// The most memory that peers can make a receiver hold, beside the image itself: those that
    /// introduce themselves, and one sender with as many channels as there may be and an image as
    /// large as is allowed.
    #[must_use]
    pub const fn memory_most(&self) -> Bytes {
        // Channels of stripes, and as many for page requests.
        let channels = 2 * CHANNELS_MAX as u64;
        let stripes = 3 * STRIPE_BYTES as u64;
        // The received map, the pages that are owed, here and at the destination, and stripes that
        // are offered.
        let maps = 4 * (self.image_most.get() / (8 * OS_PAGE as u64) + STRIPE_BYTES as u64);
        // Also the next channels of a sender that comes back, before its last ones have ended.
        let waiting = (AT_ONCE as u64 + channels) * STRANGER_MOST.get();
        Bytes::new(channels * (stripes + CHANNEL_MOST.get()) + maps + waiting)
    }
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self {
            token: None,
            tls: None,
            zero: ZeroPolicy::default(),
            image_most: Bytes::gib(1 << 10),
            wait: Duration::from_secs(600),
            stall: Duration::from_secs(30),
            recover_for: RECOVER_FOR,
        }
    }
}

/// A receiver's reports to its caller, about ten times a second and at each change; not while the
/// image is kept.
#[derive(Debug)]
pub enum Event<'a> {
    /// No sender has come yet, or not on all channels.
    Waiting,
    /// A peer came, and was refused; the receiver waits on.
    Turned(&'a Error),
    /// It goes on.
    Moving(&'a Progress),
}

pub(crate) type Watch<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;
