//! The receiver: makes the destination for a sender whose channels are admitted, applies its
//! frames, and keeps the image once the sender has committed.
//!
//! Nothing is made before all channels are admitted. Nothing is shown before all of it has arrived
//! and is on disk, or, after such an agreement, before the sender has promised the missing pages
//! ([`Remaining`]). Bytes from a peer are bounded and checked before they are used.

pub(crate) mod apply;
pub(crate) mod destination;
pub(crate) mod offers;
pub(crate) mod options;
pub(crate) mod page_requests;
pub(crate) mod postcopy_receive;
pub(crate) mod rejoin;
pub(crate) mod resumed_file;

use std::net::Shutdown;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

use pagoda_core::migrate::channel::Violation;
use pagoda_core::migrate::digest::DigestKey;
use pagoda_core::migrate::handshake::Hello;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::received::{ReceivedMap, words_for};
use pagoda_core::migrate::reply::{Failure, Reply};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::words::zeroed_words;

use crate::error::Error;
use crate::net::admission::admit_all;
use crate::net::connection::Connection;
use crate::net::listener::Listener;
use crate::progress::{Counts, Progress};
use crate::receive::apply::{Unshown, violation};
use crate::receive::destination::{Destination, LateDestination};
use crate::receive::offers::Offers;
use crate::receive::options::{Event, ReceiveOptions, Watch};
use crate::receive::page_requests::WORKING;
use crate::receive::postcopy_receive::Remaining;
use crate::receive::rejoin::Rejoining;
use crate::wire::frame_reader::{Inlet, Shared};
use crate::workers;

/// Receives one image. Blocks until it is kept, or something has failed. `watch` ends it by
/// [`ControlFlow::Break`](std::ops::ControlFlow).
///
/// # Errors
/// See [`Error`]. The destination shows nothing then; drop it.
pub fn receive(
    listener: Listener,
    destination: &mut dyn Destination,
    options: &ReceiveOptions,
    watch: &mut Watch<'_>,
) -> Result<Counts, Error> {
    match receive_to_commit(listener, &mut Target::Whole(destination), options, watch)? {
        Arrived::Whole(counts) => Ok(counts),
        Arrived::Owed(_) => Err(violation(0, Violation::Owes)),
    }
}

/// The state when a sender has committed or switched.
pub enum Arrived {
    /// All.
    Whole(Counts),
    /// All but the owed pages.
    Owed(Box<Remaining>),
}

/// Receives one image that may be used before all of it has arrived, if the sender wants it so.
/// Blocks until it is kept, or all but the owed pages have arrived, or something has failed.
/// `watch` ends it by [`ControlFlow::Break`](std::ops::ControlFlow).
///
/// # Errors
/// As [`receive`].
pub fn receive_late(
    listener: Listener,
    destination: &mut dyn LateDestination,
    options: &ReceiveOptions,
    watch: &mut Watch<'_>,
) -> Result<Arrived, Error> {
    receive_to_commit(listener, &mut Target::Late(destination), options, watch)
}

enum Target<'a> {
    Whole(&'a mut dyn Destination),
    Late(&'a mut dyn LateDestination),
}

impl Target<'_> {
    fn destination(&mut self) -> &mut dyn Destination {
        match self {
            Self::Whole(destination) => *destination,
            Self::Late(destination) => *destination,
        }
    }
}

