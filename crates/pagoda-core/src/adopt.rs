//! Which mappings of a running program are adopted, and why the others stay unmanaged.
//!
//! An atomic move only takes private anonymous memory that is readable and writable. Of such
//! mappings the small and the short-lived ones are left alone: each munmap or madvise of managed
//! memory is an event, and the program waits until a handler has read it. Executable ones move at a
//! higher price, and are hot: they are left alone unless a part of the budget is in them. This
//! module must never look at a process: the caller brings the facts, and leaves out memory whose
//! state a mapping alone doesn't show (pinned, or registered by the program).

use std::fmt;

use crate::page::{BasePage, OS_PAGE};
use crate::page_entry::GRANULES;
use crate::size::Bytes;

/// The least populated memory for which a mapping is adopted while memory is plenty.
///
/// An event costs its program 20–30 µs, and populating 64 KiB costs it 34 µs natively. At 256 KiB
/// that is 30 µs on 136 µs: a program that only maps, fills and unmaps such blocks slows down by
/// 22%, within the 30% that malloc churn may cost. At 128 KiB it would be 44%.
pub const POPULATED_LEAST: Bytes = Bytes::kib(256);

/// The least populated memory of the main stack, under pressure too. Below 1 MiB nearly all of it
/// is the live top, with the arguments and environment above it, and would be swapped in at once.
pub const MAIN_STACK_LEAST: Bytes = Bytes::mib(1);

/// Base pages of a thread's stack that are never worth an eviction: the one with its control block
/// and rseq area (which are pinned), and the one below, with the live frames.
const THREAD_STACK_LIVE_PAGES: u64 = 2;

/// A mapping that holds this share of the budget is adopted at first sight. It is too large to stay
/// out of reach until the next look, and its single event costs less than 3% of filling it (2 MiB,
/// an eighth of the least budget: 1.1 ms).
const BUDGET_SHARE_AT_ONCE: u64 = 8;

/// The share of the budget up to which executable memory is left alone.
const EXECUTABLE_SHARE: u64 = 4;

/// The known facts about one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingFacts {
    /// Its length.
    pub length: Bytes,
    /// How much of it is present; none if that was not looked at, then it counts as full.
    pub populated: Option<Bytes>,
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
    /// Changes to it are seen by other processes.
    pub shared: bool,
    /// No file lies behind it.
    pub anonymous: bool,
    /// The program locked it into memory (mlock).
    pub locked: bool,
    /// The program keeps it out of its children (madvise DONTFORK); a manager would have to do the
    /// same.
    pub unforked: bool,
    /// It belongs to Pagoda: arenas, tables, handler stacks, our own heap.
    pub own: bool,
    /// It is the stack of the main thread, which grows by itself. The caller adopts only the part
    /// below the live frames.
    pub main_stack: bool,
    /// In how many looks before this one it was there.
    pub age_scans: u32,
    /// A live thread's control block or rseq area lies in it (glibc puts them on top of thread
    /// stacks).
    pub holds_thread_control_block: bool,
}

impl MappingFacts {
    /// Whether the program can fill more than `room` in it. A stack is as long as it is filled.
    #[must_use]
    pub fn exceeds(&self, room: Bytes) -> bool {
        let populated = self.populated.unwrap_or(self.length);
        !self.main_stack && self.length > room.saturating_add(populated)
    }
}

/// The known facts about the process that owns the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Reclaim runs: memory that is not adopted now can't be evicted now.
    pub pressure: bool,
    /// The memory that the process may hold.
    pub budget: Bytes,
    /// A mapping with more empty memory than this is adopted at first sight: it could be filled
    /// before the next look.
    pub room: Bytes,
    /// The unit of management.
    pub base: BasePage,
    /// Memory that is written and executed is managed; see [`executable_pays`].
    pub executable: bool,
}

/// Whether memory that is written and executed is managed, where so much private anonymous memory
/// can be executed. The code of a run-time compiler is little and hot; more of it is a heap.
#[must_use]
pub fn executable_pays(executable: Bytes, budget: Bytes) -> bool {
    executable.get() > budget.get() / EXECUTABLE_SHARE
}

/// Whether memory with this access stays where it is because it may be executed. Where `executable`
/// memory is managed, only if it can't be written.
#[must_use]
pub fn is_code(write: bool, execute: bool, executable: bool) -> bool {
    execute && !(write && executable)
}

