//! The tree file of a library's manager: its one member is the process. Behind all places it has a
//! part that a `pagoda run` does not have, the regions and the progress of their migrations.
//!
//! ```text
//!   turn | regions in all | regions shown | the figures of each, the largest first
//! ```
//! Words of several regions belong together, so the *turn* is odd while they are written: a reader
//! looks at it before and after. The file is removed with the manager. This module must never wait
//! for a reader, nor a reader for the writer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::io::shared_file::SharedWords;
use pagoda_linux::process::identity::Identity;

use super::{CLAIMS, Header, IDENTITIES, LATENCIES, MAGIC, PLACES, READY, REGIONS, ViewError, place};
use crate::stats::counters::{Counter, Counters, Status};

/// Regions of which more than their number is shown: the largest, more than anyone reads at once.
/// The rest is counted.
pub const REGIONS_SHOWN_MOST: usize = 16;

/// Of one region: [`RegionView::words`].
const REGION_WORDS: usize = 20;
const TURN: usize = 0;
const ALL: usize = 1;
const SHOWN: usize = 2;
const FIRST: usize = 3;
/// The words of all regions together.
pub(super) const REGIONS_WORDS: usize = FIRST + REGIONS_SHOWN_MOST * REGION_WORDS;

/// How often a reader looks again while they are written, which takes a microsecond: then it takes
/// the words as they are.
const LOOKS_MOST: u32 = 8;

/// The state of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[non_exhaustive]
pub enum MigrationState {
    /// The region is sent to another host.
    Sending = 1,
    /// It is received, and not shown yet.
    Receiving = 2,
    /// It is used, and the rest of it arrives.
    Arriving = 3,
}

impl MigrationState {
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        [Self::Sending, Self::Receiving, Self::Arriving].into_iter().find(|state| *state as u64 == word)
    }

    /// The name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sending => "sending",
            Self::Receiving => "receiving",
            Self::Arriving => "arriving",
        }
    }
}

/// The progress of a region's migration. Only a sender knows more than the bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationView {
    /// Its state.
    pub state: MigrationState,
    /// Bytes on the wire so far, to this side or from it.
    pub wire: Bytes,
    /// Of a sender: rounds that are done.
    pub rounds: u64,
    /// Of a sender: the bytes left as of the last round; in the first round those not looked at
    /// yet.
    pub left: Bytes,
    /// Of a sender: how much it sent in a second of the last round.
    pub sent_per_s: Bytes,
    /// Of a sender: how much was written in a second of the last round.
    pub written_per_s: Bytes,
    /// Of a sender: how long the writer would have to stand still for the bytes left, in
    /// microseconds.
    pub downtime_us: u64,
    /// Of a sender: how many faults have waited, to slow down a writer that was too fast.
    pub delayed_faults: u64,
    /// Of a sender: how long they have waited in all, in microseconds.
    pub delayed_us: u64,
    /// After a switch: how often all channels were lost and connected once more.
    pub recoveries: u64,
    /// After a switch: how long there were none, in microseconds.
    pub waited_us: u64,
}

/// The size of a touch in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BaseView {
    /// Its base page; by density, the most that a first touch fills now.
    pub size: Bytes,
    /// It was not chosen: it goes by density.
    pub by_density: bool,
    /// By density: how often it has grown.
    pub grown: u64,
    /// By density: how often it has shrunk.
    pub shrunk: u64,
}

/// The figures of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionView {
    /// The address of its first byte.
    pub start: u64,
    /// Its length.
    pub len: Bytes,
    /// Its resident bytes.
    pub resident: Bytes,
    /// Its staged bytes.
    pub staged: Bytes,
    /// Its stored bytes, before compression.
    pub stored: Bytes,
    /// The size of a touch.
    pub base: BaseView,
    /// If it is being moved.
    pub migration: Option<MigrationView>,
}

impl RegionView {
    fn words(&self) -> [u64; REGION_WORDS] {
        let sizes = [self.len, self.resident, self.staged, self.stored].map(Bytes::get);
        let moving = self.migration.map_or([0; 7], |moving| {
            let sizes = [moving.wire, moving.left, moving.sent_per_s, moving.written_per_s].map(Bytes::get);
            [moving.state as u64, sizes[0], moving.rounds, sizes[1], sizes[2], sizes[3], moving.downtime_us]
        });
        let mut words = [0; REGION_WORDS];
        words[0] = self.start;
        words[1..5].copy_from_slice(&sizes);
        words[5..12].copy_from_slice(&moving);
        let BaseView { size, by_density, grown, shrunk } = self.base;
        words[12..16].copy_from_slice(&[size.get(), u64::from(by_density), grown, shrunk]);
        if let Some(moving) = self.migration {
            let after = [moving.recoveries, moving.waited_us, moving.delayed_faults, moving.delayed_us];
            words[16..].copy_from_slice(&after);
        }
        words
    }

