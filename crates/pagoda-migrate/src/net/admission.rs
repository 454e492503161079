//! Admission of a sender: exactly one, on as many channels as it announces.
//!
//! Several peers may introduce themselves at once, each in a thread of its own, so that a silent
//! one does not hold the others up. The decision to admit one is made here, one after the other. A
//! refused peer gets the reason and is disconnected, and must never make the receiver wait for
//! longer.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope};
use std::time::Duration;

use pagoda_core::migrate::handshake::{Hello, Refusal};

use crate::error::Error;
use crate::net::connection::Connection;
use crate::net::handshake::{self, HANDSHAKE, Heard};
use crate::net::listener::{Accepted, Listener};
use crate::net::socket::{Closer, Deadline, Socket};
use crate::receive::options::{Event, ReceiveOptions, Watch};

/// How long one look for a connection takes before the caller is asked whether to continue.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// How many peers may introduce themselves at once. A sender does so on one channel at a time, so
/// all others are strangers: when one more comes, the longest-waiting one is disconnected.
pub(crate) const AT_ONCE: usize = 16;

/// The pause where there is no descriptor for a connection: the disconnected stranger needs a
/// moment to close its own.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(10);

/// A peer that has introduced itself, or failed to: its number, and its message.
type Introduced = (u64, Result<(Connection, Heard), Error>);

/// A bell, and the end that rings it.
pub(crate) fn bell() -> io::Result<(UnixStream, UnixStream)> {
    let (bell, ringer) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    ringer.set_nonblocking(true)?;
    Ok((bell, ringer))
}

/// A bell that has rung may ring again.
pub(crate) fn silence(mut bell: &UnixStream) {
    let _ = bell.read(&mut [0; AT_ONCE]);
}

/// Waits for a sender and all its channels.
pub(crate) fn admit_all(
    listener: &Listener,
    options: &ReceiveOptions,
    is_late: bool,
    watch: &mut Watch<'_>,
) -> Result<(Hello, Vec<Connection>), Error> {
    // A peer that has introduced itself rings the bell, so that it is seen at once: a sender waits
    // for each of its channels in turn.
    let (bell, ringer) = bell().map_err(Error::System)?;
    thread::scope(|scope| {
        let mut hall = Hall::new(options, &ringer);
        let mut admitted = Admitted::default();
        let mut until = Deadline::after(options.wait);
        loop {
            if watch(Event::Waiting).is_break() {
                return Err(Error::Cancelled);
            }
            let came = listener.accept_or(&bell, LOOK, options.stall).map_err(Error::Listen)?;
            // Checked whether or not a peer came: strangers that keep coming must not extend the
            // wait.
            if until.is_over() {
                return Err(admitted.missing(options));
            }
            silence(&bell);
            while let Some(came) = hall.next() {
                let is_first = admitted.first.is_none();
                match came.and_then(|(connection, heard)| admitted.take(connection, heard, options, is_late))
                {
                    Ok(()) if is_first => until = Deadline::after(options.stall),
                    Ok(()) => {}
                    Err(error) => {
                        if watch(Event::Turned(&error)).is_break() {
                            return Err(Error::Cancelled);
                        }
                    }
                }
            }
            if let Some(whole) = admitted.whole() {
                return Ok(whole);
            }
            // Last, so that no peer is disconnected that has introduced itself.
            hall.receive(scope, came);
        }
    })
}

/// The peers that have connected and not introduced themselves yet. Dropping it disconnects them.
pub(crate) struct Hall<'a> {
    options: &'a ReceiveOptions,
    ringer: &'a UnixStream,
    tell: SyncSender<Introduced>,
    introduced: Receiver<Introduced>,
    here: VecDeque<(u64, Closer)>,
    next: u64,
}

impl<'a> Hall<'a> {
    /// An empty hall; `ringer` rings when a peer has introduced itself.
    pub(crate) fn new(options: &'a ReceiveOptions, ringer: &'a UnixStream) -> Self {
        let (tell, introduced) = sync_channel(AT_ONCE);
        Self { options, ringer, tell, introduced, here: VecDeque::new(), next: 0 }
    }