/// The decision about a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Take it under management.
    Adopt,
    /// Leave it alone, at least until the next look.
    Leave(Reason),
}

/// Why a mapping is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It is Pagoda's own: evicting memory of a fault handler would hang.
    Own,
    /// Others see its changes; the kernel moves private memory only.
    Shared,
    /// A file lies behind it; the kernel moves anonymous memory only.
    File,
    /// It may be executed, and is little of the budget or can't be written.
    Executable,
    /// It can't be read: guard pages, or address space reserved for later.
    NoAccess,
    /// It can't be written; the kernel refuses to move out of it.
    ReadOnly,
    /// It is locked: the kernel refuses to move pages out of it, and the program wants them to
    /// stay.
    Locked,
    /// The program keeps it out of its children. Once managed, the program's wish could not be told
    /// from the engine's.
    Unforked,
    /// Too little of it is populated to be worth the events that it would cause.
    Small,
    /// It is seen for the first time, and may be gone at the next look.
    Young,
}

impl Reason {
    /// Every reason, in the order of the checks. `reason as usize` is its place here.
    pub const ALL: [Self; 10] = [
        Self::Own,
        Self::Shared,
        Self::File,
        Self::Executable,
        Self::NoAccess,
        Self::ReadOnly,
        Self::Locked,
        Self::Unforked,
        Self::Small,
        Self::Young,
    ];

    /// Whether a later look may decide otherwise although the program changed nothing about the
    /// mapping itself.
    #[must_use]
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::Small | Self::Young)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Own => "own",
            Self::Shared => "shared",
            Self::File => "file",
            Self::Executable => "executable",
            Self::NoAccess => "no access",
            Self::ReadOnly => "read-only",
            Self::Locked => "locked",
            Self::Unforked => "kept from children",
            Self::Small => "small",
            Self::Young => "young",
        })
    }
}

/// Whether to adopt a mapping.
#[must_use]
pub fn decide(mapping: &MappingFacts, situation: &Situation) -> Decision {
    match kind_reason(mapping, situation).or_else(|| worth_reason(mapping, situation)) {
        Some(reason) => Decision::Leave(reason),
        None => Decision::Adopt,
    }
}

/// Why memory of this kind can't be managed at all.
fn kind_reason(mapping: &MappingFacts, situation: &Situation) -> Option<Reason> {
    let reasons = [
        (mapping.own, Reason::Own),
        (mapping.shared, Reason::Shared),
        (!mapping.anonymous, Reason::File),
        (is_code(mapping.write, mapping.execute, situation.executable), Reason::Executable),
        // A write-only mapping has other flags than the arena, so it does not move either.
        (!mapping.read, Reason::NoAccess),
        (!mapping.write, Reason::ReadOnly),
        (mapping.locked, Reason::Locked),
        (mapping.unforked, Reason::Unforked),
    ];
    reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason)
}

/// Why it does not pay, at least now.
fn worth_reason(mapping: &MappingFacts, situation: &Situation) -> Option<Reason> {
    let populated = mapping.populated.unwrap_or(mapping.length).min(mapping.length);
    if mapping.exceeds(situation.room) {
        return None;
    }
    if populated < populated_least(mapping, situation) {
        return Some(Reason::Small);
    }
    let at_once =
        situation.pressure || populated.get() >= (situation.budget.get() / BUDGET_SHARE_AT_ONCE).max(1);
    // The main stack does not come and go.
    (mapping.age_scans == 0 && !at_once && !mapping.main_stack).then_some(Reason::Young)
}

fn populated_least(mapping: &MappingFacts, situation: &Situation) -> Bytes {
    // A larger base page is managed in entries of sixteen OS pages: an entry is the unit of
    // eviction.
    let base = (situation.base.bytes() as u64).min(u64::from(GRANULES) * OS_PAGE as u64);
    let live = if mapping.holds_thread_control_block { THREAD_STACK_LIVE_PAGES * base } else { 0 };
    let evictable = Bytes::new(live + base);
    // A small executable mapping may hold the trampolines of a function that a handler calls.
    let takes_small = situation.pressure && !mapping.execute;
    let least = if takes_small { evictable } else { evictable.max(POPULATED_LEAST) };
    if mapping.main_stack { least.max(MAIN_STACK_LEAST) } else { least }
}

#[cfg(test)]
#[path = "adopt_test.rs"]
mod tests;