    fn of_words(words: &[u64]) -> Self {
        let size = |at: usize| Bytes::new(words[at]);
        let migration = MigrationState::from_word(words[5]).map(|state| MigrationView {
            state,
            wire: size(6),
            rounds: words[7],
            left: size(8),
            sent_per_s: size(9),
            written_per_s: size(10),
            downtime_us: words[11],
            recoveries: words[16],
            waited_us: words[17],
            delayed_faults: words[18],
            delayed_us: words[19],
        });
        let (resident, staged, stored) = (size(2), size(3), size(4));
        let base =
            BaseView { size: size(12), by_density: words[13] != 0, grown: words[14], shrunk: words[15] };
        Self { start: words[0], len: size(1), resident, staged, stored, base, migration }
    }
}

/// The regions of a library's manager at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionsView {
    /// How many there are.
    pub all: u64,
    /// The largest, up to [`REGIONS_SHOWN_MOST`].
    pub shown: Vec<RegionView>,
}

impl RegionsView {
    /// Reads them with a function that reads so many words from the one at an index on.
    pub(super) fn read(
        read: impl Fn(usize, usize) -> Result<Vec<u64>, ViewError>,
    ) -> Result<Self, ViewError> {
        let mut words = read(0, REGIONS_WORDS)?;
        for _ in 0..LOOKS_MOST {
            let turn = words[TURN];
            if turn.is_multiple_of(2) && read(TURN, 1)?[0] == turn {
                break;
            }
            words = read(0, REGIONS_WORDS)?;
        }
        let count = words[SHOWN];
        if count > REGIONS_SHOWN_MOST as u64 {
            return Err(ViewError::Torn("it tells of more regions than there is room for"));
        }
        let regions = words[FIRST..].chunks_exact(REGION_WORDS).take(count as usize);
        Ok(Self { all: words[ALL], shown: regions.map(RegionView::of_words).collect() })
    }
}

/// The file, removed with this value by the process that made it.
pub(crate) struct LibraryFile {
    words: Arc<SharedWords>,
    path: PathBuf,
    pid: u32,
}

impl LibraryFile {
    /// Makes it where a `pagoda run` of this process would.
    ///
    /// # Errors
    /// Why the last directory did not take it.
    pub(crate) fn create(budget: Bytes, base_page: BasePage) -> io::Result<Self> {
        let directory = std::env::var_os("XDG_RUNTIME_DIR");
        let made = place::create(directory, |path| Self::create_at(path, budget, base_page));
        made.map(|(words, path)| Self { words, path, pid: std::process::id() }).map_err(|failures| {
            failures.into_iter().next_back().map_or(io::ErrorKind::NotFound.into(), |last| last.1)
        })
    }

    fn create_at(path: &Path, budget: Bytes, base_page: BasePage) -> io::Result<Arc<SharedWords>> {
        let identity = Identity::of_self()?;
        let words = Arc::new(super::create(path, budget, base_page)?);
        let counters = Counters::within(Arc::clone(&words), PLACES, LATENCIES);
        counters.set(Counter::OwnerPid, u64::from(identity.pid()));
        counters.set(Counter::Status, Status::Managed as u64);
        counters.add(Counter::Processes, 1);
        counters.add(Counter::ProcessesManaged, 1);
        words[Header::Used as usize].store(1, SeqCst);
        words[Header::First as usize].store(identity.word(), SeqCst);
        words[Header::Library as usize].store(1, SeqCst);
        words[PLACES + READY].store(identity.word(), SeqCst);
        words[IDENTITIES].store(identity.word(), SeqCst);
        words[Header::Magic as usize].store(MAGIC, SeqCst);
        Ok(words)
    }

    /// The counters that lie in it.
    pub(crate) fn counters(&self) -> Counters {
        Counters::within(Arc::clone(&self.words), PLACES, LATENCIES)
    }

    /// Publishes the budget, the held part of it, and the regions: `all` of them, of which `shown`
    /// are listed.
    pub(crate) fn show(&self, budget: Bytes, held: Bytes, all: u64, shown: &[RegionView]) {
        self.words[Header::BudgetBytes as usize].store(budget.get(), SeqCst);
        self.words[CLAIMS].store(held.get(), SeqCst);
        let words = &self.words[REGIONS..][..REGIONS_WORDS];
        let shown = &shown[..shown.len().min(REGIONS_SHOWN_MOST)];
        words[TURN].fetch_add(1, SeqCst);
        words[ALL].store(all, SeqCst);
        words[SHOWN].store(shown.len() as u64, SeqCst);
        for (words, region) in words[FIRST..].chunks_exact(REGION_WORDS).zip(shown) {
            for (word, value) in words.iter().zip(region.words()) {
                word.store(value, SeqCst);
            }
        }
        words[TURN].fetch_add(1, SeqCst);
    }
}

impl Drop for LibraryFile {
    fn drop(&mut self) {
        // The child of a fork has this value, too, and the file is not its.
        if std::process::id() == self.pid {
            // A file that is removed already is fine.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[path = "library_test.rs"]
mod tests;
