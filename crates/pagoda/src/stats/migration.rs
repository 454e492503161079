//! The progress of a region's migration, for observers: the migration notes its figures here.
//!
//! It lives as long as the migration. Nothing here may ever decide anything.

use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::size::Bytes;
#[cfg(feature = "migrate")]
use pagoda_migrate::{Event, Pace, Progress};

use crate::tree::{MigrationState, MigrationView};

/// The last that is known of a migration.
#[derive(Debug)]
pub(crate) struct Moving {
    state: AtomicU64,
    wire_bytes: AtomicU64,
    rounds: AtomicU64,
    left_bytes: AtomicU64,
    sent_bytes_s: AtomicU64,
    written_bytes_s: AtomicU64,
    downtime_us: AtomicU64,
    delayed_faults: AtomicU64,
    delayed_us: AtomicU64,
    recoveries: AtomicU64,
    waited_us: AtomicU64,
}

impl Moving {
    #[cfg(feature = "migrate")]
    pub(crate) fn new(state: MigrationState) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            state: AtomicU64::new(state as u64),
            wire_bytes: zero(),
            rounds: zero(),
            left_bytes: zero(),
            sent_bytes_s: zero(),
            written_bytes_s: zero(),
            downtime_us: zero(),
            delayed_faults: zero(),
            delayed_us: zero(),
            recoveries: zero(),
            waited_us: zero(),
        }
    }

    /// The current figures: each number is right, two of them may be a moment apart.
    pub(crate) fn view(&self) -> Option<MigrationView> {
        let of = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Some(MigrationView {
            state: MigrationState::from_word(of(&self.state))?,
            wire: Bytes::new(of(&self.wire_bytes)),
            rounds: of(&self.rounds),
            left: Bytes::new(of(&self.left_bytes)),
            sent_per_s: Bytes::new(of(&self.sent_bytes_s)),
            written_per_s: Bytes::new(of(&self.written_bytes_s)),
            downtime_us: of(&self.downtime_us),
            delayed_faults: of(&self.delayed_faults),
            delayed_us: of(&self.delayed_us),
            recoveries: of(&self.recoveries),
            waited_us: of(&self.waited_us),
        })
    }
}

#[cfg(feature = "migrate")]
impl Moving {
    /// A sender's progress. Before a round has ended only the bytes not looked at yet are known.
    pub(crate) fn sends(&self, progress: &Progress, pace: &Pace) {
        let counts = progress.counts();
        let unseen = progress.image().get().saturating_sub(counts.image_bytes);
        let left = if pace.rounds == 0 { unseen } else { pace.left.get() };
        for (word, value) in [
            (&self.wire_bytes, counts.wire_bytes),
            (&self.rounds, u64::from(pace.rounds)),
            (&self.left_bytes, left),
            (&self.sent_bytes_s, pace.sent_per_s.get()),
            (&self.written_bytes_s, pace.written_per_s.get()),
            (&self.downtime_us, pace.downtime.as_micros() as u64),
            (&self.delayed_faults, pace.delayed_faults),
            (&self.delayed_us, pace.delayed.as_micros() as u64),
            (&self.recoveries, counts.recoveries),
            (&self.waited_us, counts.waited_us),
        ] {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The bytes of the rounds before the region is used.
    pub(crate) fn receives(&self, event: &Event<'_>) {
        if let Event::Moving(progress) = event {
            self.wire_bytes.store(progress.counts().wire_bytes, Ordering::Relaxed);
        }
    }

    /// The bytes that arrive while it is used.
    pub(crate) fn arrives(&self, progress: &Progress) {
        self.state.store(MigrationState::Arriving as u64, Ordering::Relaxed);
        let counts = progress.counts();
        self.wire_bytes.store(counts.wire_bytes, Ordering::Relaxed);
        self.recoveries.store(counts.recoveries, Ordering::Relaxed);
        self.waited_us.store(counts.waited_us, Ordering::Relaxed);
    }
}
