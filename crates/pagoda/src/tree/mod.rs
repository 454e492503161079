//! The tree file: the shared state of all processes below one `pagoda run`.
//!
//! ```text
//!   header | identities | uses | claims | places: the counters of one process each
//!   | latencies: the histograms of each | regions
//! ```
//! The regions are those of a library's manager, whose file has that one member (`LibraryFile`); a
//! `pagoda run` has none.
//!
//! A process is a *member* while its identity (its number and its start, in one word) is at an
//! index of `identities`; the words at that index in the other arrays are its own to write. There
//! is no lock that a killed process could hold, and no process in charge. A place is taken by
//! compare-and-swap from 0. Any process that finds its owner dead frees it, by compare-and-swap
//! from that identity. Exec keeps a process's identity, and so its place.
//!
//! No count is lost and none is counted twice, whenever a process is killed: totals are never
//! moved. The next owner of a place goes on counting where the last one was, so the sums over all
//! places are those of all processes that ever were. A new owner clears the gauges before it is
//! *ready*, and only gauges of ready owners are read.
//!
//! Shares of the budget are computed by [`pagoda_core::budget::shares`] from `uses` and `claims`;
//! that module says why they can't exceed it. All accesses to the three arrays are sequentially
//! consistent, which its argument relies on.
//!
//! This module must never wait for another process. A process that is no member looks at the file
//! by a [`View`].

mod budget;
mod library;
mod member;
pub mod place;
mod sums;
mod view;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pagoda_core::budget::shares::Use;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::io::shared_file::SharedWords;
use pagoda_linux::process::identity::{self, Identity};
use pagoda_linux::process::image_mark;
use pagoda_linux::process::thread::now_ns;

pub use budget::BudgetError;
pub use library::{BaseView, MigrationState, MigrationView, REGIONS_SHOWN_MOST, RegionView, RegionsView};
pub use member::{Member, ShareKeeper};
pub use view::{MemberView, View, ViewError};

pub(crate) use library::LibraryFile;

use member::publish_unlimited;
use sums::Sums;

use crate::stats::counters::{COUNT, Counter, Counters, Stats, Status};
use crate::stats::latencies::{LATENCY_WORDS, Latencies};

/// Members that a tree has room for at a time: more than `ulimit -u` leaves most builds, and a look
/// at all of them takes some microseconds. A process that finds no place stays unmanaged and is
/// counted.
pub const MEMBERS_MAX: usize = 1024;

/// A member that has looked at itself within this time has not executed another program since: it
/// looks every 48 ms at the latest.
const SILENCE_NS: u64 = 100_000_000;

/// Of this layout; a process that finds another number leaves the file alone.
const MAGIC: u64 = u64::from_le_bytes(*b"pagoda13");

/// Words of the header.
#[derive(Clone, Copy)]
enum Header {
    Magic,
    BudgetBytes,
    BasePageBytes,
    /// The [`identity::namespaces`] of the maker of the tree.
    Namespaces,
    /// The identity of the first member, the program that was asked for.
    First,
    /// One past the highest index that was ever used.
    Used,
    /// Processes that found no place, or can't be told from others.
    TurnedAway,
    /// Members that ended without an engine and unwatched.
    UnmanagedEnded,
    /// The first error code of a member that ended by it, and its error number in the upper half.
    Failure,
    /// Not 0 in the file of a library's manager.
    Library,
    /// The identity of the `pagoda run` that made the file, and removes it.
    Maker,
    /// The budget that the file was made with.
    BudgetBeganBytes,
    /// The largest that it had since.
    BudgetMostBytes,
}

const HEADER_WORDS: usize = 64;
const IDENTITIES: usize = HEADER_WORDS;
const USES: usize = IDENTITIES + MEMBERS_MAX;
const CLAIMS: usize = USES + MEMBERS_MAX;
const PLACES: usize = CLAIMS + MEMBERS_MAX;

/// In a place, behind the counters: the identity of the owner of these gauges.
const READY: usize = COUNT;
/// Whether the owner was counted as managed.
const WAS_MANAGED: usize = COUNT + 1;
/// Whole cache lines.
const PLACE_WORDS: usize = (COUNT + 2).next_multiple_of(8);

