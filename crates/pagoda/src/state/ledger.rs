//! The spending of the budget: the kernel's own count, updated between two looks by our own
//! changes.
//!
//! The kernel's number is the truth and replaces ours at every look; ours only bridges the
//! milliseconds in between. A manager that has only a part of its process (a library's regions) has
//! no kernel count for that part and goes by the ledger alone. This module must never touch memory.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use pagoda_core::page_entry::{Backing, Word};

use crate::store::Handle;

/// Bytes of anonymous memory, by the kernel's count and by our own ledger.
pub(crate) struct Ledger {
    /// The bytes of an entry.
    entry_bytes: i64,
    budget_bytes: AtomicI64,
    /// Bytes that may be held beyond the budget: memory that its owner has made immovable.
    beyond_bytes: AtomicI64,
    /// Bytes by which a library's budget is passed, because nothing could be moved out.
    passed_bytes: AtomicI64,
    held_bytes: AtomicI64,
    /// Bytes of the managed regions that are resident, by the entries' masks.
    resident_bytes: AtomicI64,
    /// Bytes present in memory that is only followed, as of the last look.
    followed_bytes: AtomicU64,
    /// Bytes of frames that back staged entries.
    staged_bytes: AtomicI64,
    /// Bytes of frames that content is received into: neither ready nor resident, for as long as
    /// the sender takes.
    receiving_bytes: AtomicI64,
    /// Resident bytes whose copy the store keeps.
    copied_bytes: AtomicI64,
    /// Bytes outside the regions that are one word over and over, and take no room of the store's.
    same_bytes: AtomicI64,
    /// Bytes of the store that `held_bytes` has.
    store_bytes: AtomicI64,
    /// Bytes that the kernel counts here and that other processes account for: their part of memory
    /// shared by a fork.
    others_bytes: AtomicU64,
    /// Bytes that faults fetched from the store, ever.
    fetched_bytes: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(budget_bytes: u64, entry_bytes: usize) -> Self {
        Self {
            entry_bytes: entry_bytes as i64,
            budget_bytes: AtomicI64::new(budget_bytes as i64),
            beyond_bytes: AtomicI64::new(0),
            passed_bytes: AtomicI64::new(0),
            held_bytes: AtomicI64::new(0),
            resident_bytes: AtomicI64::new(0),
            followed_bytes: AtomicU64::new(0),
            staged_bytes: AtomicI64::new(0),
            copied_bytes: AtomicI64::new(0),
            same_bytes: AtomicI64::new(0),
            receiving_bytes: AtomicI64::new(0),
            others_bytes: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            store_bytes: AtomicI64::new(0),
        }
    }
    /// Sets the budget from now on.
    pub(crate) fn set_budget(&self, budget_bytes: u64) {
        self.budget_bytes.store(budget_bytes as i64, Ordering::Relaxed);
    }
    /// The budget, and the bytes that may be held beyond it.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed) as u64 + self.beyond_bytes() + self.passed_bytes()
    }
    /// The budget is passed by so much from now on.
    pub(crate) fn pass(&self, bytes: u64) {
        self.passed_bytes.store(bytes as i64, Ordering::Relaxed);
    }
    pub(crate) fn passed_bytes(&self) -> u64 {
        self.passed_bytes.load(Ordering::Relaxed) as u64
    }
    /// So much may be held beyond the budget from now on. True if that is more than before.
    pub(crate) fn hold_beyond(&self, bytes: u64) -> bool {
        self.beyond_bytes.swap(bytes as i64, Ordering::Relaxed) < bytes as i64
    }
    pub(crate) fn beyond_bytes(&self) -> u64 {
        self.beyond_bytes.load(Ordering::Relaxed) as u64
    }
    /// Takes over the kernel's count of this moment, and the size of the store in it.
    pub(crate) fn reconcile(&self, kernel_bytes: u64, store_bytes: u64) {
        self.store_bytes.store(store_bytes as i64, Ordering::Relaxed);
        let own = kernel_bytes.saturating_sub(self.others_bytes.load(Ordering::Relaxed));
        self.held_bytes.store(own as i64, Ordering::Relaxed);
    }
    /// Of the kernel's count others answer for so much.
    pub(crate) fn others_have(&self, bytes: u64) {
        self.others_bytes.store(bytes, Ordering::Relaxed);
    }
    /// We took memory from the kernel, or gave some back (negative).
    pub(crate) fn took(&self, bytes: i64) {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    /// This process copies so much of the memory that it shares.
    pub(crate) fn copied(&self, bytes: u64) {
        let rest = |others: u64| Some(others.saturating_sub(bytes));
        let others = self.others_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        self.took(others.unwrap_or(0).min(bytes) as i64);
    }
    pub(crate) fn others_bytes(&self) -> u64 {
        self.others_bytes.load(Ordering::Relaxed)
    }
    /// Takes over the size of the store. Its growth since the last look is held, too.
    pub(crate) fn store_has(&self, store_bytes: u64) {
        let before = self.store_bytes.swap(store_bytes as i64, Ordering::Relaxed);
        self.took(store_bytes as i64 - before);
    }
    pub(crate) fn store_bytes(&self) -> u64 {
        self.store_bytes.load(Ordering::Relaxed).max(0) as u64
    }
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed).max(0) as u64
    }
    /// The bytes that may still be taken from the kernel.
    pub(crate) fn room_bytes(&self) -> u64 {
        (self.budget_bytes() as i64 - self.held_bytes.load(Ordering::Relaxed)).max(0) as u64
    }
    /// The free bytes with `ready` bytes of unused frames. Ready frames are held: as far as the
    /// budget is exceeded they must be given back, and don't count as free. (Counted as free, they
    /// kept the reclaimer asleep while a program took 100 MiB.)
    pub(crate) fn free_bytes(&self, ready: u64) -> u64 {
        (self.room_bytes() + ready).saturating_sub(self.excess_bytes())
    }
    /// By how much the budget is exceeded.
    pub(crate) fn excess_bytes(&self) -> u64 {
        (self.held_bytes.load(Ordering::Relaxed) - self.budget_bytes() as i64).max(0) as u64
    }
    pub(crate) fn resident(&self, bytes: i64) {
        self.resident_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::Relaxed).max(0) as u64
    }
    pub(crate) fn set_followed(&self, bytes: u64) {
        self.followed_bytes.store(bytes, Ordering::Relaxed);
    }
    pub(crate) fn followed_bytes(&self) -> u64 {
        self.followed_bytes.load(Ordering::Relaxed)
    }
    pub(crate) fn staged(&self, bytes: i64) {
        self.staged_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(crate) fn staged_bytes(&self) -> u64 {
        self.staged_bytes.load(Ordering::Relaxed).max(0) as u64
    }
    /// Content is received into frames of so many bytes, or is no more (negative).
    #[cfg(feature = "migrate")]
    pub(crate) fn receiving(&self, bytes: i64) {
        self.receiving_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(crate) fn receiving_bytes(&self) -> u64 {
        self.receiving_bytes.load(Ordering::Relaxed).max(0) as u64
    }
    pub(crate) fn fetched(&self, bytes: u64) {
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes.load(Ordering::Relaxed)
    }
    /// An entry changed its state, and with it the bytes that it holds twice, and those that it
    /// holds without room.
    pub(crate) fn changed(&self, before: Word, after: Word) {
        let [(twice, same), (twice_before, same_before)] =
            [after, before].map(|word| held_by_handle(word, self.entry_bytes));
        // Most entries of a range that is discarded hold nothing twice.
        if twice != twice_before {
            self.copied_bytes.fetch_add(twice - twice_before, Ordering::Relaxed);
        }
        if same != same_before {
            self.same_bytes.fetch_add(same - same_before, Ordering::Relaxed);
        }
    }
    pub(crate) fn same_bytes(&self) -> u64 {
        self.same_bytes.load(Ordering::Relaxed).max(0) as u64
    }
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed).max(0) as u64
    }
}

