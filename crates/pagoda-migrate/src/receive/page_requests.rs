//! Requests for pages that threads wait for.
//!
//! A fault handler leaves a request; each of the channels for requests takes one at a time, and
//! applies the answer. This module must never hold its lock while it waits for anything but that
//! lock's condition variable.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagoda_core::migrate::reply::Reply;
use pagoda_core::migrate::wanted::Wanted;

use crate::error::Error;
use crate::progress::{Count, Progress};
use crate::wire::frame_reader::Inlet;

/// How often the sender hears that the receiver still works: often enough for any stall.
pub(super) const WORKING: Duration = Duration::from_secs(1);

/// How long a wait for a request is at most before the orders are looked at again.
const STEP: Duration = Duration::from_millis(100);

/// The pages that are waited for. Any number of threads may leave requests.
#[derive(Debug, Default)]
pub struct Wants {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: Wanted,
    /// Nothing is owed any more.
    whole: bool,
    /// A channel was lost: requests wait for the next ones.
    lost: bool,
}

enum Next {
    /// A page is wanted.
    Page(u64),
    Nothing,
    /// Nothing will ever be wanted again.
    End,
    /// Another channel was lost.
    Lost,
}

impl Wants {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread waits for `page`: it will be requested, with its group, as soon as a channel is
    /// free. If the limit of waiting requests is reached
    /// ([`WANTED_MOST`](pagoda_core::migrate::wanted::WANTED_MOST)) the page comes in the
    /// background. Does not allocate, and waits only for threads that leave or take a request.
    pub fn want(&self, page: u64) {
        self.state().wanted.add(page);
        self.bell.notify_one();
    }

    /// All pages have arrived, except those that were requested and are on their way.
    pub(crate) fn end(&self) {
        self.state().whole = true;
        self.bell.notify_all();
    }

    /// Pages may be requested again: channels are connected once more.
    pub(crate) fn go_on(&self) {
        let mut state = self.state();
        (state.whole, state.lost) = (false, false);
    }

    /// A channel was lost: those that wait for a request end at once, so that the sender is not
    /// waited for longer than it takes to come back.
    pub(crate) fn lose(&self) {
        self.state().lost = true;
        self.bell.notify_all();
    }

    fn next(&self) -> Next {
        let mut state = self.state();
        let until = Instant::now() + STEP;
        loop {
            if state.lost {
                return Next::Lost;
            }
            if let Some(page) = state.wanted.take() {
                return Next::Page(page);
            }
            if state.whole {
                return Next::End;
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else { return Next::Nothing };
            state = self.bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Requests wanted pages until nothing is owed. The sender is told of a failure.
pub(crate) fn run<'a>(mut inlet: Inlet<'a>, wants: &Wants, progress: &Progress) -> Result<Inlet<'a>, Error> {
    let asked = ask(&mut inlet, wants, progress);
    inlet.tell(asked)?;
    Ok(inlet)
}

fn ask(inlet: &mut Inlet<'_>, wants: &Wants, progress: &Progress) -> Result<(), Error> {
    let mut said = Instant::now();
    loop {
        inlet.check()?;
        match wants.next() {
            Next::Page(page) => {
                progress.add(Count::Asked, 1);
                let answered = inlet.say(Reply::Wanted { page }).and_then(|()| inlet.round());
                if answered.is_err() {
                    // The thread still waits: the page is requested again on the next line.
                    wants.want(page);
                }
                answered?;
            }
            Next::Nothing if said.elapsed() < WORKING => continue,
            // The sender must not take silence for a loss.
            Next::Nothing => inlet.say(Reply::Working)?,
            Next::End => return Ok(()),
            Next::Lost => return Err(inlet.interrupted()),
        }
        said = Instant::now();
    }
}
