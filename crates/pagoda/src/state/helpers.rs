//! The helpers of a manager: one pool of threads for work ahead of its users, for all of its mapped
//! files and for advice about regions.
//!
//! They start with the first work and end with the manager. A helper works on one piece at a time,
//! and holds no lock of the pool meanwhile. A member that leaves waits until no helper works for
//! it, so that none ever has a member's last reference. This module must never do the work itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagoda_linux::mem::range::PageRange;

use crate::store::Scratch;

/// Helpers of a manager, each with a part of a window of readahead at a time: a disk that is asked
/// for one thing at a time idles while an answer is on its way. As many as the largest window has
/// parts; more, or longer windows, gained nothing.
pub(crate) const HELPERS: usize = 4;

/// How often a member is looked after.
const LOOK: Duration = Duration::from_millis(100);

/// The most ranges that wait to be prefetched. One more is forgotten: it was advice.
const ADVICE_MOST: usize = 64;

/// A member of the pool: a mapped file.
pub(crate) trait Member: Send + Sync {
    /// Whether there is a piece of work that any helper may do now.
    fn has_work(&self) -> bool;
    /// Does a piece of work, if there is one.
    fn work(&self, scratch: &mut Scratch);
    /// Its regular duties, by one helper at a time.
    fn look_after(&self);
}

struct Known {
    member: Arc<dyn Member>,
    /// The helpers that work for it now.
    helpers: usize,
    is_looked_after: bool,
    due: Instant,
    /// No more work begins.
    leaves: bool,
}

#[derive(Default)]
struct State {
    members: Vec<Known>,
    advice: VecDeque<PageRange>,
    /// The member that was asked for work last: each has its turn.
    turn: usize,
    has_started: bool,
    quits: bool,
}

/// The pool.
#[derive(Default)]
pub(crate) struct Helpers {
    state: Mutex<State>,
    /// Rings for one piece of work, and when a helper has done one that is waited for.
    bell: Condvar,
    done: Condvar,
}

enum Task {
    Work(Arc<dyn Member>),
    LookAfter(Arc<dyn Member>),
    Prefetch(PageRange),
}

impl State {
    fn next(&mut self, now: Instant) -> Option<Task> {
        // First, so that it is done also while much is read.
        let is_due = |known: &&mut Known| !known.is_looked_after && !known.leaves && known.due <= now;
        if let Some(known) = self.members.iter_mut().find(is_due) {
            known.is_looked_after = true;
            known.helpers += 1;
            return Some(Task::LookAfter(Arc::clone(&known.member)));
        }
        for _ in 0..self.members.len() {
            self.turn = (self.turn + 1) % self.members.len();
            let known = &mut self.members[self.turn];
            if !known.leaves && known.member.has_work() {
                known.helpers += 1;
                return Some(Task::Work(Arc::clone(&known.member)));
            }
        }
        self.advice.pop_front().map(Task::Prefetch)
    }

    fn known(&mut self, member: &Arc<dyn Member>) -> Option<&mut Known> {
        self.members.iter_mut().find(|known| Arc::ptr_eq(&known.member, member))
    }
}

