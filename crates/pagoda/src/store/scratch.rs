//! The buffers of one thread for storing and fetching, with codec state, allocated once.
//!
//! It is never shared and holds nothing between two calls, except the thread's identity as a taker
//! of frames, and a part of an image's page between the read and its use.

use pagoda_core::page::BasePage;
use pagoda_core::space::extents::SLOT;
use pagoda_linux::codec::pack::{BlockPacker, PageUnpacker};
use pagoda_linux::io::direct_file::AlignedBuffer;

use super::images::Brought;
use crate::frames::zones::Taker;

/// The longest page that is stored at once: larger base pages are put in pieces of it.
pub(super) const PIECE_MAX: usize = 64 << 10;

/// Working memory of one thread: about three pages and 200 KiB.
pub struct Scratch {
    pub(super) packer: BlockPacker,
    pub(super) unpacker: PageUnpacker,
    /// Compressed bytes, on their way in or out of memory.
    pub(super) packed: Box<[u8]>,
    /// Compressed bytes that are made of others, or a page of which a part is wanted.
    pub(super) repacked: Box<[u8]>,
    /// Slots as they are in the file. An object as long as a page may begin in the middle of a
    /// slot.
    pub(super) slots: AlignedBuffer,
    /// A part of an image's page that is about to be used.
    pub(super) brought: Brought,
    /// The taker of its frames, for the turns of several zones.
    pub(crate) taker: Taker,
}

impl Scratch {
    /// Allocates it, for a thread that takes frames now and then.
    #[must_use]
    pub fn new(base: BasePage) -> Self {
        let page = piece(base);
        Self {
            packer: BlockPacker::default(),
            unpacker: PageUnpacker::default(),
            packed: vec![0; page].into_boxed_slice(),
            repacked: vec![0; page].into_boxed_slice(),
            slots: AlignedBuffer::new(page + SLOT),
            brought: Brought::default(),
            taker: Taker::ONCE,
        }
    }
}

/// The bytes that are put at once.
pub(super) fn piece(base: BasePage) -> usize {
    base.bytes().min(PIECE_MAX)
}
