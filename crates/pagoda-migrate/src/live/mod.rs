//! The sender of memory that is written while it is sent: rounds over dirty pages, until few enough
//! are left to stop the writer for them.
//!
//! In a round the channels send the pages due, each stripe by one of them, and wait for each other.
//! If it may switch each stripe has its channel; otherwise the next free one takes it. The pages
//! written meanwhile are then collected, and [`Convergence`] decides the next step. Once the
//! writer is stopped all remaining pages are collected once, and sent by all channels together, or
//! owed; `owing` sends the owed ones. Before the commit it checks that the writer has stopped:
//! pages that are only swapped out then were sent as they are. This module must never commit
//! before, nor continue after a source has failed: pages that it took from the source as sent would
//! be lost.

pub(crate) mod live_channel;
pub(crate) mod options;
pub(crate) mod postcopy_send;
mod reconnect;
pub(crate) mod source;

use std::net::Shutdown;
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagoda_core::migrate::convergence::{Convergence, LastResort, Limits, Round, Verdict};
use pagoda_core::migrate::digest::DigestKey;
use pagoda_core::migrate::geometry::{Geometry, STRIPE_BYTES, STRIPE_PAGES};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::rate::Line;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::words::zeroed_words;

use crate::error::Error;
use crate::live::live_channel::{Busy, Lane, PIECE_PAGES};
use crate::live::options::{LiveOptions, Moved, Otherwise, Pace, Writer};
use crate::live::reconnect::WayBack;
use crate::live::source::{Delayed, LiveSource, Room, SlowDown};
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::socket::Closer;
use crate::progress::Progress;
use crate::send::{check_bandwidth, commit_all, connect, new_hello};
use crate::wire::frame_writer::{Outlet, Shared};
use crate::workers::{self, Orders};

/// Rounds with the writer stopped. The first has all remaining pages. Another follows only if some
/// look written, as pages do that a read swapped in. Those get fewer; if some are left after this
/// many rounds, a writer runs that should not.
const STOPPED_ROUNDS_MOST: u32 = 100;

/// The state that the rounds of a migration share.
pub(crate) struct Rounds<'a> {
    source: &'a dyn LiveSource,
    pub(crate) geometry: Geometry,
    pub(crate) orders: &'a Orders,
    pub(crate) closers: &'a [Closer],
    pub(crate) progress: &'a Progress,
    /// The pages to send, and the pages that the other side has to zero.
    pub(crate) data: PageSet,
    pub(crate) zero: PageSet,
    first: bool,
    /// The first page that no channel has taken yet in a round that all share.
    rest: AtomicU64,
    pace: Pace,
}

/// The bytes to send, and those of them that may have been written.
struct Left {
    left: Bytes,
    written: Bytes,
}

/// Sends live memory. Blocks until the receiver has confirmed all of it, or something has failed;
/// no wait in it is longer than the stall, except those of `writer`. `watch` is called about ten
/// times a second and at the start of each round, those with the writer stopped among them, and
/// ends it by [`ControlFlow::Break`].
///
/// After a switch it can't be ended any more: only this side has the owed pages.
///
/// # Errors
/// See [`Error`]. Unless it is [`Error::Unconfirmed`] or [`Error::AfterSwitch`] the other side
/// shows nothing, and the writer may run again.
pub fn send_live(
    source: &dyn LiveSource,
    to: &Endpoint,
    options: &LiveOptions,
    writer: &mut dyn Writer,
    watch: &mut dyn FnMut(&Progress, &Pace) -> ControlFlow<()>,
) -> Result<Moved, Error> {
    let (size, channels) = (source.size(), options.send.channels);
    let geometry = Geometry::new(size, channels).ok_or(Error::Geometry { size, channels })?;
    check_bandwidth(&options.send)?;
    let switches = options.otherwise == Otherwise::PostCopy;
    let mut introduced = |progress: &Progress| watch(progress, &Pace::default());
    let hello = new_hello(geometry, (switches, false), options.send.codec)?;
    let connections = connect(hello, to, &options.send, options.send.stall, &mut introduced)?;
    let (progress, orders) = (Progress::new(size), Orders::default());
    let shared = Shared {
        geometry,
        codec: options.send.codec,
        key: DigestKey::of_session(hello.session),
        only_if_faster: options.send.only_if_faster,
        stall: options.send.stall,
        progress: &progress,
        line: options.send.bandwidth.map(|per_s| Mutex::new(Line::new(per_s))),
    };
    let closers: Vec<_> =
        connections.iter().map(Connection::closer).collect::<Result<_, _>>().map_err(Error::System)?;
    let mut rounds = Rounds {
        source,
        geometry,
        orders: &orders,
        closers: &closers,
        progress: &progress,
        data: page_set(geometry),
        zero: page_set(geometry),
        first: true,
        rest: AtomicU64::new(0),
        pace: Pace::default(),
    };
    let mut lanes = Vec::with_capacity(connections.len());
    for (channel, connection) in (0..).zip(connections) {
        lanes.push(Lane {
            outlet: Outlet::new(&shared, channel, connection, &orders)?,
            reader: source.reader(options.send.codec != Codec::None).map_err(Error::Source)?,
            // A thread may wait for a page that was asked for: not for 2 MiB to be cleared as well.
            room: match channel < geometry.channels() {
                true => Room::in_huge_page(shared.key).map_err(Error::System)?,
                false => Room::default(),
            },
        });
    }
    let askers = lanes.split_off(usize::from(geometry.channels()));
    let mut owes = switches && options.rounds == 0;
    if !owes {
        // A writer that is asked to stop may have to run on to a place where it can.
        let slowed = FullSpeed(source);
        (lanes, owes) = rounds.while_it_is_written(lanes, options, writer, watch)?;
        drop(slowed);
    }
    let stopped = Instant::now();
    writer.stop();
    rounds.collect()?;
    // If nothing is left but zeroes there is nothing to owe.
    if owes && rounds.data.count() > 0 {
        let back = WayBack { hello, to, options: &options.send, shared: &shared };
        return postcopy_send::switch(rounds, lanes, askers, stopped, &back, watch);
    }
    lanes = rounds.while_stopped(lanes, watch)?;
    let pace = rounds.pace;
    let mut look = || watch(&progress, &pace);
    // A few bytes to receivers that have read all before: it never waits.
    let end = |mut lane: Lane<'_>| lane.outlet.end().map(|()| lane.outlet.into_parts());
    let ended = lanes.into_iter().map(end).collect::<Result<_, _>>()?;
    commit_all(ended, &orders, &closers, options.send.stall, &mut look)?;
    Ok(Moved { counts: progress.counts(), pace, downtime: stopped.elapsed(), owed_for: None })
}

