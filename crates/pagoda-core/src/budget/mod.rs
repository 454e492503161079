//! The division of a process's share of a budget: compressed pages, immovable memory, and the
//! working set.
//!
//! A share below the immovable memory would stop the process, so each process works with a least
//! budget. Compressed pages never take the part of the working set, or a small budget would have
//! none. This module must never measure: the caller passes the sizes.

pub mod balance;
pub mod memory_limit;
pub mod patience;
pub mod shares;
pub mod steering;
pub mod thrashing;
pub mod watermark;

use crate::budget::watermark::Watermarks;
use crate::page::{BasePage, HUGE_FRAME};
use crate::size::Bytes;

/// A budget leaves one part in this to the working set, and compressed pages may take the rest. At
/// 3:1 that holds more than twice the budget. Where the file serves better, [`balance`] finds it
/// out.
const WORKING_SHARE: u64 = 5;

/// A small budget leaves one in this, up to [`SMALL_MOST`]: pinned pages are among them.
const WORKING_SHARE_OF_SMALL: u64 = 4;
const SMALL_MOST: u64 = 16 << 20;

/// The least part of a budget that compressed pages may take, as one in this many: immovable memory
/// may be most of the budget.
const STORE_SHARE_LEAST: u64 = 8;

/// The least that an engine works with: the first MiB that the store commits to, as much for the
/// pages that reclaim evicts at once and keeps ready, and the rest for the working set.
const WORKING_LEAST: Bytes = Bytes::mib(4);

/// The writable address space from which on a program can't be managed: shadow memory of a
/// sanitizer begins at some TiB. The engine's tables grow with it, by an eight-thousandth.
pub const DATA_MOST: Bytes = Bytes::gib(1024);

/// By how much a library's budget is passed when nothing of it can be moved out: the `excess` that
/// is held already, and a high watermark more, twice as much each further `time`.
#[must_use]
pub fn passed(excess: Bytes, high: Bytes, time: u32) -> Bytes {
    excess.saturating_add(Bytes::new(high.get().saturating_mul(1 << time.min(PASSES_DOUBLED))))
}

/// So often the step is doubled: a thousand high watermarks are more than a machine has.
const PASSES_DOUBLED: u32 = 10;

/// Address space that an engine may take at most: arenas of twice the budget, the store's room, and
/// the rest for tables, stacks, the heap and the library itself.
#[must_use]
pub fn addresses_most(budget: Bytes) -> Bytes {
    Bytes::new(budget.get().saturating_mul(3)).saturating_add(Bytes::mib(64))
}

/// The most that compressed pages may ever take of `budget`.
#[must_use]
pub fn store_most(budget: Bytes) -> Bytes {
    let working = budget.get() / WORKING_SHARE;
    let of_small = SMALL_MOST.min(budget.get() / WORKING_SHARE_OF_SMALL);
    Bytes::new(budget.get() - working.max(of_small))
}

/// The most that compressed pages may take of a budget now. `marks` keep some of it free, and
/// `immovable` bytes (our own tables and unmanaged memory) can't be moved. Both reduce the part of
/// the compressed pages, not that of the working set. At least one part in
/// `STORE_SHARE_LEAST` of the budget, and never more than [`store_most`].
#[must_use]
pub fn store_limit(marks: &Watermarks, immovable: Bytes) -> Bytes {
    let beside = marks.high.saturating_add(immovable);
    let least = Bytes::new(marks.budget().get() / STORE_SHARE_LEAST);
    store_most(marks.budget()).saturating_sub(beside).max(least)
}

/// How many times the budget that an engine started with it may have later: its arenas have as many
/// addresses.
pub const GROWS_TO: u64 = 2;

/// The effective budget of a process with this `share` of `full`. A share that leaves nothing
/// beside `immovable` is raised to the least with which faults are served. Where too many processes
/// share too little, each makes slow progress, and the excess is claimed from the others. Never
/// more than `full`.
#[must_use]
pub fn working(share: Bytes, full: Bytes, immovable: Bytes, base: BasePage, handlers: u32) -> Bytes {
    let least = Watermarks::least_share(base, handlers).max(WORKING_LEAST).saturating_add(immovable);
    share.max(least.min(full))
}

