//! Loans: a forked child reads pages of its parent's file in place of a copy. The place of each
//! page is handed over, and not its bytes.
//!
//! The parent's file has no name, and is there as long as one of the two has it open. The parent
//! alone writes to it, gives places out and takes them back; the child has a descriptor of it for
//! reading alone. In the child such a page is an object in the file like any other, but for its
//! unit number: [`THEIRS`] tells whose file it is in. So it is fetched, read in part, brought into
//! memory with its place kept and freed by the same code, and only the file's tier looks at that
//! bit. The child never writes there: pages that it stores anew go to its own memory and file.
//!
//! When may the parent use a place again? It asks [`Holds`], bits that it shares with this one
//! child:
//! - **A hold begins** before the child can know of the place. The parent sets the bit with the
//!   page's entry busy and the memory lock held. So the place is the page's, and a free of it, in
//!   any thread, comes after the bit. The child has accepted by then: one that refuses, or whose
//!   offer is revoked, was never told of a place, and gets copies.
//! - **A bit is one reference.** If it is set already (a page with two ranges in it is handed over
//!   twice, or two small objects are so near that they have one bit) the page is copied.
//! - **It ends** when the child frees its object, which its own callers do after the last read;
//!   clearing releases, looking acquires. The bit is not set again unless the page is the parent's
//!   still.
//! - **A child that is gone holds nothing.** Each side has its end of their stream open for as long
//!   as its engine lives. The kernel closes the child's when the last thread that had it is gone:
//!   after an exit, kill -9 or exec. The parent sees it within the keeper's 100 ms, or when it
//!   needs the room.
//! - **A parent that is gone** leaves the file to its children, and no process writes to it any
//!   more.
//! - A child of the child is not lent a lent page: it gets that packed, read from the file.
//!
//! A place that the parent frees and a child holds is held back ([`Lending`]): it stays taken in
//! the extents, so that nothing is written there and nothing discarded. It is the child's by then,
//! and does not count against the parent's limit. All bytes that are read are deciphered and
//! checked as those of one's own file are: a mistake in all this would end a process, and never be
//! taken for data.
//!
//! This module must never let a place be freed that a child holds, and never write to a file that
//! is lent.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use pagoda_core::space::extent_leases::{self, Lending};
use pagoda_core::space::extents::Units;
use pagoda_linux::io::direct_file::DirectFile;
use pagoda_linux::io::holds::{Holds, HoldsFile};
use pagoda_linux::process::lock::Lock;
use pagoda_linux::process::offer::{Lent, Stream};

use super::file::FileTier;
use super::handle::Meaning;
use super::objects::{DENSE, Kind, NOBODY, Word, all_blocks};
use super::{Handle, TieredStore};
use crate::crypto::digest::{Digester, KEY_BYTES};
use crate::crypto::file_cipher::{self, FileCipher};

/// Of a unit's number: it is one of the parent's file. Files end below.
pub(super) const THEIRS: u32 = 1 << 31;

/// Units whose objects, those that begin there, have one bit: 128 KiB of bits for a GiB of the
/// file. Few begin so near to each other. One of those is lent at a time. The others stay in place
/// as long, as they would in its slot anyway.
const UNITS_PER_BIT: u32 = 4;

/// Places that are held back and looked at in one go, with frees waiting: about 50 µs.
const LOOKS_MOST: usize = 4096;

/// A child that reads our file.
struct Borrower {
    holds: Arc<Holds>,
    stream: Arc<Stream>,
}

impl extent_leases::Borrower for Borrower {
    fn holds(&self, first_unit: u32) -> bool {
        self.holds.is_held(first_unit / UNITS_PER_BIT)
    }
}

/// By which a borrower reads its parent's file, and compares with its parent's digests.
pub(super) struct LenderKeys {
    pub content: Digester,
    pub file: FileCipher,
}

impl LenderKeys {
    fn from_bytes(bytes: &[u8; LENT_KEYS]) -> Self {
        let (content, file) = bytes.split_first_chunk().expect("it is longer");
        let file = FileCipher::of_key(file.try_into().expect("the rest"));
        Self { content: Digester::of_key(*content), file }
    }
}

/// Bytes of the keys that a borrower gets.
pub(crate) const LENT_KEYS: usize = KEY_BYTES + file_cipher::KEY_BYTES;

