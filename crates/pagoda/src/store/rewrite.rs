//! Written blocks of a stored page, put in the place of the old ones.
//!
//! A page of which one OS page was used and written would be read, packed and written anew, all of
//! it. Where each new block takes as many units as the old one, it is written over that.
//!
//! The caller has the busy bit of the page's entry, so that nothing reads the object meanwhile but
//! a mover. A mover copies without a lock, and looks at the object's word alone to see a change: so
//! this module must never write to an object that is moving, nor without the memory lock, with
//! which a move begins. It must never touch an object that is in another tier, too: the other copy
//! would be out of date.

use std::ops::Range;
use std::sync::atomic::Ordering;

use pagoda_linux::codec::pack::{
    BLOCK, header_bytes, pack_block, place_of_block, room as units_of, set_length,
};

use super::handle::Meaning;
use super::objects::{DENSE, Kind, MOVING, Object, QUEUED, Word};
use super::{Handle, Scratch, TieredStore};

/// A block that was packed anew.
#[derive(Clone, Copy, Default)]
struct Anew {
    block: usize,
    /// Its place among the object's bytes, and in the buffer.
    at: usize,
    from: usize,
    len: usize,
    room: usize,
}

/// The blocks of a page.
const BLOCKS_MOST: usize = 16;

impl TieredStore {
    /// Replaces the `changed` runs of a stored page, which are whole blocks of `content`, in their
    /// place. False, and nothing has changed, where that is not possible.
    pub(crate) fn rewrite(
        &self,
        handle: Handle,
        changed: &[Range<usize>],
        content: &[u8],
        scratch: &mut Scratch,
    ) -> bool {
        // A page of one block is stored anew in one piece; its block has no aligned place.
        if self.page_bytes() <= BLOCK {
            return false;
        }
        let Meaning::Object(id) = handle.meaning() else { return false };
        let Some(object) = self.table.get(id) else { return false };
        let word = object.word();
        if !may_be_rewritten(object, word) || !object.enter(word) {
            return false;
        }
        let Scratch { packed, repacked, packer, .. } = scratch;
        let header = &mut packed[..header_bytes(self.page_bytes())];
        self.memory.read(word.first(), 0..header.len(), header);
        object.leave();
        let mut anew = [Anew::default(); BLOCKS_MOST];
        let (mut count, mut filled) = (0, 0);
        for block in changed.iter().flat_map(|run| run.start / BLOCK..run.end.div_ceil(BLOCK)) {
            let Some((at, old)) = place_of_block(header, self.page_bytes(), block) else { return false };
            let Some(into) = repacked.get_mut(filled..) else { return false };
            let Some(len) = pack_block(&content[block * BLOCK..][..BLOCK], into, packer) else {
                return false;
            };
            let room = units_of(len, self.page_bytes());
            if room != units_of(old, self.page_bytes()) || filled + room > repacked.len() {
                return false;
            }
            repacked[filled + len..filled + room].fill(0);
            anew[count] = Anew { block, at, from: filled, len, room };
            (count, filled) = (count + 1, filled + room);
        }
        for one in &anew[..count] {
            set_length(header, one.block, one.len);
        }
        let mut state = self.memory.lock();
        let now = object.word();
        // A move changes its place, and no content.
        if now.len() != word.len() || !may_be_rewritten(object, now) || now.readers() > 0 {
            return false;
        }
        for one in &anew[..count] {
            self.memory.overwrite(now.first(), one.at, &repacked[one.from..one.from + one.room]);
        }
        self.memory.overwrite(now.first(), 0, header);
        object.digest.store(0, Ordering::Relaxed);
        // It is as young as one that is put now.
        if now.has(QUEUED) {
            state.queue(now).remove(&self.table, id);
            state.queue(now).push_youngest(&self.table, id);
        }
        state.puts += 1;
        drop(state);
        self.blocks.forget(id);
        for run in changed {
            self.contents.note(id, run.start, &content[run.clone()], self.content_digester());
        }
        true
    }
}

fn may_be_rewritten(object: &Object, word: Word) -> bool {
    let elsewhere = word.has(MOVING) || word.has(DENSE) || word.raw() || object.is_kept();
    word.kind() == Kind::Memory && !elsewhere
}

#[cfg(test)]
#[path = "rewrite_test.rs"]
mod tests;
