//! The custodian of a run: a thread that holds a copy of each member's userfaultfd.
//!
//! So a process that outlives a member in its memory gets SIGBUS where that is swapped out, and
//! reads no zeroes (`pagoda_linux::uffd::custody`). When the run ends before such a process, or
//! before another member, a process is left behind in its place. It must never hold up the end of
//! a run, and never end while a copy is needed.

use std::path::Path;
use std::thread::JoinHandle;

use pagoda::tree::place;
use pagoda_linux::process::detached;
use pagoda_linux::uffd::custody::{Bell, Custodian, Found};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A custodian that listens: members may connect already.
pub struct Custody(Option<(Custodian, Bell)>);

/// One that serves.
pub struct Serving(Option<(JoinHandle<Custodian>, Bell)>);

impl Custody {
    /// Listens beside this tree's file. A run goes on without one.
    pub fn open(tree: &Path) -> Self {
        let opened = Custodian::open(&place::custody_of(tree));
        Self(opened.inspect_err(|error| {
            crate::say(format_args!(
                "a process that outlives another one in its memory may read zeroes: no socket could be \
                 made beside the counters file ({error})"
            ));
        }).ok())
    }

    /// Starts its thread. For after the program: it raises this process's soft limit of descriptors
    /// to the hard one, because each member takes two.
    pub fn start(self) -> Serving {
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        Serving(self.0.and_then(|(mut custodian, bell)| {
            let body = move || {
                custodian.serve();
                custodian
            };
            let thread = std::thread::Builder::new().name("pagoda-custody".to_owned()).spawn(body);
            Some((thread.ok()?, bell))
        }))
    }
}

impl Serving {
    /// Ends it, and tells what it has found. This process has no other thread any more.
    pub fn finish(self) -> Found {
        let Some((thread, bell)) = self.0 else { return Found::default() };
        drop(bell);
        let Ok(mut custodian) = thread.join() else { return Found::default() };
        if custodian.is_needed() {
            // Where no process can be had, what is left reads zeroes: there is no one to tell.
            let _ = detached::leave_behind(&custodian.descriptors(), || custodian.serve_the_rest());
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
