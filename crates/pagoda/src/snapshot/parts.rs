//! Base pages of a stripe as a store has packed them: an image takes their parts of 4 KiB as they
//! are. They are unpacked all the same, since a block's digest is of its content; packing would
//! take several times as long. The parts of a page must never be given for other content.

use std::io;
use std::ops::Range;

use pagoda_core::page::OS_PAGE;
use pagoda_linux::codec::pack::{BLOCK, PageUnpacker, is_dense, place_of_block};
use pagoda_migrate::Room;

const _: () = assert!(BLOCK == OS_PAGE, "a part is an OS page");

/// The packed base pages of one stripe: no more bytes than it has.
#[derive(Default)]
pub(super) struct Parts {
    bytes: Vec<u8>,
    /// In order: their pages in the stripe, and their place in `bytes`.
    pages: Vec<(Range<u32>, Range<usize>)>,
    unpacker: PageUnpacker,
}

impl Parts {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.pages.clear();
    }

    /// Adds the base page that `pages` are, packed as a whole or in parts. Always true.
    pub(super) fn add(&mut self, pages: Range<u32>, packed: &[u8]) -> bool {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(packed);
        self.pages.push((pages, at..self.bytes.len()));
        true
    }

    /// Unpacks all of them into `room`.
    pub(super) fn unpack(&mut self, room: &mut Room) -> io::Result<()> {
        for (pages, at) in &self.pages {
            let unpacked = self.unpacker.unpack(&self.bytes[at.clone()], room.put(pages.clone()));
            unpacked.ok_or_else(|| io::Error::other("a stored page is damaged"))?;
        }
        Ok(())
    }

    /// The parts of these pages, if all have one.
    pub(super) fn of(&self, pages: Range<u32>) -> Option<Vec<&[u8]>> {
        pages.map(|page| self.part(page)).collect()
    }

    fn part(&self, page: u32) -> Option<&[u8]> {
        let index = self.pages.partition_point(|(pages, _)| pages.end <= page);
        let (pages, at) = self.pages.get(index).filter(|(pages, _)| pages.contains(&page))?;
        let packed = &self.bytes[at.clone()];
        if is_dense(packed) {
            return None;
        }
        let (at, len) = place_of_block(packed, pages.len() * OS_PAGE, (page - pages.start) as usize)?;
        packed.get(at..at + len)
    }
}