/// Behind all places, so that processes without an engine, which are the most, touch nothing of
/// theirs.
const LATENCIES: usize = PLACES + MEMBERS_MAX * PLACE_WORDS;

const REGIONS: usize = LATENCIES + MEMBERS_MAX * LATENCY_WORDS;

/// About 14 MiB of address space, of which a page for every six members is ever touched, and up to
/// four for each engine.
const WORDS: usize = REGIONS + library::REGIONS_WORDS;

/// Makes a tree's file and its header, but for the word that says it is whole.
fn create(path: &Path, budget: Bytes, base_page: BasePage) -> io::Result<SharedWords> {
    let words = SharedWords::create(path, WORDS)?;
    let header = |word: Header, value| words[word as usize].store(value, SeqCst);
    for word in [Header::BudgetBytes, Header::BudgetBeganBytes, Header::BudgetMostBytes] {
        header(word, budget.get());
    }
    header(Header::BasePageBytes, base_page.bytes() as u64);
    header(Header::Namespaces, identity::namespaces()?);
    Ok(words)
}

/// A tree file, mapped for the life of this process.
#[derive(Clone, Copy)]
pub struct Tree {
    words: &'static [AtomicU64],
}

impl Tree {
    /// Creates the file of a tree with `budget` bytes for all its members; it is for this user
    /// alone.
    ///
    /// # Errors
    /// The file exists, or can't be made or mapped; there is no `/proc`.
    pub fn create(path: &Path, budget: Bytes, base_page: BasePage) -> io::Result<Self> {
        let words = create(path, budget, base_page)?.leak();
        words[Header::Maker as usize].store(Identity::of_self()?.word(), SeqCst);
        words[Header::Magic as usize].store(MAGIC, SeqCst);
        Ok(Self { words })
    }

