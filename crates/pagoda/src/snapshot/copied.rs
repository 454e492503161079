//! The pages that a save copies to memory while the region's writers are stopped.

use pagoda_core::migrate::pages::StripePages;
use pagoda_core::page::OS_PAGE;
use pagoda_migrate::{LiveReader, Room};

use super::parts::Parts;
use super::{Left, SnapshotError};

/// Pages that are copied in the pause without taking memory for them then: 16 MiB.
const COPIED_PAGES: u64 = 4096;

/// Threads that copy in the pause.
pub(super) const COPIERS: usize = 2;

/// The pages that were copied in the pause, by as many threads as there are parts.
pub(super) struct Copied {
    /// Each has about as many stripes; all of the first come before those of the second.
    pub(super) parts: [CopiedPart; COPIERS],
    pub(super) pages: u64,
}

/// Stripes, in order.
pub(super) struct CopiedPart {
    pub(super) stripes: Vec<CopiedStripe>,
    /// The content of all of them, one after another.
    bytes: Vec<u8>,
    /// Room for one stripe.
    room: Room,
}

pub(super) struct CopiedStripe {
    pub(super) first: u64,
    content: StripePages,
    zero: StripePages,
    /// Where its content begins.
    at: usize,
}

impl Copied {
    /// For a region of so many pages.
    pub(super) fn new(pages: u64) -> Self {
        let pages = pages.min(COPIED_PAGES) as usize / COPIERS;
        Self { parts: std::array::from_fn(|_| CopiedPart::new(pages)), pages: 0 }
    }

    /// The stripe that begins with page `first`, if it was copied.
    pub(super) fn find(&self, first: u64) -> Option<(&CopiedPart, &CopiedStripe)> {
        self.parts.iter().find_map(|part| {
            let index = part.stripes.binary_search_by_key(&first, |stripe| stripe.first).ok()?;
            Some((part, &part.stripes[index]))
        })
    }
}

/// Adds the pages of a stripe that `room` has.
fn keep_in(stripes: &mut Vec<CopiedStripe>, bytes: &mut Vec<u8>, first: u64, room: &Room) {
    let (content, zero) = (room.content(), room.zero());
    stripes.push(CopiedStripe { first, content, zero, at: bytes.len() });
    for run in content.runs() {
        bytes.extend_from_slice(&room.bytes()[run.start as usize * OS_PAGE..run.end as usize * OS_PAGE]);
    }
}

impl CopiedPart {
    fn new(pages: usize) -> Self {
        // Written once: in the pause a first touch would take longer than the copy.
        let mut bytes = vec![1; pages * OS_PAGE];
        bytes.clear();
        Self { stripes: Vec::new(), bytes, room: Room::default() }
    }

    /// Reads these stripes.
    pub(super) fn copy(
        &mut self,
        left: &Left,
        stripes: &[u64],
        reader: &mut dyn LiveReader,
    ) -> Result<(), SnapshotError> {
        let mut none = Parts::default();
        let Self { stripes: copied, bytes, room } = self;
        for first in stripes {
            left.read(*first, room, reader, &mut none)?;
            keep_in(copied, bytes, *first, room);
        }
        Ok(())
    }

    /// Adds the pages of a stripe that `room` has; stripes come in order.
    pub(super) fn keep(&mut self, first: u64, room: &Room) {
        keep_in(&mut self.stripes, &mut self.bytes, first, room);
    }

    /// A stripe, in a room of its own.
    pub(super) fn loaded(&self, stripe: &CopiedStripe) -> Room {
        let mut room = Room::default();
        self.load(stripe, &mut room);
        room
    }

    /// Brings a stripe back into `room`.
    pub(super) fn load(&self, stripe: &CopiedStripe, room: &mut Room) {
        room.begin(stripe.content, stripe.zero);
        let mut at = stripe.at;
        for run in stripe.content.runs() {
            let into = room.put(run);
            into.copy_from_slice(&self.bytes[at..at + into.len()]);
            at += into.len();
        }
    }
}