/// The process whose file we read. The stream is kept open so that it can see that we live.
struct Lender {
    file: DirectFile,
    keys: LenderKeys,
    holds: Holds,
    _stream: Arc<Stream>,
}

impl Lender {
    /// Whether it was held.
    fn let_go(&self, units: Units) -> bool {
        self.holds.let_go((units.first & !THEIRS) / UNITS_PER_BIT)
    }
}

/// Both sides of a file's loans.
pub(super) struct Loans {
    lending: Lock<Lending<Borrower>>,
    lender: OnceLock<Lender>,
}

impl Default for Loans {
    fn default() -> Self {
        Self { lending: Lock::new(Lending::new()), lender: OnceLock::new() }
    }
}

/// A file that is offered to a child.
pub(crate) struct Loan {
    /// The same file, for reading alone.
    file: DirectFile,
    holds: Arc<Holds>,
    by: HoldsFile,
}

impl Loan {
    /// The descriptors for the child.
    pub(crate) fn descriptors(&self) -> (&DirectFile, &HoldsFile) {
        (&self.file, &self.by)
    }
}

/// A page in the file as the child needs it: a word with first unit, length and kind, the checksum,
/// the digest, and the notes of its blocks.
const WORDS: usize = 3;
const RAW_BIT: u64 = 1 << 48;
const DENSE_BIT: u64 = 1 << 49;

impl FileTier {
    /// The file of these units, and their numbers there. None if no process has lent them.
    pub(super) fn located(&self, units: Units) -> Option<(&DirectFile, Units)> {
        if units.first & THEIRS == 0 {
            return Some((&self.file, units));
        }
        let lender = self.loans.lender.get()?;
        Some((&lender.file, Units { first: units.first & !THEIRS, ..units }))
    }

    /// The lender's keys. None if no process has lent a file.
    pub(super) fn lender_keys(&self) -> Option<&LenderKeys> {
        self.loans.lender.get().map(|lender| &lender.keys)
    }

    /// The objects in all these units are gone. Units that a child holds are held back, and those
    /// of a parent are released.
    pub(super) fn release_all(&self, all: &[Units]) {
        let mut lending = self.loans.lending.lock();
        let mut extents = self.extents.lock();
        for units in all {
            if units.first & THEIRS != 0 {
                let lender = self.loans.lender.get();
                let was_held = lender.is_some_and(|lender| lender.let_go(*units));
                assert!(was_held, "a place is let go once");
            } else if lending.frees(*units) {
                extents.release(*units);
            }
        }
        extents.limit_to(self.limit_slots(lending.held_back_slots()));
    }

    /// Frees the units that were held back and are not held any more. True if there were some.
    pub(super) fn take_back(&self) -> bool {
        let mut lending = self.loans.lending.lock();
        // Dropped without the lock: that is the kernel's work.
        let _gone = lending.forget(|borrower| borrower.stream.is_over());
        let mut left = lending.held_back();
        let mut any = false;
        while left > 0 {
            let free = lending.take_free(left.min(LOOKS_MOST));
            let mut extents = self.extents.lock();
            free.iter().for_each(|units| extents.release(*units));
            extents.limit_to(self.limit_slots(lending.held_back_slots()));
            any |= !free.is_empty();
            drop(extents);
            drop(lending);
            left = left.saturating_sub(LOOKS_MOST);
            lending = self.loans.lending.lock();
        }
        drop(lending);
        any
    }

    /// Bytes that the loans take in memory.
    pub(super) fn loan_bytes(&self) -> u64 {
        let lending = self.loans.lending.lock();
        let bits = lending.borrowers().map(|borrower| borrower.holds.bytes()).sum::<u64>();
        lending.table_bytes() + bits + self.loans.lender.get().map_or(0, |lender| lender.holds.bytes())
    }
}

impl TieredStore {
    /// A loan that a child may be offered, if there is a file, and room for one borrower more.
    pub(crate) fn loan(&self) -> Option<Loan> {
        let file = self.file.as_ref()?;
        // Those that were here before may be gone.
        file.take_back();
        let units = file.used_units();
        if units == 0 || !file.loans.lending.lock().has_room() {
            return None;
        }
        let (holds, by) = Holds::create(units.div_ceil(UNITS_PER_BIT)).ok()?;
        Some(Loan { file: file.file.for_reading().ok()?, holds: Arc::new(holds), by })
    }

