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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUIET: Situation = Situation {
        pressure: false,
        budget: Bytes::gib(1),
        room: Bytes::new(u64::MAX),
        base: BasePage::K64,
        executable: false,
    };
    const PRESSED: Situation = Situation { pressure: true, ..QUIET };

    /// A heap that has been there for a while.
    fn heap(populated: Bytes) -> MappingFacts {
        MappingFacts {
            length: Bytes::mib(512),
            populated: Some(populated),
            read: true,
            write: true,
            execute: false,
            shared: false,
            anonymous: true,
            locked: false,
            unforked: false,
            own: false,
            main_stack: false,
            age_scans: 1,
            holds_thread_control_block: false,
        }
    }
    fn less(bytes: Bytes) -> Bytes {
        bytes.saturating_sub(Bytes::new(1))
    }
    const SMALL: Decision = Decision::Leave(Reason::Small);
    const YOUNG: Decision = Decision::Leave(Reason::Young);

    #[test]
    fn empty_memory_that_exceeds_the_room_is_adopted_at_first_sight() {
        let room = Bytes::mib(64);
        let mapping = MappingFacts { length: Bytes::mib(65), age_scans: 0, ..heap(Bytes::ZERO) };
        assert_eq!(decide(&mapping, &QUIET), SMALL);
        let short = Situation { room, ..QUIET };
        assert_eq!(decide(&mapping, &short), Decision::Adopt);
        // What is filled takes no more room.
        let filled = MappingFacts { populated: Some(Bytes::mib(1)), ..mapping };
        assert_eq!(decide(&filled, &short), YOUNG);
        let reserved = MappingFacts { read: false, write: false, ..mapping };
        assert_eq!(decide(&reserved, &short), Decision::Leave(Reason::NoAccess));
    }

    #[test]
    fn much_memory_that_is_written_and_executed_is_managed() {
        let code = MappingFacts { execute: true, ..heap(Bytes::mib(512)) };
        let (quiet, pressed) =
            (Situation { executable: true, ..QUIET }, Situation { executable: true, ..PRESSED });
        assert_eq!(decide(&code, &quiet), Decision::Adopt);
        let only_read = MappingFacts { write: false, ..code };
        assert_eq!(decide(&only_read, &quiet), Decision::Leave(Reason::Executable));
        // A trampoline stays, whatever is short.
        let trampoline = MappingFacts { populated: Some(less(POPULATED_LEAST)), ..code };
        assert_eq!(decide(&trampoline, &pressed), SMALL);
        assert_eq!(decide(&MappingFacts { execute: false, ..trampoline }, &pressed), Decision::Adopt);
        assert!(!executable_pays(Bytes::mib(16), Bytes::mib(64)));
        assert!(executable_pays(Bytes::mib(17), Bytes::mib(64)));
    }

    #[test]
    fn each_kind_that_the_kernel_does_not_move_is_left_for_its_own_reason() {
        let full = heap(Bytes::mib(512));
        for (mapping, reason) in [
            (MappingFacts { own: true, ..full }, Reason::Own),
            (MappingFacts { shared: true, ..full }, Reason::Shared),
            (MappingFacts { anonymous: false, ..full }, Reason::File),
            (MappingFacts { execute: true, ..full }, Reason::Executable),
            (MappingFacts { read: false, write: false, ..full }, Reason::NoAccess),
            (MappingFacts { read: false, ..full }, Reason::NoAccess),
            (MappingFacts { write: false, ..full }, Reason::ReadOnly),
            (MappingFacts { write: false, locked: true, ..full }, Reason::ReadOnly),
            (MappingFacts { locked: true, ..full }, Reason::Locked),
            (MappingFacts { unforked: true, ..full }, Reason::Unforked),
        ] {
            assert_eq!(decide(&mapping, &QUIET), Decision::Leave(reason));
            assert_eq!(decide(&mapping, &PRESSED), Decision::Leave(reason));
            assert!(!reason.is_passing());
        }
    }

    #[test]
    fn a_quarter_mebibyte_is_worth_it_and_under_pressure_one_base_page() {
        assert_eq!(decide(&heap(POPULATED_LEAST), &QUIET), Decision::Adopt);
        assert_eq!(decide(&heap(less(POPULATED_LEAST)), &QUIET), SMALL);
        assert_eq!(decide(&heap(Bytes::kib(64)), &PRESSED), Decision::Adopt);
        assert_eq!(decide(&heap(less(Bytes::kib(64))), &PRESSED), SMALL);
    }

    #[test]
    fn less_than_can_go_at_once_is_never_worth_it() {
        for (base, least) in [(BasePage::K16, Bytes::kib(16)), (BasePage::M2, Bytes::kib(64))] {
            let situation = Situation { base, ..PRESSED };
            assert_eq!(decide(&heap(less(least)), &situation), SMALL);
            assert_eq!(decide(&heap(least), &situation), Decision::Adopt);
        }
    }

    #[test]
    fn a_new_mapping_waits_for_a_second_look_unless_memory_is_short_or_it_takes_much_of_it() {
        let new = |populated| MappingFacts { age_scans: 0, ..heap(populated) };
        assert_eq!(decide(&new(Bytes::mib(1)), &QUIET), YOUNG);
        assert_eq!(decide(&new(Bytes::mib(1)), &PRESSED), Decision::Adopt);
        assert_eq!(decide(&new(less(Bytes::mib(128))), &QUIET), YOUNG);
        assert_eq!(decide(&new(Bytes::mib(128)), &QUIET), Decision::Adopt);
    }

    #[test]
    fn the_main_stack_needs_a_mebibyte_always_and_no_second_look() {
        let stack = |populated| MappingFacts { main_stack: true, age_scans: 0, ..heap(populated) };
        for situation in [QUIET, PRESSED] {
            assert_eq!(decide(&stack(less(MAIN_STACK_LEAST)), &situation), SMALL);
            assert_eq!(decide(&stack(MAIN_STACK_LEAST), &situation), Decision::Adopt);
        }
    }

    #[test]
    fn a_thread_stack_needs_a_page_beyond_its_live_part() {
        let stack = |populated| MappingFacts { holds_thread_control_block: true, ..heap(populated) };
        assert_eq!(decide(&stack(Bytes::kib(128)), &PRESSED), SMALL);
        assert_eq!(decide(&stack(Bytes::kib(192)), &PRESSED), Decision::Adopt);
    }

    #[test]
    fn an_unscanned_mapping_counts_as_full() {
        let unknown = |length| MappingFacts { populated: None, length, ..heap(Bytes::ZERO) };
        assert_eq!(decide(&unknown(Bytes::mib(1)), &QUIET), Decision::Adopt);
        assert_eq!(decide(&unknown(Bytes::kib(128)), &QUIET), SMALL);
    }

    #[test]
    fn a_reason_counts_at_its_own_place() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
        }
    }

    proptest! {
        #[test]
        fn pressure_age_and_more_memory_never_turn_an_adoption_away(
            populated in 0u64..64 << 20,
            more in 0u64..64 << 20,
            age_scans in 0u32..3,
            main_stack in any::<bool>(),
            holds_thread_control_block in any::<bool>(),
            base in prop::sample::select(BasePage::ALL.as_slice()),
        ) {
            let mapping =
                MappingFacts { age_scans, main_stack, holds_thread_control_block, ..heap(Bytes::new(populated)) };
            let quiet = Situation { base, ..QUIET };
            if decide(&mapping, &quiet) == Decision::Adopt {
                let fuller = MappingFacts { populated: Some(Bytes::new(populated + more)), ..mapping };
                let older = MappingFacts { age_scans: age_scans + 1, ..mapping };
                prop_assert_eq!(decide(&fuller, &quiet), Decision::Adopt);
                prop_assert_eq!(decide(&older, &quiet), Decision::Adopt);
                prop_assert_eq!(decide(&mapping, &Situation { pressure: true, ..quiet }), Decision::Adopt);
            }
        }
    }
}
