//! Connecting all channels of a switched migration once more, and finding out what the receiver
//! still lacks.
//!
//! Only this side has the owed pages, so that it tries for as long as it may, whatever the reason
//! for a failure. This module must never count a page as sent that the receiver says it lacks.

use std::net::Shutdown;
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::Duration;

use pagoda_core::migrate::geometry::{Geometry, StripeList};
use pagoda_core::migrate::handshake::Hello;
use pagoda_core::migrate::missing::{MISSING_BYTES, Missing};
use pagoda_core::migrate::pages::PageSet;

use crate::error::Error;
use crate::live::Rounds;
use crate::net::connection::{Connection, lost};
use crate::net::endpoint::Endpoint;
use crate::net::socket::{Closer, Deadline};
use crate::send::{SendOptions, connect};
use crate::wire::frame_writer::Shared;
use crate::workers::{self, Orders};

/// How long one step of connecting may take: a packet that a dead line swallows is sent again after
/// a second, and no attempt should wait for many of those.
const STEP: Duration = Duration::from_secs(3);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// What a sender needs to connect once more.
pub(crate) struct WayBack<'a> {
    pub(crate) hello: Hello,
    pub(crate) to: &'a Endpoint,
    pub(crate) options: &'a SendOptions,
    pub(crate) shared: &'a Shared<'a>,
}

impl WayBack<'_> {
    /// Connects all channels, in as many attempts as it takes. The number of the last one is in
    /// `attempt`.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub(crate) fn connect(
        &self,
        attempt: &mut u32,
        until: Deadline,
        look: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<Connection>, Error> {
        loop {
            *attempt += 1;
            let hello = Hello { attempt: *attempt, ..self.hello };
            let limit = STEP.min(self.options.stall);
            let error = match connect(hello, self.to, self.options, limit, &mut |_| look()) {
                Ok(connections) => return Ok(connections),
                Err(error) => error,
            };
            if until.is_over() {
                return Err(error);
            }
            sleep(PAUSE);
        }
    }

    /// Reads which pages the receiver lacks from the `channels` that carry stripes, and has them
    /// owed again, and nothing else. `promised` are those that were owed at the switch.
    pub(crate) fn owe_missing(
        &self,
        rounds: &Rounds<'_>,
        channels: Vec<Connection>,
        closers: &[Closer],
        promised: &PageSet,
        look: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<Connection>, Error> {
        let (geometry, owed) = (rounds.geometry, &rounds.data);
        let orders = Orders::default();
        orders.hurry();
        let tasks = (0..).zip(channels).map(|(channel, mut connection)| {
            move || {
                for first in geometry.stripes_of(channel) {
                    let _ = owed.take_stripe(first);
                }
                read_missing(&mut connection, channel, geometry, promised, owed, self.options.stall)?;
                Ok(connection)
            }
        });
        workers::run(&orders, tasks.collect(), closers, Shutdown::Both, look)
    }
}

fn read_missing(
    connection: &mut Connection,
    channel: u16,
    geometry: Geometry,
    promised: &PageSet,
    owed: &PageSet,
    stall: Duration,
) -> Result<(), Error> {
    let mut list = StripeList::new(geometry, channel);
    loop {
        let bytes: [u8; MISSING_BYTES] =
            connection.read_message().map_err(|error| lost(channel, stall, error))?;
        match Missing::decode(&bytes).map_err(|_| Error::Damaged { channel })? {
            Missing::End => return Ok(()),
            Missing::Pages { first, pages }
                if list.accept(first) && pages.without(promised.stripe(first)).is_empty() =>
            {
                owed.add_stripe(first, pages);
            }
            Missing::Pages { .. } => return Err(Error::StrangeReply { channel }),
        }
    }
}
