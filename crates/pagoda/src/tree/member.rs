//! A member of a tree: the words of a process in its place, and the share of the budget that it
//! keeps.
//!
//! A member writes its own alone: its counters, its use and its claim. This module must never claim
//! less than the engine may still use.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pagoda_core::budget::shares::{self, FetchRate, Look, Pain, Use};
use pagoda_core::size::Bytes;
use pagoda_linux::process::identity::Identity;

use super::{CLAIMS, Header, READY, Tree, USES, WAS_MANAGED};
use crate::stats::counters::{Counter, Counters, Kind};

/// How often a member whose share is too small looks for places of the dead: their claims keep its
/// share small.
const HUNGRY_LOOKS: u32 = 32;

/// Every so many looks any member looks for them: `pagoda run` does so as a rule, but it may have
/// been killed.
pub(super) const LOOKS_BETWEEN_SWEEPS: u32 = 256;

/// How many steps a member that starts takes at once: each takes at least its part of the free
/// budget.
const STARTING_LOOKS: u32 = 16;

/// A process's place in its tree. Only this process writes there; a child of a fork has to join by
/// itself.
#[derive(Clone, Copy)]
pub struct Member {
    pub(super) tree: Tree,
    pub(super) index: usize,
    pub(super) identity: Identity,
}

impl Member {
    pub(super) fn place(&self) -> &'static [AtomicU64] {
        self.tree.place(self.index)
    }

    /// Clears the gauges that the last owner, or this process before exec, left.
    pub(super) fn begin(&self) {
        self.place()[READY].store(0, SeqCst);
        let counters = self.counters();
        for counter in
            Counter::ALL.into_iter().filter(|counter| matches!(counter.kind(), Kind::Own | Kind::Gauge))
        {
            counters.set(counter, 0);
        }
        counters.set(Counter::OwnerPid, u64::from(self.identity.pid()));
        self.tree.words[USES + self.index].store(0, SeqCst);
        self.tree.words[CLAIMS + self.index].store(0, SeqCst);
        self.place()[READY].store(self.identity.word(), SeqCst);
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.tree.counters(self.index)
    }

    /// Whether it is the program that was asked for, and not one below it.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.tree.header(Header::First).load(SeqCst) == self.identity.word()
    }

    /// Whether this process has to remove the tree's file when it ends. It is the first program of
    /// the tree, and the maker of the file, which would have waited for its end, was killed.
    /// Allocates nothing.
    #[must_use]
    pub fn is_heir(&self) -> bool {
        let is_own = self.identity.pid() == std::process::id();
        let maker = || Identity::from_word(self.tree.header(Header::Maker).load(SeqCst));
        is_own && self.is_first() && maker().is_some_and(|maker| !maker.is_alive())
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> Tree {
        self.tree
    }

    /// Publishes the bytes of a process without an engine: `anon_bytes` by the kernel's count.
    pub fn hold_unlimited(&self, anon_bytes: u64) {
        publish_unlimited(&self.counters(), anon_bytes);
        self.publish(Use::Unlimited { held: Bytes::new(anon_bytes) });
        self.claim(Bytes::new(anon_bytes));
    }

    /// An engine starts in a process that holds `held`: the share that it starts with, and its
    /// keeper from now on.
    #[must_use]
    pub fn manage(self, held: Bytes) -> (ShareKeeper, Bytes) {
        if self.place()[WAS_MANAGED].swap(1, SeqCst) == 0 {
            self.counters().add(Counter::ProcessesManaged, 1);
        }
        let mut keeper =
            ShareKeeper { member: self, rate: FetchRate::default(), share: Bytes::ZERO, hungry: 0, looks: 0 };
        self.tree.sweep_quickly();
        let mut share = Bytes::ZERO;
        for _ in 0..STARTING_LOOKS {
            share = keeper.step(held, held, Pain::None);
        }
        (keeper, share)
    }

    /// The share that this process's [`ShareKeeper`] has found last; zero if there is none.
    #[must_use]
    pub fn share(&self) -> Bytes {
        Bytes::new(self.counters().get(Counter::ShareBytes))
    }

    /// Gives the place up. Nothing of this process may write there any more: not its engine, not
    /// its watcher.
    pub fn leave(self) {
        self.tree.free_place(self.index, self.identity);
    }

    fn publish(&self, used: Use) {
        self.tree.words[USES + self.index].store(used.to_word(), SeqCst);
    }

    fn claim(&self, bytes: Bytes) {
        self.tree.words[CLAIMS + self.index].store(bytes.get(), SeqCst);
    }
}

/// Keeps the share of one managed member: by one thread, every few milliseconds.
pub struct ShareKeeper {
    member: Member,
    rate: FetchRate,
    share: Bytes,
    /// Looks in a row that found less than the target.
    hungry: u32,
    /// Looks since it looked for places of the dead.
    looks: u32,
}

impl ShareKeeper {
    /// One look at the tree, and the share from now on: the anonymous memory that this process may
    /// hold.
    ///
    /// `anon` is the kernel's count, `held` the bytes that the process would hold without Pagoda,
    /// `fetched` how much it has fetched from the store in all, and `now_ns` the time by a clock
    /// that never goes back. Costs some nanoseconds a member.
    pub fn look(&mut self, now_ns: u64, anon: Bytes, held: Bytes, fetched: Bytes) -> Bytes {
        let pain = Pain::of_rate(self.rate.update(now_ns, fetched), held);
        let share = self.step(anon, held, pain);
        self.looks += 1;
        if self.hungry >= HUNGRY_LOOKS || self.looks >= LOOKS_BETWEEN_SWEEPS {
            (self.hungry, self.looks) = (0, 0);
            self.member.tree.sweep_quickly();
        }
        share
    }

    /// The share that the last look found.
    #[must_use]
    pub fn share(&self) -> Bytes {
        self.share
    }

    fn step(&mut self, anon: Bytes, held: Bytes, pain: Pain) -> Bytes {
        let (member, tree) = (self.member, self.member.tree);
        let used = Use::Managed { held, pain };
        member.publish(used);
        let budget = tree.budget();
        let managed = tree.uses().filter(|used| matches!(used, Use::Managed { .. })).count() as u32;
        let look = Look {
            budget,
            managed,
            target: shares::target(budget, tree.uses(), used),
            share: self.share,
            held: anon,
            others: tree.claims_beside(member.index),
        };
        let (before, proposal) = (self.share, look.proposal());
        // Growth is claimed before it is used. A share that shrinks is claimed until the next look:
        // the engine still uses the old share until this one returns.
        member.claim(shares::claim(proposal.max(before), anon));
        self.share = look.settled(proposal, tree.claims_beside(member.index));
        member.claim(shares::claim(self.share.max(before), anon));
        member.counters().set(Counter::ShareBytes, self.share.get());
        let fed = self.share.saturating_add(shares::dead_zone(self.share)) >= look.target;
        self.hungry = if fed { 0 } else { self.hungry + 1 };
        self.share
    }
}

/// Enters the bytes of a process without an engine: `anon_bytes` by the count of the kernel.
pub(super) fn publish_unlimited(counters: &Counters, anon_bytes: u64) {
    for gauge in [Counter::AnonBytes, Counter::UnmanagedBytes, Counter::HeldBytes] {
        counters.set(gauge, anon_bytes);
    }
    counters.raise(Counter::AnonPeakBytes, anon_bytes);
    if anon_bytes > counters.get(Counter::HeldPeakBytes) {
        counters.set(Counter::HeldPeakBytes, anon_bytes);
        counters.set(Counter::UnmanagedAtPeakBytes, anon_bytes);
    }
}