    /// Opens the file of a tree.
    ///
    /// # Errors
    /// There is none, it can't be mapped, or it is of another version.
    pub fn open(path: &Path) -> io::Result<Self> {
        let words = SharedWords::open(path, WORDS)?;
        if words[Header::Magic as usize].load(SeqCst) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a tree file of this version"));
        }
        Ok(Self { words: words.leak() })
    }

    fn header(&self, word: Header) -> &'static AtomicU64 {
        &self.words[word as usize]
    }
    fn identity(&self, index: usize) -> &'static AtomicU64 {
        &self.words[IDENTITIES + index]
    }
    fn place(&self, index: usize) -> &'static [AtomicU64] {
        &self.words[PLACES + index * PLACE_WORDS..][..PLACE_WORDS]
    }
    fn counters(&self, index: usize) -> Counters {
        let latencies = &self.words[LATENCIES + index * LATENCY_WORDS..][..LATENCY_WORDS];
        Counters::of_member(&self.place(index)[..COUNT], latencies)
    }
    fn used(&self) -> usize {
        (self.header(Header::Used).load(SeqCst) as usize).min(MEMBERS_MAX)
    }

    /// All the memory that the tree may hold.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        Bytes::new(self.header(Header::BudgetBytes).load(SeqCst))
    }

    /// Whether this process may be the first member, or will be: one look at the file.
    /// [`Member::is_first`] knows.
    #[must_use]
    pub fn may_be_first(&self) -> bool {
        let first = Identity::from_word(self.header(Header::First).load(SeqCst));
        first.is_none_or(|first| first.pid() == std::process::id())
    }

    /// Makes this process a member. One that is a member already (it called exec) keeps its place.
    ///
    /// `None`, and it is counted as unmanaged: there is no place, or it lives in another PID or
    /// time namespace, where the others can't tell whether it lives. Some microseconds.
    #[must_use]
    pub fn join(&self) -> Option<Member> {
        let comparable =
            identity::namespaces().is_ok_and(|own| own == self.header(Header::Namespaces).load(SeqCst));
        let joined =
            Identity::of_self().ok().filter(|_| comparable).and_then(|identity| self.join_as(identity));
        if joined.is_none() {
            self.header(Header::TurnedAway).fetch_add(1, SeqCst);
        }
        joined
    }

    fn join_as(&self, identity: Identity) -> Option<Member> {
        let own = (0..self.used()).find(|&index| self.identity(index).load(SeqCst) == identity.word());
        if let Some(index) = own {
            let member = Member { tree: *self, index, identity };
            member.counters().add(Counter::Execs, 1);
            member.begin();
            return Some(member);
        }
        let index = self.take_place(identity).or_else(|| {
            self.sweep();
            self.take_place(identity)
        })?;
        // Before anything is claimed: a sum over claims must include it.
        self.header(Header::Used).fetch_max(index as u64 + 1, SeqCst);
        let _ = self.header(Header::First).compare_exchange(0, identity.word(), SeqCst, SeqCst);
        let member = Member { tree: *self, index, identity };
        member.place()[WAS_MANAGED].store(0, SeqCst);
        member.counters().add(Counter::Processes, 1);
        member.begin();
        Some(member)
    }

    fn take_place(&self, identity: Identity) -> Option<usize> {
        (0..MEMBERS_MAX).find(|&index| {
            let place = self.identity(index);
            place.load(SeqCst) == 0 && place.compare_exchange(0, identity.word(), SeqCst, SeqCst).is_ok()
        })
    }

    /// Frees the places of processes that have ended. Some microseconds for each member.
    pub fn sweep(&self) {
        self.free_places_unless(Identity::is_alive);
    }

    /// As [`Tree::sweep`], at a fifth of the price: it misses zombies, and numbers that were given
    /// to another process.
    pub fn sweep_quickly(&self) {
        self.free_places_unless(Identity::may_be_alive);
    }

    fn free_places_unless(&self, alive: impl Fn(Identity) -> bool) {
        let first = self.header(Header::First).load(SeqCst);
        for index in 0..self.used() {
            let word = self.identity(index).load(SeqCst);
            let Some(identity) = Identity::from_word(word).filter(|identity| !alive(*identity)) else {
                continue;
            };
            if word == first {
                // `pagoda run` tells how it ended; it reads that at the end. Only its memory has no
                // owner now.
                self.words[USES + index].store(0, SeqCst);
                self.words[CLAIMS + index].store(0, SeqCst);
            } else {
                self.free_place(index, identity);
            }
        }
    }

    /// Of a process that writes there no more.
    fn free_place(&self, index: usize, identity: Identity) {
        let counters = self.counters(index);
        let (status, code) =
            (Status::from_word(counters.get(Counter::Status)), counters.get(Counter::ErrorCode));
        if code != 0 && status == Status::Failed {
            let failure = counters.get(Counter::ErrorErrno) << 32 | code;
            let _ = self.header(Header::Failure).compare_exchange(0, failure, SeqCst, SeqCst);
        }
        let freed = self.identity(index).compare_exchange(identity.word(), 0, SeqCst, SeqCst);
        if freed.is_ok() && status == Status::Unmanaged {
            self.header(Header::UnmanagedEnded).fetch_add(1, SeqCst);
        }
    }

    /// Every member, with dead ones that were not swept yet.
    pub fn members(&self) -> impl Iterator<Item = (Identity, Stats)> {
        let tree = *self;
        (0..tree.used()).filter_map(move |index| Some((tree.ready(index)?, tree.counters(index).snapshot())))
    }

    /// Sets the gauges of unwatched members from outside: of those without an engine, and of those
    /// that have executed a program that is not managed since. A moment later the place may be
    /// another member's, which sets its own with its next look.
    pub fn watch_unmanaged(&self) {
        (0..self.used()).for_each(|index| self.watch_place(index));
    }

    /// As [`Tree::watch_unmanaged`], for the program that was asked for.
    pub fn watch_first_unmanaged(&self) {
        self.first_index().into_iter().for_each(|index| self.watch_place(index));
    }

    fn watch_place(&self, index: usize) {
        let counters = self.counters(index);
        let Some(identity) = self.ready(index) else { return };
        let status = counters.get(Counter::Status);
        let is_unmanaged = match Status::from_word(status) {
            Status::Unmanaged => true,
            Status::Small | Status::Managed | Status::Released => self.is_replaced(identity, &counters),
            Status::NotStarted | Status::Failed => false,
        };
        let Some(anon) = identity.anon_bytes().filter(|_| is_unmanaged) else { return };
        // Of the first the status is read at the end, and its start waits for it: that stays as it
        // is.
        if identity.word() != self.header(Header::First).load(SeqCst) {
            let place = &self.place(index)[Counter::Status as usize];
            let _ = place.compare_exchange(status, Status::Unmanaged as u64, SeqCst, SeqCst);
        }
        publish_unlimited(&counters, anon);
        self.words[USES + index].store(Use::Unlimited { held: Bytes::new(anon) }.to_word(), SeqCst);
        self.words[CLAIMS + index].store(anon, SeqCst);
    }

    /// Whether a member executes another program than the one that joined, which is not managed.
    /// One that looked at itself lately is not asked: that costs more.
    fn is_replaced(&self, identity: Identity, counters: &Counters) -> bool {
        let looked = counters.get(Counter::LastLookNs);
        looked != 0
            && now_ns().saturating_sub(looked) > SILENCE_NS
            && image_mark::is_set(identity.pid()) == Some(false)
            // It did not join again meanwhile.
            && counters.get(Counter::LastLookNs) == looked
    }

    /// The owner of a place, if it has cleared the gauges there.
    fn ready(&self, index: usize) -> Option<Identity> {
        let word = self.identity(index).load(SeqCst);
        let identity = Identity::from_word(word)?;
        (self.place(index)[READY].load(SeqCst) == word).then_some(identity)
    }

    /// The counters of the first member, the program that was asked for; `None` if it never joined.
    #[must_use]
    pub fn first(&self) -> Option<Stats> {
        Some(self.counters(self.first_index()?).snapshot())
    }

    fn first_index(&self) -> Option<usize> {
        let first = self.header(Header::First).load(SeqCst);
        (0..self.used()).find(|&index| first != 0 && self.identity(index).load(SeqCst) == first)
    }

    /// The first failure of a member that has ended since: its error code and its error number.
    #[must_use]
    pub fn failure(&self) -> Option<(u64, u64)> {
        let failure = self.header(Header::Failure).load(SeqCst);
        (failure != 0).then_some((failure & u64::from(u32::MAX), failure >> 32))
    }

    /// All counters of the tree: totals summed up over all members that ever were, gauges over the
    /// present ones, the largest of peaks, and the rest by the first member.
    #[must_use]
    pub fn totals(&self) -> Stats {
        let mut sums = Sums::default();
        for index in 0..self.used() {
            let place = self.counters(index);
            sums.add(self.ready(index).is_some(), |counter| place.get(counter));
        }
        let turned_away = self.header(Header::TurnedAway).load(SeqCst);
        let unmanaged_ended = self.header(Header::UnmanagedEnded).load(SeqCst);
        sums.of_tree(
            &self.first().unwrap_or_default(),
            self.budget(),
            self.header(Header::BasePageBytes).load(SeqCst),
            turned_away.saturating_add(unmanaged_ended),
        )
    }

    /// How long the faults of all members that ever were took, by kind.
    #[must_use]
    pub fn latencies(&self) -> Latencies {
        let mut sum = Latencies::default();
        for index in 0..self.used() {
            let place = self.counters(index);
            // Of a process without an engine there is nothing to read.
            if place.get(Counter::Faults) > 0 {
                sum.add(&place.latencies());
            }
        }
        sum
    }

    fn uses(&self) -> impl Iterator<Item = Use> + Clone + use<> {
        let words = self.words;
        (0..self.used())
            .filter(move |index| words[IDENTITIES + index].load(SeqCst) != 0)
            .filter_map(move |index| Use::from_word(words[USES + index].load(SeqCst)))
    }

    /// The claims of all members on the budget: more than that while a member holds pages that it
    /// has yet to evict.
    #[must_use]
    pub fn claimed(&self) -> Bytes {
        self.claims_beside(usize::MAX)
    }

    fn claims_beside(&self, own: usize) -> Bytes {
        let others = (0..self.used()).filter(|&index| index != own && self.identity(index).load(SeqCst) != 0);
        let claims = others.map(|index| self.words[CLAIMS + index].load(SeqCst));
        Bytes::new(claims.fold(0, u64::saturating_add))
    }
}

#[cfg(test)]
mod tests;
