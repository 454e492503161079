//! A region, own or adopted, that moves to another host or comes from one: the engine, the memory
//! and the state that its migration needs.
//!
//! It is sent or saved once at a time, and never while a part of it still arrives. What a save
//! leaves for the next one is given up by any other use. This module must never hand out the memory
//! of an owner that has not allowed it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pagoda_core::image::Root;
use pagoda_core::migrate::pages::PageSet;
use pagoda_linux::mem::region_bytes::RegionBytes;

use super::managed::{Managed, Memory};
use crate::engine::Engine;
use crate::migrate::Receiving;
use crate::state::owed::OwedPages;

/// Whether a region is being sent, and what arrives.
#[derive(Default)]
pub(super) struct Moves {
    sending: AtomicBool,
    /// A part of it arrives later.
    receiving: Option<Receiving>,
    /// Writes are tracked between saves.
    tracks_saves: AtomicBool,
    /// The last save, if all since then is known.
    last_save: Mutex<Option<LastSave>>,
}

/// A save after which writes were tracked.
pub(crate) struct LastSave {
    /// Of its image.
    pub(crate) root: Root,
    /// The pages that its image has as other than zero.
    pub(crate) told: PageSet,
    /// The last move of memory to it before that.
    pub(crate) moved: u64,
}

/// The right to send a region, one at a time; given back on drop.
pub(crate) struct Sending<'a>(&'a AtomicBool);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Moves {
    /// Ends the arrival of owed pages, if there is one. Returns the pages that will never
    /// arrive: marked, and to be taken from the engine by the caller.
    pub(super) fn end_arrival(&mut self, engine: &Engine) -> Option<Arc<OwedPages>> {
        self.receiving.take()?.end(engine)
    }

    /// In a forked child, where the receiver's thread is not.
    pub(super) fn leave_to_child(&mut self) {
        std::mem::forget(self.receiving.take());
    }
}

impl Managed {
    /// The engine, for callers that have asked [`maker`](Self::maker).
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.shared.engine_of_maker()
    }
    /// Its bytes, for callers that have asked [`maker`](Self::maker).
    pub(crate) fn bytes(&self) -> io::Result<&RegionBytes> {
        let bytes = match &self.memory {
            Memory::Own(memory) => Some(&**memory),
            Memory::Foreign(memory) => memory.bytes(),
            Memory::Gone => None,
        };
        let refused = "its owner has not allowed the manager to read and write the memory; adopt it as `ForeignMemory::movable`";
        bytes.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, refused))
    }
    /// Discards whole OS pages.
    pub(crate) fn empty(&self, offset: usize, len: usize) -> io::Result<()> {
        self.discard_bytes(self.bytes()?, offset, len)
    }
    /// Ends the arrival of owed pages. They are owed no longer, and read as zero.
    pub(crate) fn end_arrival(&mut self) {
        let engine = Arc::clone(self.shared.engine_of_maker());
        self.moves.end_arrival(&engine).iter().for_each(|owed| engine.owed.leave(owed));
    }
    /// Keeps the receiver of its remaining pages, as long as the region lives.
    pub(crate) fn set_receiving(&mut self, receiving: Receiving) -> &mut Receiving {
        self.moves.receiving.insert(receiving)
    }
    /// The receiver of pages that may not have arrived yet, if there is one.
    pub(crate) fn receiving(&self) -> Option<&Receiving> {
        self.moves.receiving.as_ref().filter(|receiving| !receiving.is_done())
    }
    /// An error if a part of it may still arrive.
    pub(crate) fn check_arrived(&self) -> io::Result<()> {
        match self.receiving() {
            None => Ok(()),
            Some(_) => {
                Err(io::Error::new(io::ErrorKind::ResourceBusy, "not all of the region has arrived yet"))
            }
        }
    }
    /// Has writes tracked between saves, or not any more.
    pub(crate) fn set_tracks_saves(&self, yes: bool) {
        self.moves.tracks_saves.store(yes, Ordering::Relaxed);
    }
    /// Whether that is so.
    pub(crate) fn tracks_saves(&self) -> bool {
        self.moves.tracks_saves.load(Ordering::Relaxed)
    }
    /// Keeps what the next save needs.
    pub(crate) fn set_last_save(&self, last: LastSave) {
        *self.moves.last_save.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }
    /// The last save, for a caller with the right to send the region.
    pub(crate) fn take_last_save(&self) -> Option<LastSave> {
        self.moves.last_save.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
    /// The right to send it. None while it is being sent already.
    pub(crate) fn sending(&self) -> Option<Sending<'_>> {
        let sending = &self.moves.sending;
        (!sending.swap(true, Ordering::AcqRel)).then(|| Sending(sending))
    }
}