/// The free memory above the high watermark below which memory is no longer left to the kernel. Two
/// processors that do nothing else populate 4 GiB/s in 4 KiB pages, which is this much in 4 ms. Two
/// looks are closer together.
const FOLLOW_LEAST: Bytes = Bytes::mib(16);

/// Whether memory is only *followed* with `free` bytes free. Followed memory is counted and looked
/// at; the kernel manages it. The kernel serves first touches faster than a handler thread, which
/// must be woken, and it reports no unmap events. Meanwhile nothing more is adopted. `follows` is
/// the present state; to begin again takes twice as much free memory.
#[must_use]
pub fn follows(free: Bytes, marks: &Watermarks, follows: bool) -> bool {
    let least = marks.high.saturating_add(FOLLOW_LEAST);
    free >= if follows { least } else { least.saturating_add(least) }
}

/// The free memory beyond that below which the kernel may give no more huge pages. They were
/// touched at 7 to 22 GiB/s (docs/figures.md), which is this much in 6 ms or more. Looks at a
/// growing process are at most 5 ms apart.
const HUGE_LEAST: Bytes = Bytes::mib(128);

/// Whether the kernel may go on giving huge pages to a process whose memory is only followed, with
/// `free` bytes free. Evicting a part of a huge page splits it, so the kernel should give none by
/// the time eviction begins. They also arrive too fast for a watcher that judges by the count of
/// small pages.
#[must_use]
pub fn keeps_huge(free: Bytes, marks: &Watermarks) -> bool {
    free >= marks.high.saturating_add(FOLLOW_LEAST).saturating_add(HUGE_LEAST)
}

/// The empty memory from which on a mapping is adopted before it is filled, with `free` bytes free,
/// where memory is only followed. The program could fill it whole while the watcher waits for a
/// processor. While the kernel may give huge pages there is time to see it, and they are worth
/// more. Where memory is not followed all of it is adopted as it is filled.
#[must_use]
pub fn outrun_from(free: Bytes, marks: &Watermarks, follows: bool) -> Bytes {
    let least = marks.high.saturating_add(FOLLOW_LEAST);
    if follows && !keeps_huge(free, marks) { free.max(least) } else { Bytes::new(u64::MAX) }
}

/// Whether the handler of a random-access fault reclaims first, to make up for the memory that it
/// will take, with `free` bytes free: so long that background reclaim stays asleep. Memory
/// kept free beyond that is better used for pages.
#[must_use]
pub fn pays_ahead(free: Bytes, marks: &Watermarks) -> bool {
    free < marks.low.saturating_add(Bytes::new((marks.high.get() - marks.low.get()) / 4))
}

/// Whether a fault may take a huge frame with `free` bytes free: as long as this does not start
/// reclaim.
#[must_use]
pub fn takes_huge(free: Bytes, marks: &Watermarks) -> bool {
    free >= marks.high.saturating_add(Bytes::new(HUGE_FRAME as u64))
}

/// Whether frames may be taken from the kernel ahead of demand. `room` is left in a zone, at most
/// `most` bytes of such frames are kept, and reclaim stops at `high`. So much must stay free beside
/// them that reclaim never runs for frames without a demand.
#[must_use]
pub fn takes_ahead(room: Bytes, most: Bytes, high: Bytes) -> bool {
    room >= high.saturating_add(most)
}

/// The share of a zone that may be kept as ready zeroed base frames, as one part in this many.
const READY_BASE_SHARE: u64 = 64;

/// The most of them: 10 ms of first touches at 1.6 GiB/s, which is 40 µs per base page of 64 KiB.
const READY_BASE_MOST: Bytes = Bytes::mib(16);

/// The most bytes of a zone that may be kept as ready zeroed base frames.
#[must_use]
pub fn ready_base_most(zone: Bytes) -> Bytes {
    Bytes::new(zone.get() / READY_BASE_SHARE).min(READY_BASE_MOST)
}

#[cfg(test)]
mod tests;