/// Ends the slowing down of writers when it is dropped.
struct FullSpeed<'a>(&'a dyn LiveSource);

impl Drop for FullSpeed<'_> {
    fn drop(&mut self) {
        self.0.full_speed();
    }
}

impl<'a> Rounds<'a> {
    /// Rounds until it is time to stop the writer. True if the remaining pages are to be owed then.
    fn while_it_is_written(
        &mut self,
        mut lanes: Vec<Lane<'a>>,
        options: &LiveOptions,
        writer: &mut dyn Writer,
        watch: &mut dyn FnMut(&Progress, &Pace) -> ControlFlow<()>,
    ) -> Result<(Vec<Lane<'a>>, bool), Error> {
        let mut convergence = Convergence::new(Limits {
            downtime_ms: u32::try_from(options.downtime.as_millis()).unwrap_or(u32::MAX),
            rounds: options.rounds,
            last_resort: match options.otherwise {
                Otherwise::StopForLonger => LastResort::StopAndCopy,
                Otherwise::GiveUp => LastResort::GiveUp,
                Otherwise::PostCopy => LastResort::PostCopy,
            },
        });
        let say = if options.otherwise == Otherwise::PostCopy { Lane::send } else { Lane::send_shared };
        self.collect()?;
        let mut slow = SlowDown { percent: 0, took: Duration::ZERO };
        loop {
            *self.rest.get_mut() = 0;
            let (started, before) = (Instant::now(), content_bytes(self.progress));
            lanes = self.each_lane(lanes, say, watch)?;
            let took = started.elapsed();
            let Left { left, written } = self.collect()?;
            let sent = content_bytes(self.progress).saturating_sub(before);
            let Delayed { faults, time } = self.source.delayed();
            self.pace = Pace {
                rounds: self.pace.rounds + 1,
                left,
                written_per_s: per_s(written, took),
                sent_per_s: per_s(sent, took),
                downtime: took.mul_f64(left.get() as f64 / sent.get().max(1) as f64),
                delayed_faults: faults,
                delayed: time,
            };
            match convergence.judge(Round { sent, took_ms: took.as_millis() as u64, left, written }) {
                Verdict::Again => {}
                Verdict::Throttle(percent) => {
                    writer.throttle(percent);
                    slow.percent = percent.min(options.slow_most_percent);
                }
                Verdict::StopAndCopy => return Ok((lanes, false)),
                Verdict::PostCopy => return Ok((lanes, true)),
                Verdict::GiveUp => return Err(Error::TooMuchWritten { left }),
            }
            slow.took = took;
            if slow.percent > 0 {
                // Also in rounds that help: a page is slow only until its next fault.
                self.source.slow_down(&self.data, slow);
            }
        }
    }