    /// The child has accepted: it is a borrower from now on, until the stream is over.
    pub(crate) fn begin_loan(&self, loan: &Loan, stream: &Arc<Stream>) {
        if let Some(file) = &self.file {
            let borrower = Borrower { holds: Arc::clone(&loan.holds), stream: Arc::clone(stream) };
            file.loans.lending.lock().add(borrower);
        }
    }

    /// Lends a page that is in the file to the borrower of `loan`, which has begun, and returns the
    /// words for the child. None if it is to be copied. The caller has the page to itself.
    pub(crate) fn lend(&self, handle: Handle, loan: &Loan) -> Option<Vec<u8>> {
        let Meaning::Object(id) = handle.meaning() else { return None };
        let object = self.table.get(id)?;
        // As long as it is held, the object's place is this one.
        let _state = self.memory.lock();
        let word = object.word();
        let unit = match word.kind() {
            Kind::File => word.first(),
            // It is in both.
            Kind::Memory => object.kept.load(Ordering::Relaxed),
            Kind::Free | Kind::Reserved | Kind::Remote | Kind::Gone => NOBODY,
        };
        // Also of [`NOBODY`].
        if unit & THEIRS != 0 || !loan.holds.hold(unit / UNITS_PER_BIT) {
            return None;
        }
        let mut first = u64::from(unit) | (word.len() as u64 - 1) << 32;
        first |= if word.raw() { RAW_BIT } else { 0 } | if word.has(DENSE) { DENSE_BIT } else { 0 };
        let sums = [first, object.checksum.load(Ordering::Relaxed), object.digest.load(Ordering::Relaxed)];
        Some(sums.into_iter().chain(self.blocks.noted(id)).flat_map(u64::to_ne_bytes).collect())
    }

    /// The keys that a borrower needs. It only deciphers by that of the file: its own pages are
    /// spilled to its own file, by its own key.
    pub(crate) fn lent_keys(&self) -> [u8; LENT_KEYS] {
        let mut keys = [0; LENT_KEYS];
        let (content, file) = keys.split_at_mut(KEY_BYTES);
        content.copy_from_slice(&self.content_digester().key());
        if let Some(tier) = &self.file {
            file.copy_from_slice(&tier.cipher.key());
        }
        keys
    }

    /// In a child, before anything is stored: it reads its parent's file from now on, by these
    /// keys. False if it has no file of its own, or has a lender already.
    #[must_use]
    pub(crate) fn borrow_from(&self, lent: Lent, keys: &[u8; LENT_KEYS], stream: &Arc<Stream>) -> bool {
        let Some(file) = &self.file else { return false };
        let keys = LenderKeys::from_bytes(keys);
        let lender = Lender { file: lent.file, keys, holds: lent.holds, _stream: Arc::clone(stream) };
        file.loans.lender.set(lender).is_ok()
    }

    /// The length of the words of [`lend`](Self::lend).
    pub(crate) fn lent_bytes(&self) -> usize {
        (WORDS + self.blocks.words()) * size_of::<u64>()
    }

    /// In a child: enters a page that its parent lends, by the parent's words. None if they are not
    /// valid, or there are no numbers left.
    pub(crate) fn borrow(&self, said: &[u8]) -> Option<Handle> {
        if said.len() != self.lent_bytes() {
            return None;
        }
        let mut words =
            said.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
        let [first, checksum, digest] = [(); WORDS].map(|()| words.next().expect("its length was asked"));
        let (unit, len) = (first as u32, (first >> 32) as usize % (1 << 16) + 1);
        let (raw, dense) = (first & RAW_BIT != 0, first & DENSE_BIT != 0);
        let lender = self.file.as_ref()?.loans.lender.get()?;
        if unit & THEIRS != 0 || len > self.page_bytes() || raw != (len == self.page_bytes()) {
            return None;
        }
        if !lender.holds.is_held(unit / UNITS_PER_BIT) {
            return None;
        }
        let mut state = self.memory.lock();
        let id = state.numbers.take(&self.table)?;
        let object = self.table.at(id);
        object.checksum.store(checksum, Ordering::Relaxed);
        object.digest.store(digest, Ordering::Relaxed);
        self.table.note_content(id, all_blocks(self.page_bytes()));
        self.blocks.enter(id, words);
        let word = Word::new(Kind::File, unit | THEIRS, len, raw);
        object.publish(if dense { word.with(DENSE) } else { word });
        Some(Handle::object(id))
    }
}
