//! The custodian of a run: a thread that holds a copy of each member's userfaultfd.
//!
//! So a process that outlives a member in its memory gets SIGBUS where that is swapped out, and
//! reads no zeroes (`pagoda_linux::uffd::custody`). When the run ends before such a process, or
//! before another member, a process is left behind in its place. The end of a member's connection
//! also says when its content at the remote store is to be deleted there. This module must never
//! end while a copy is needed, and hold up the end of a run for some seconds at most.

use std::io::{self, stderr};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use pagoda::store::{self, RemoteAddress};
use pagoda::tree::place;
use pagoda_linux::process::detached;
use pagoda_linux::uffd::custody::{Bell, Custodian, Found, Note};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A custodian that listens: members may connect already. Or why there is none.
pub struct Custody(io::Result<(Custodian, Bell)>);

/// One that serves.
pub struct Serving {
    thread: JoinHandle<Custodian>,
    bell: Bell,
    ended: Sender<Note>,
    remote: Option<RemoteAddress>,
    /// Says when the thread that deletes has done all.
    forgotten: Receiver<()>,
}

/// Descriptors that are left for the start of the program: it goes before.
const STARTS: usize = 6;

/// How long the end of a run waits until the server has deleted the program's content.
const FORGETS: Duration = Duration::from_secs(3);

const MAY_READ_ZEROES: &str = "a process that outlived another one in its memory may have read zeroes";

impl Custody {
    /// Listens beside this tree's file. A run goes on without one.
    pub fn open(tree: &Path) -> Self {
        let room = || (0..STARTS).map(|_| rustix::io::dup(stderr())).collect::<Result<Vec<_>, _>>();
        Self(Custodian::open(&place::custody_of(tree)).and_then(|opened| Ok((opened, room()?).0)))
    }

    /// Starts its threads. For after the program: it raises this process's soft limit of
    /// descriptors to the hard one, because each member takes two. What ended members have at
    /// `remote` is deleted there.
    ///
    /// # Errors
    /// The line to tell at the end, if nothing worse is to be told then.
    pub fn start(self, remote: Option<RemoteAddress>) -> Result<Serving, String> {
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let (mut custodian, bell) = self.0.map_err(|error| {
            format!("{MAY_READ_ZEROES}: no socket could be made beside the counters file ({error})")
        })?;
        let (ended, notes) = channel();
        let forgotten = forget_all(notes, remote.clone());
        let notes = ended.clone();
        let body = move || {
            custodian.serve(|note| _ = notes.send(note));
            custodian
        };
        let thread = Builder::new().name("pagoda-custody".to_owned()).spawn(body);
        let thread =
            thread.map_err(|error| format!("{MAY_READ_ZEROES}: no thread could be started ({error})"))?;
        Ok(Serving { thread, bell, ended, remote, forgotten })
    }
}

/// Starts the thread that deletes what ended members have at the server.
fn forget_all(notes: Receiver<Note>, remote: Option<RemoteAddress>) -> Receiver<()> {
    let (done, forgotten) = channel();
    let body = move || {
        for note in notes {
            // A server that does not answer keeps it until it expires.
            let _ = remote.as_ref().map(|remote| store::forget(remote, note));
        }
        let _ = done.send(());
    };
    // Without a thread it expires.
    let _ = Builder::new().name("pagoda-forget".to_owned()).spawn(body);
    forgotten
}

impl Serving {
    /// Ends it, and tells its findings.
    pub fn finish(self) -> Found {
        let Self { thread, bell, ended, remote, forgotten } = self;
        drop(bell);
        let Ok(mut custodian) = thread.join() else { return Found::default() };
        let is_needed = custodian.is_needed(&mut |note| _ = ended.send(note));
        drop(ended);
        // Its end, or that of the time.
        let _ = forgotten.recv_timeout(FORGETS);
        if is_needed {
            let forget = |note| _ = remote.as_ref().map(|remote| store::forget(remote, note));
            // Where no process can be had, survivors read zeroes, and no run is left to tell.
            let _ = detached::leave_behind(&custodian.descriptors(), || custodian.serve_the_rest(forget));
        }
        custodian.found()
    }
}

/// The line about processes that outlived a member in its memory, if there was one that needed it.
pub fn told(found: Found) -> Option<String> {
    let member = found.member?;
    Some(format!(
        "a process shared the memory of process {member}, which has ended, and was given SIGBUS where that memory was \
         swapped out; have such processes end first, or make them by the C library's clone"
    ))
}