    /// Lets a connection in, if there is one.
    pub(crate) fn receive<'scope>(&mut self, scope: &'scope Scope<'scope, '_>, came: Accepted)
    where
        'a: 'scope,
    {
        match came {
            // A connection that can't be let in is closed, and the listener goes on.
            Accepted::Connection(socket) => _ = self.enter(scope, socket),
            Accepted::None => {}
            // Strangers must not keep a sender out by taking all descriptors.
            Accepted::NoRoom => _ = self.turn_oldest_away(),
        }
    }

    /// Starts the introduction of a connection in a thread of its own.
    ///
    /// # Errors
    /// There is no descriptor or thread for it: the connection is closed.
    fn enter<'scope>(&mut self, scope: &'scope Scope<'scope, '_>, socket: Socket) -> io::Result<()>
    where
        'a: 'scope,
    {
        if self.here.len() == AT_ONCE
            && let Some((_, closer)) = self.here.pop_front()
        {
            closer.close(Shutdown::Both);
        }
        let number = self.next;
        self.next += 1;
        let closer = loop {
            match socket.closer() {
                Ok(closer) => break closer,
                Err(_) if self.turn_oldest_away() => {}
                Err(error) => return Err(error),
            }
        };
        let (options, mut ringer, tell) = (self.options, self.ringer, self.tell.clone());
        let introduce = move || {
            let heard = hear(socket, options);
            // The receiver of the message may be gone, or the bell may be ringing already: both are
            // fine.
            let _ = tell.send((number, heard));
            let _ = ringer.write(&[0]);
        };
        thread::Builder::new().name("introduction".to_owned()).spawn_scoped(scope, introduce)?;
        self.here.push_back((number, closer));
        Ok(())
    }

    /// Closes the connection that has been in the hall longest, and gives its thread a moment to
    /// close its descriptor. False if there is none.
    fn turn_oldest_away(&mut self) -> bool {
        let oldest = self.here.pop_front();
        if let Some((_, closer)) = &oldest {
            closer.close(Shutdown::Both);
        }
        let is_one = oldest.is_some();
        drop(oldest);
        thread::sleep(NO_ROOM_PAUSE);
        is_one
    }

    /// The next peer that has introduced itself, or failed to.
    pub(crate) fn next(&mut self) -> Option<Result<(Connection, Heard), Error>> {
        let (number, heard) = self.introduced.try_recv().ok()?;
        self.here.retain(|(of, _)| *of != number);
        Some(heard)
    }
}

impl Drop for Hall<'_> {
    fn drop(&mut self) {
        self.here.iter().for_each(|(_, closer)| closer.close(Shutdown::Both));
    }
}

fn hear(socket: Socket, options: &ReceiveOptions) -> Result<(Connection, Heard), Error> {
    let mut connection = match &options.tls {
        Some(tls) => tls.over(socket)?,
        None => Connection::Plain(socket),
    };
    let heard = handshake::hear(&mut connection, options.token.as_ref(), options.stall.min(HANDSHAKE))?;
    Ok((connection, heard))
}

/// The sender, and its channels that are here.
#[derive(Default)]
struct Admitted {
    first: Option<Hello>,
    channels: Vec<Option<Connection>>,
}

impl Admitted {
    /// Takes a channel, or turns it away.
    fn take(
        &mut self,
        mut connection: Connection,
        heard: Heard,
        options: &ReceiveOptions,
        is_late: bool,
    ) -> Result<(), Error> {
        let may_come = |hello: &Hello| match &self.first {
            None if hello.geometry.image() > options.image_most => Err(Refusal::TooLarge),
            None if hello.switches && !is_late => Err(Refusal::Switches),
            // Its first channels were those of another receiver.
            None if hello.attempt > 0 => Err(Refusal::Channel),
            None => Ok(()),
            Some(first) if first.session != hello.session => Err(Refusal::Busy),
            Some(first) => {
                let said = |hello: &Hello| {
                    (hello.geometry, hello.codec, hello.switches, hello.resumes, hello.attempt)
                };
                let belongs = said(first) == said(hello);
                let is_new = self.channels.get(usize::from(hello.channel)).is_some_and(Option::is_none);
                if belongs && is_new { Ok(()) } else { Err(Refusal::Channel) }
            }
        };
        let hello = handshake::answer(&mut connection, heard, may_come)?;
        if self.first.is_none() {
            self.first = Some(hello);
            self.channels.resize_with(usize::from(hello.lanes()), || None);
        }
        self.channels[usize::from(hello.channel)] = Some(connection);
        Ok(())
    }

    /// All of its channels, once they are here.
    fn whole(&mut self) -> Option<(Hello, Vec<Connection>)> {
        let first = self.first.filter(|_| self.channels.iter().all(Option::is_some))?;
        Some((first, self.channels.drain(..).flatten().collect()))
    }

    /// The error for channels that have not come in time.
    fn missing(&self, options: &ReceiveOptions) -> Error {
        match self.first {
            None => Error::NobodyCame(options.wait),
            Some(hello) => Error::ChannelsMissing {
                came: self.channels.iter().flatten().count(),
                of: hello.lanes(),
                within: options.stall,
            },
        }
    }
}