impl Helpers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the caller is the first that needs helpers, and so starts them.
    pub(crate) fn are_to_start(&self) -> bool {
        !std::mem::replace(&mut self.lock().has_started, true)
    }

    /// Helpers could not be started: the next caller tries again.
    pub(crate) fn did_not_start(&self) {
        self.lock().has_started = false;
    }

    pub(crate) fn join(&self, member: Arc<dyn Member>) {
        let known = Known { member, helpers: 0, is_looked_after: false, due: Instant::now(), leaves: false };
        self.lock().members.push(known);
        self.bell.notify_one();
    }

    /// Returns when no helper works for the member any more.
    pub(crate) fn leave(&self, member: &Arc<dyn Member>) {
        let mut state = self.lock();
        state.known(member).into_iter().for_each(|known| known.leaves = true);
        while let Some(at) = state.members.iter().position(|known| Arc::ptr_eq(&known.member, member)) {
            if state.members[at].helpers == 0 {
                state.members.swap_remove(at);
                return;
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A member has so many more pieces of work.
    pub(crate) fn ring(&self, pieces: usize) {
        drop(self.lock());
        (0..pieces.min(HELPERS)).for_each(|_| self.bell.notify_one());
    }

    /// A range is to be prefetched soon.
    pub(crate) fn advise(&self, range: PageRange) {
        let mut state = self.lock();
        if state.advice.len() < ADVICE_MOST {
            state.advice.push_back(range);
            self.bell.notify_one();
        }
    }

    pub(crate) fn quit(&self) {
        self.lock().quits = true;
        self.bell.notify_all();
    }

    /// The life of a helper, which prefetches by `prefetch`.
    pub(crate) fn help(&self, scratch: &mut Scratch, prefetch: impl Fn(PageRange, &mut Scratch)) {
        let mut state = self.lock();
        while !state.quits {
            let now = Instant::now();
            let Some(task) = state.next(now) else {
                let due = state
                    .members
                    .iter()
                    .filter(|known| !known.is_looked_after && !known.leaves)
                    .map(|known| known.due);
                state = match due.min() {
                    None => self.bell.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(due) => {
                        let most = due.saturating_duration_since(now);
                        self.bell.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            };
            drop(state);
            match task {
                Task::Work(member) => Busy::with(self, member, false).member().work(scratch),
                Task::LookAfter(member) => Busy::with(self, member, true).member().look_after(),
                Task::Prefetch(range) => prefetch(range, scratch),
            }
            state = self.lock();
        }
    }
}

/// A helper's work for a member. Ends also with a panic, after which the member can leave.
struct Busy<'a> {
    helpers: &'a Helpers,
    /// None at its end.
    member: Option<Arc<dyn Member>>,
    looks_after: bool,
}

impl<'a> Busy<'a> {
    fn with(helpers: &'a Helpers, member: Arc<dyn Member>, looks_after: bool) -> Self {
        Self { helpers, member: Some(member), looks_after }
    }

    fn member(&self) -> &dyn Member {
        self.member.as_deref().expect("it is there until the end")
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let Some(member) = self.member.take() else { return };
        let mut state = self.helpers.lock();
        let Some(known) = state.known(&member) else { return };
        // The pool has a reference until the member has left. Given up afterwards, this one could
        // be the last: of the manager, too, which then would wait for this thread.
        drop(member);
        known.helpers -= 1;
        if self.looks_after {
            (known.is_looked_after, known.due) = (false, Instant::now() + LOOK);
        }
        self.helpers.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use pagoda_core::page::BasePage;

    use super::*;

    /// A member with one piece of work.
    struct One(AtomicBool);

    impl Member for One {
        fn has_work(&self) -> bool {
            !self.0.load(Ordering::Acquire)
        }
        fn work(&self, _: &mut Scratch) {
            self.0.store(true, Ordering::Release);
        }
        fn look_after(&self) {}
    }

    #[test]
    fn a_helper_had_the_last_reference_to_a_member_that_had_left() {
        let helpers = Helpers::default();
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| helpers.help(&mut Scratch::new(BasePage::K4), |_, _| {}));
            }
            let mut late = 0;
            for round in 0..5_000 {
                let one = Arc::new(One(AtomicBool::new(false)));
                let member: Arc<dyn Member> = one.clone();
                helpers.join(Arc::clone(&member));
                helpers.ring(1);
                while round % 2 == 0 && one.has_work() {
                    std::hint::spin_loop();
                }
                helpers.leave(&member);
                drop(member);
                late += usize::from(Arc::strong_count(&one) > 1);
            }
            helpers.quit();
            assert_eq!(late, 0, "members that had left were still known");
        });
    }
}
