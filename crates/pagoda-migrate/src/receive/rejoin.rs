//! The way back for a sender whose channels were lost after the switch.
//!
//! From the switch until all has arrived the listener stays open. A peer that knows the session's
//! identity, beside the token or a certificate, is the sender: its new channels replace those that
//! it had, which it may have given up before this side noticed. Any other peer is refused as at any
//! busy receiver. This module must never mix channels of two attempts.

use std::io::{self, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pagoda_core::migrate::handshake::{Hello, Refusal};

use crate::error::Error;
use crate::net::admission::{Hall, LOOK, bell, silence};
use crate::net::connection::Connection;
use crate::net::handshake::{self, Heard};
use crate::net::listener::Listener;
use crate::net::socket::{Closer, Deadline};
use crate::receive::options::ReceiveOptions;

/// What a receiver needs to let its sender come back.
pub(crate) struct Rejoining {
    /// None if the sender may not come back.
    pub(crate) listener: Option<Listener>,
    pub(crate) options: ReceiveOptions,
    pub(crate) hello: Hello,
}

/// The open listener, and the channels of the sender's last attempt.
pub(crate) struct Door<'a> {
    listener: &'a Listener,
    way: &'a Rejoining,
    bell: UnixStream,
    ringer: UnixStream,
    state: Mutex<State>,
    /// Rings when all channels of an attempt are here.
    whole: Condvar,
    is_shut: AtomicBool,
}

struct State {
    /// The highest attempt that has come. Its channels are those at work, or here.
    attempt: u32,
    here: Vec<Option<Connection>>,
    at_work: Arc<[Closer]>,
}

impl<'a> Door<'a> {
    /// The door of a migration whose channels at work are those of `at_work`.
    ///
    /// # Errors
    /// If there are no descriptors for its bell.
    pub(crate) fn new(
        listener: &'a Listener,
        way: &'a Rejoining,
        at_work: Arc<[Closer]>,
    ) -> io::Result<Self> {
        let (bell, ringer) = bell()?;
        let state = Mutex::new(State { attempt: 0, here: Vec::new(), at_work });
        let is_shut = AtomicBool::new(false);
        Ok(Self { listener, way, bell, ringer, state, whole: Condvar::new(), is_shut })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles that end the channels at work.
    pub(crate) fn at_work(&self) -> Arc<[Closer]> {
        Arc::clone(&self.state().at_work)
    }

    /// Ends [`attend`](Self::attend).
    pub(crate) fn shut(&self) {
        self.is_shut.store(true, Ordering::Release);
        // One that rings already wakes it as well.
        let _ = (&self.ringer).write(&[0]);
    }

    /// Closes the channels at work, of which one has failed: only then does the sender see all of
    /// them end.
    pub(crate) fn give_up(&self) {
        let at_work = std::mem::replace(&mut self.state().at_work, Arc::new([]));
        at_work.iter().for_each(|closer| closer.close(Shutdown::Both));
    }

    /// Lets peers in, until it is shut.
    pub(crate) fn attend(&self) {
        thread::scope(|scope| {
            let mut hall = Hall::new(&self.way.options, &self.ringer);
            while !self.is_shut.load(Ordering::Acquire) {
                let Ok(came) = self.listener.accept_or(&self.bell, LOOK, self.way.options.stall) else {
                    // The listener may recover; the wait for the sender has its own limit.
                    thread::sleep(LOOK);
                    continue;
                };
                silence(&self.bell);
                while let Some(introduced) = hall.next() {
                    if let Ok((connection, heard)) = introduced {
                        // A refused peer has its answer.
                        let _ = self.take(connection, heard);
                    }
                }
                hall.receive(scope, came);
            }
        });
    }

    /// Takes a channel of the sender, or turns the peer away.
    fn take(&self, mut connection: Connection, heard: Heard) -> Result<(), Error> {
        let mut state = self.state();
        let own = self.way.hello;
        let hello = handshake::answer(&mut connection, heard, |hello| {
            let described = |hello: &Hello| (hello.geometry, hello.codec, hello.switches, hello.resumes);
            let is_new = match state.here.get(usize::from(hello.channel)) {
                _ if hello.attempt > state.attempt => true,
                Some(place) => hello.attempt == state.attempt && place.is_none(),
                // All of the attempt's channels are at work.
                None => false,
            };
            match hello.session == own.session {
                false => Err(Refusal::Busy),
                true if described(hello) == described(&own) && is_new => Ok(()),
                true => Err(Refusal::Channel),
            }
        })?;
        if hello.attempt > state.attempt {
            state.attempt = hello.attempt;
            state.here = (0..hello.lanes()).map(|_| None).collect();
            // The sender has given these up.
            state.at_work.iter().for_each(|closer| closer.close(Shutdown::Both));
        }
        state.here[usize::from(hello.channel)] = Some(connection);
        if state.here.iter().all(Option::is_some) {
            self.whole.notify_all();
        }
        Ok(())
    }

    /// Waits for all channels of one attempt. None if they don't come in time, or the time was over
    /// before: a peer that comes again and again does not extend it.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if `watch` ends it, and those of the system.
    pub(crate) fn await_sender(
        &self,
        until: Deadline,
        watch: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Vec<Connection>>, Error> {
        loop {
            if watch().is_break() {
                return Err(Error::Cancelled);
            }
            if until.is_over() {
                return Ok(None);
            }
            let mut state = self.state();
            let is_whole = |state: &State| !state.here.is_empty() && state.here.iter().all(Option::is_some);
            if !is_whole(&state) {
                state = self.whole.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            }
            if is_whole(&state) {
                let connections: Vec<_> = state.here.drain(..).flatten().collect();
                state.at_work = closers(&connections)?;
                return Ok(Some(connections));
            }
        }
    }
}

/// Handles that end these connections.
pub(crate) fn closers<'a>(
    connections: impl IntoIterator<Item = &'a Connection>,
) -> Result<Arc<[Closer]>, Error> {
    connections.into_iter().map(Connection::closer).collect::<Result<_, _>>().map_err(Error::System)
}

/// How long a sender may take to connect once more just to hear that all is here.
pub(crate) const LAST_WORD: Duration = Duration::from_secs(2);