fn receive_to_commit(
    listener: Listener,
    target: &mut Target<'_>,
    options: &ReceiveOptions,
    watch: &mut Watch<'_>,
) -> Result<Arrived, Error> {
    let at = listener.endpoint().map_err(Error::Listen)?;
    if !at.is_local() && options.token.is_none() && options.tls.is_none() {
        return Err(Error::OpenToAll(at));
    }
    let is_late = matches!(target, Target::Late(_));
    let (hello, mut connections) = admit_all(&listener, options, is_late, watch)?;
    // Only a sender that has switched may come back. Otherwise the kernel refuses connections.
    let may_come_back = hello.switches && !options.recover_for.is_zero();
    let listener = may_come_back.then_some(listener);
    let geometry = hello.geometry;
    let offers = prepare(target.destination(), &hello, &mut connections)?;
    let progress = Progress::new(geometry.image());
    let words = |count: u64| zeroed_words(Bytes::new(count).as_usize());
    let owed = PageSet::new(words(if hello.switches { PageSet::words_for(geometry.pages()) } else { 0 }));
    let late = match &*target {
        Target::Late(late) if hello.switches => Some((&**late, &owed)),
        _ => None,
    };
    let apply = Unshown {
        destination: match &*target {
            Target::Whole(destination) => &**destination,
            Target::Late(destination) => &**destination,
        },
        late,
        geometry,
        zero: options.zero,
        received: ReceivedMap::new(words(words_for(geometry.pages())), geometry.pages()),
        offers,
        progress: &progress,
        ends: OnceLock::new(),
    };
    let (codec, stall) = (hello.codec, options.stall);
    let key = DigestKey::of_session(hello.session);
    let shared = Shared { apply: &apply, geometry, codec, key, stall, progress: &progress };
    let askers = connections.split_off(usize::from(geometry.channels()));
    let closers: Vec<_> =
        connections.iter().map(Connection::closer).collect::<Result<_, _>>().map_err(Error::System)?;
    let (shared_by_all, apply, orders) = (&shared, &apply, &workers::Orders::default());
    let tasks = (0..).zip(connections).map(|(channel, mut connection)| {
        move || {
            if hello.resumes {
                apply.offers.tell(channel, apply.destination, &mut connection)?;
            }
            let ended = Inlet::new(shared_by_all, channel, connection, orders)?.run_to_end()?;
            apply.end(channel).map(|()| ended)
        }
    });
    let mut look = || watch(Event::Moving(&progress));
    let ended = workers::run(orders, tasks.collect(), &closers, Shutdown::Read, &mut look)?;
    let mut ends = ended.into_iter();
    let first = ends.next().ok_or(Error::NotPagoda)?;
    let await_commit = vec![move || first.await_commit()];
    let committed = workers::run(orders, await_commit, &closers[..1], Shutdown::Read, &mut look)?;
    let (mut first, switches) = committed.into_iter().next().ok_or(Error::NotPagoda)?;
    if switches != (owed.count() > 0) {
        let _ = first.connection().send(&Reply::Failed(Failure::Protocol).encode());
        return Err(violation(0, Violation::Owes));
    }
    if switches {
        let ends = std::iter::once(first).chain(ends).collect();
        let way = Rejoining { listener, options: options.clone(), hello };
        return Ok(Arrived::Owed(Box::new(Remaining { ends, askers, owed, progress, way })));
    }
    finish(target.destination(), first.connection())?;
    Ok(Arrived::Whole(progress.counts()))
}

/// Prepares the destination, and tells the sender if it can't be. Returns the content of an earlier
/// transfer.
fn prepare(
    destination: &mut dyn Destination,
    hello: &Hello,
    connections: &mut [Connection],
) -> Result<Offers, Error> {
    let prepared = destination.prepare(hello.geometry.image());
    let offers = prepared.and_then(|()| Offers::of(destination, hello.geometry, hello.resumes));
    offers.map_err(Error::Destination).inspect_err(|error| {
        for connection in connections {
            // The error is the destination's, whether or not the sender hears of it.
            let _ = connection.send(&Reply::Failed(error.as_failure()).encode());
        }
    })
}

/// Keeps the image, and tells the sender, which gets a sign of life meanwhile.
fn finish(destination: &mut dyn Destination, connection: &mut Connection) -> Result<(), Error> {
    let kept = thread::scope(|scope| {
        let (done, is_done) = sync_channel(1);
        let keep = move || {
            let _ = done.send(destination.finish());
        };
        let spawned = thread::Builder::new().name("keep".to_owned()).spawn_scoped(scope, keep);
        if let Err(error) = spawned {
            return Err(Error::System(error));
        }
        loop {
            match is_done.recv_timeout(WORKING) {
                Ok(outcome) => return outcome.map_err(Error::Destination),
                Err(RecvTimeoutError::Timeout) => {
                    // All is here: whether the sender still listens makes no difference to keeping
                    // it.
                    let _ = connection.send(&Reply::Working.encode());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Destination(std::io::Error::other(
                        "the thread that keeps it has failed",
                    )));
                }
            }
        }
    });
    let reply = match &kept {
        Ok(()) => Reply::Finished,
        Err(error) => Reply::Failed(error.as_failure()),
    };
    let _ = connection.send(&reply.encode());
    kept
}

#[cfg(test)]
#[path = "late_malice_test.rs"]
mod late_malice_tests;
#[cfg(test)]
#[path = "late_test.rs"]
mod late_tests;
#[cfg(test)]
#[path = "malice_test.rs"]
mod malice_tests;
#[cfg(test)]
mod tests;
