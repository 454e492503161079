//! A tree from outside: one look at its file by a process that is no member, and does not trust it.
//!
//! Nothing is mapped and nothing written. So looking costs the tree's processes nothing and can't
//! harm them, and a truncated or nonsensical file can't harm the reader. A look reads a few MiB at
//! most, whatever the file holds. This module must never use a number as an index or a size before
//! it is checked.

use std::io;
use std::path::Path;

use pagoda_core::size::Bytes;
use pagoda_linux::io::shared_file::WordFile;
use pagoda_linux::process::identity::{self, Identity};

use super::library::RegionsView;
use super::{
    CLAIMS, HEADER_WORDS, Header, IDENTITIES, LATENCIES, MAGIC, MEMBERS_MAX, PLACE_WORDS, PLACES, READY,
    REGIONS, Sums, WORDS,
};
use crate::stats::counters::{COUNT, Counter, Stats};
use crate::stats::latencies::{LATENCY_WORDS, Latencies};

/// Why a file has nothing to show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// It is not there, or this user may not read it.
    #[error("it can't be read ({0})")]
    Unreadable(#[source] io::Error),
    /// It was not made by this version of `pagoda run` for this user.
    #[error("it is not a tree file of this version and user: {0}")]
    Foreign(String),
    /// It has been made just now, or has been written to by something else.
    #[error("it is not whole: {0}")]
    Torn(&'static str),
}

/// A tree as it was at one moment: each number is right, two of them may be a moment apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// All that [`Tree::totals`](super::Tree::totals) tells.
    pub totals: Stats,
    /// How long the faults of all members that ever were took.
    pub latencies: Latencies,
    /// The claims of all members on the budget.
    pub claimed: Bytes,
    /// The living, in no order. A member that starts just now may be missing.
    pub members: Vec<MemberView>,
    /// Of a library's manager; None of a tree of `pagoda run`.
    pub regions: Option<RegionsView>,
}

/// A member at that moment. Totals continue those of the members that had its place before:
/// differences tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its identity.
    pub identity: Identity,
    /// Whether it is the program that was asked for.
    pub is_first: bool,
    /// Its counters.
    pub counters: Stats,
    /// How long its faults took.
    pub latencies: Latencies,
}

impl View {
    /// Looks at the file of a tree. It reads 1 KiB for each place that was ever used, 13 KiB more
    /// for each that had faults, 27 KiB besides, and a `/proc` file for each member. It waits for
    /// no process.
    ///
    /// # Errors
    /// See [`ViewError`].
    pub fn read(path: &Path) -> Result<Self, ViewError> {
        let file = WordFile::open(path, WORDS).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ViewError::Foreign(error.to_string()),
            _ => ViewError::Unreadable(error),
        })?;
        let read = |from, count| file.read(from, count).map_err(ViewError::Unreadable);
        let head = read(0, PLACES)?;
        let header = |word: Header| head[word as usize];
        match header(Header::Magic) {
            MAGIC => {}
            0 => return Err(ViewError::Torn("it has no header yet")),
            _ => return Err(ViewError::Foreign("it has another version's header".to_owned())),
        }
        let used = header(Header::Used) as usize;
        if used > MEMBERS_MAX {
            return Err(ViewError::Torn("it tells of more members than there is room for"));
        }
        let base_page_bytes = header(Header::BasePageBytes);
        if !base_page_bytes.is_power_of_two() || !(4096..=2 << 20).contains(&base_page_bytes) {
            return Err(ViewError::Torn("its base page is none"));
        }
        let places = read(PLACES, used * PLACE_WORDS)?;
        // Process numbers of other namespaces than ours say nothing here.
        let comparable = identity::namespaces().is_ok_and(|own| own == header(Header::Namespaces));
        let (mut sums, mut latencies) = (Sums::default(), Latencies::default());
        let (mut members, mut first, mut claimed) = (Vec::new(), Stats::default(), 0u64);
        for index in 0..used {
            let place = &places[index * PLACE_WORDS..][..PLACE_WORDS];
            let word = head[IDENTITIES + index];
            let owner = Identity::from_word(word).filter(|_| place[READY] == word);
            let alive = owner.filter(|owner| !comparable || owner.is_alive());
            let value = |counter: Counter| place[..COUNT][counter as usize];
            sums.add(alive.is_some(), value);
            let of_member = match value(Counter::Faults) {
                0 => Latencies::default(),
                _ => Latencies::new(read(LATENCIES + index * LATENCY_WORDS, LATENCY_WORDS)?),
            };
            latencies.add(&of_member);
            let is_first = word != 0 && word == header(Header::First);
            if is_first {
                first = Stats::of(value);
            }
            if let Some(identity) = alive {
                claimed = claimed.saturating_add(head[CLAIMS + index]);
                let counters = Stats::of(value);
                members.push(MemberView { identity, is_first, counters, latencies: of_member });
            }
        }
        let before = header(Header::TurnedAway).saturating_add(header(Header::UnmanagedEnded));
        let budget = Bytes::new(header(Header::BudgetBytes));
        let totals = sums.of_tree(&first, budget, base_page_bytes, before);
        let regions = match header(Header::Library) {
            0 => None,
            _ => Some(RegionsView::read(|from, count| read(REGIONS + from, count))?),
        };
        Ok(Self { totals, latencies, claimed: Bytes::new(claimed), members, regions })
    }
}

const _: () = assert!(HEADER_WORDS <= PLACES && IDENTITIES < CLAIMS, "the header is read with the arrays");

#[cfg(test)]
#[path = "view_test.rs"]
mod tests;