    /// Sends the pages collected when the writer was stopped, and checks that it has stopped.
    fn while_stopped(
        &mut self,
        mut lanes: Vec<Lane<'a>>,
        watch: &mut dyn FnMut(&Progress, &Pace) -> ControlFlow<()>,
    ) -> Result<Vec<Lane<'a>>, Error> {
        // Without a round there is nothing that a channel could end.
        if !self.first && self.data.count() + self.zero.count() == 0 {
            return Ok(lanes);
        }
        for _ in 0..STOPPED_ROUNDS_MOST {
            // In the first round the remaining pages are all pages: each channel has its own part
            // of them.
            let say = if self.first { Lane::send } else { Lane::send_rest };
            *self.rest.get_mut() = 0;
            lanes = self.each_lane(lanes, say, watch)?;
            // Pages that were only swapped out, for other tenants, were sent as they are there.
            if self.collect()?.written == Bytes::ZERO {
                return Ok(lanes);
            }
        }
        Err(Error::NotStopped)
    }

    /// Counts a stripe as done, in the first round.
    pub(crate) fn done(&self, outlet: &Outlet<'_>, first: u64) {
        if self.first {
            let rest = self.geometry.image().get() - first * OS_PAGE as u64;
            outlet.done(Bytes::new(rest.min(STRIPE_BYTES as u64)));
        }
    }

    pub(crate) const fn pace(&self) -> Pace {
        self.pace
    }

    /// Adds changed pages to the pages to send.
    fn collect(&self) -> Result<Left, Error> {
        let written = self.source.collect(&self.data, &self.zero).map_err(Error::Source)?;
        let bytes = |pages: u64| Bytes::new(pages * OS_PAGE as u64);
        Ok(Left { left: bytes(self.data.count() + self.zero.count()), written: bytes(written) })
    }

    /// The first page of the next stripe, for one channel alone.
    pub(crate) fn next_stripe(&self) -> Option<u64> {
        let first = self.rest.fetch_add(u64::from(STRIPE_PAGES), Ordering::Relaxed);
        (first < self.geometry.pages()).then_some(first)
    }

    pub(crate) const fn is_first(&self) -> bool {
        self.first
    }

    /// The next remaining pages, for one channel alone: a piece; or a stripe that is left whole,
    /// which arrives in a huge frame at the other side, or frees one, only as a whole.
    pub(crate) fn next_piece(&self) -> Option<Range<u64>> {
        let stripe = u64::from(STRIPE_PAGES);
        let mut from = self.rest.load(Ordering::Relaxed);
        while from < self.geometry.pages() {
            // No channel has taken anything of a stripe that is not begun.
            let len =
                if from.is_multiple_of(stripe) && self.is_all_left(from) { stripe } else { PIECE_PAGES };
            let piece = from..from + len;
            let taken = self.rest.compare_exchange(from, piece.end, Ordering::Relaxed, Ordering::Relaxed);
            from = taken.map_or_else(|now| now, |_| piece.end);
            let has_any = |set: &PageSet| set.has_any(piece.clone());
            if taken.is_ok() && (has_any(&self.data) || has_any(&self.zero)) {
                return Some(piece);
            }
        }
        None
    }

    /// Whether all pages of the stripe whose first page is `first` are left.
    fn is_all_left(&self, first: u64) -> bool {
        let (data, zero) = (self.data.stripe(first), self.zero.stripe(first));
        data.count() + zero.without(data).count() == STRIPE_PAGES
    }

    /// The pages that are owed now.
    pub(crate) fn copy_of_owed(&self) -> PageSet {
        let copy = page_set(self.geometry);
        let pages = 0..self.geometry.pages();
        pages
            .step_by(STRIPE_PAGES as usize)
            .for_each(|first| copy.add_stripe(first, self.data.stripe(first)));
        copy
    }

    /// Lets each channel say something, and end a round with it.
    pub(crate) fn each_lane(
        &mut self,
        lanes: Vec<Lane<'a>>,
        say: fn(&mut Lane<'a>, &Self) -> Result<(), Error>,
        watch: &mut dyn FnMut(&Progress, &Pace) -> ControlFlow<()>,
    ) -> Result<Vec<Lane<'a>>, Error> {
        let mut look = || watch(self.progress, &self.pace);
        if look().is_break() {
            return Err(Error::Cancelled);
        }
        let busy = Busy::all(lanes.len());
        let tasks = lanes.into_iter().map(|mut lane| {
            let (this, busy) = (&*self, &busy);
            move || {
                say(&mut lane, this)?;
                lane.await_others(busy)?;
                Ok(lane)
            }
        });
        let lanes = workers::run(self.orders, tasks.collect(), self.closers, Shutdown::Write, &mut look)?;
        self.first = false;
        Ok(lanes)
    }
}

/// An empty set of an image's pages.
fn page_set(geometry: Geometry) -> PageSet {
    PageSet::new(zeroed_words(Bytes::new(PageSet::words_for(geometry.pages())).as_usize()))
}

/// The content that took time to send.
fn content_bytes(progress: &Progress) -> Bytes {
    let counts = progress.counts();
    Bytes::new((counts.data_pages + counts.packed_pages + counts.filled_pages) * OS_PAGE as u64)
}

fn per_s(bytes: Bytes, took: Duration) -> Bytes {
    Bytes::new((bytes.get() as f64 / took.as_secs_f64().max(1e-6)) as u64)
}

#[cfg(test)]
mod tests;