/// The bytes that an entry holds twice, in the region and in the store, and those that are outside
/// the region by a handle alone.
fn held_by_handle(word: Word, entry_bytes: i64) -> (i64, i64) {
    let Backing::Handle(handle) = word.backing() else { return (0, 0) };
    let resident = i64::from(word.resident().count()) * 4096;
    if Handle::from_bits(handle).is_same_filled() { (0, entry_bytes - resident) } else { (resident, 0) }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page_entry::Granules;

    use super::*;

    #[test]
    fn a_copy_of_what_others_account_for_is_held_at_once_and_at_the_next_look() {
        let ledger = Ledger::new(100, 65536);
        ledger.others_have(30);
        ledger.reconcile(60, 0);
        ledger.copied(20);
        assert_eq!((ledger.held_bytes(), ledger.others_bytes()), (50, 10));
        // The kernel counts a shared page as it does the copy.
        ledger.reconcile(60, 0);
        assert_eq!(ledger.held_bytes(), 50);
        ledger.copied(20);
        assert_eq!((ledger.held_bytes(), ledger.others_bytes()), (60, 0));
    }

    #[test]
    fn a_page_of_one_word_is_held_once_wherever_it_is() {
        let ledger = Ledger::new(100, 65536);
        let all = Granules::range(0, 16);
        let same = Word::EMPTY.with_backing(Backing::Handle(Handle::ZEROES.to_bits()));
        let other = Word::EMPTY.with_backing(Backing::Handle(7));
        let held = || (ledger.same_bytes(), ledger.copied_bytes());
        ledger.changed(Word::EMPTY, same);
        ledger.changed(Word::EMPTY, other);
        assert_eq!(held(), (65536, 0));
        ledger.changed(same, same.with_resident(Granules::range(0, 4)));
        ledger.changed(other, other.with_resident(all));
        assert_eq!(held(), (12 * 4096, 65536));
        ledger.changed(same.with_resident(Granules::range(0, 4)), Word::EMPTY);
        ledger.changed(other.with_resident(all), other);
        assert_eq!(held(), (0, 0));
    }

    #[test]
    fn frames_that_are_ready_are_not_free_as_far_as_the_budget_is_exceeded() {
        let ledger = Ledger::new(100, 65536);
        let free = |held, ready| {
            ledger.reconcile(held, 0);
            ledger.free_bytes(ready)
        };
        assert_eq!([free(60, 0), free(60, 20), free(100, 20)], [40, 60, 20]);
        assert_eq!([free(115, 20), free(120, 20), free(500, 20)], [5, 0, 0]);
    }
}
