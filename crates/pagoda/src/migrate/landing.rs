//! Receiving into frames: content is read from its channel to where it is not visible, checked
//! there, and moved to its place.
//!
//! All of a huge frame comes in one, on an empty place if the budget has room. Else base pages come
//! in ready frames, as far as there are any, and the rest by way of a buffer. Frames are filled
//! without any lock, for a sender may take its time: a channel holds the frames of one stripe. This
//! module must never show a byte that was not checked, nor keep a frame with other content than was
//! sent.

use std::io;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_bytes::RegionBytes;
use pagoda_migrate::Content;

use super::install::take_fresh;
use crate::engine::Engine;
use crate::frames::zones::Taker;
use crate::migrate::huge::HugeLanding;
use crate::stats::counters::Counter;
use crate::store::Scratch;
use crate::table::give;

/// Smaller frames are not received into: content that is read in smaller pieces comes by way of the
/// channel's buffer in any case.
const FRAME_LEAST: usize = 64 << 10;

impl Engine {
    /// Fills `range` of the region of `memory` with the content that `content` reads, once it was
    /// checked. `room` is for as much.
    pub(super) fn receive_content(
        &self,
        range: PageRange,
        content: &mut dyn Content,
        room: &mut [u8],
        memory: &RegionBytes,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        if let Some(mut landing) = self.huge_landing(range) {
            let read = content.read(self.landing_bytes(&mut landing)).and_then(|()| content.check());
            return match read {
                Ok(()) => self.land(landing, memory, scratch),
                Err(error) => {
                    self.put_back(landing);
                    Err(error)
                }
            };
        }
        let mut frames = if content.is_in_parts() { self.frames_for(range) } else { Vec::new() };
        let len = self.entry_bytes();
        let rest = &mut room[frames.len() * len..];
        let into_frames = frames.iter_mut().try_for_each(|slot| content.read(self.space.bytes_mut(slot)));
        let received = into_frames.and_then(|()| content.read(rest)).and_then(|()| content.check());
        let mut at = range.start();
        let mut placed = received;
        for slot in frames {
            // All go back, also where something has failed.
            placed = self.place_frame(PageRange::at(at, len), slot, placed, memory, scratch);
            at += len;
        }
        placed?;
        if let Some(behind) = PageRange::new(at, range.end()) {
            self.receive_pages(behind, rest, memory, scratch)?;
        }
        self.note_arrived(range);
        Ok(())
    }

    /// Moves a filled huge frame to its place, or puts its content there by base pages.
    pub(super) fn land(
        &self,
        landing: HugeLanding,
        memory: &RegionBytes,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        self.note_use();
        let Err(mut landing) = self.land_huge(landing) else { return Ok(()) };
        let placed = match landing.rest() {
            Some(rest) => self.receive_pages(rest, self.landing_bytes(&mut landing), memory, scratch),
            None => Ok(()),
        };
        self.put_back(landing);
        placed
    }

    /// Ready frames for the first base pages of `range`, as far as these are whole and hold
    /// nothing. None where frames are short: a stalled sender would keep them from faults.
    fn frames_for(&self, range: PageRange) -> Vec<Slot> {
        let len = self.entry_bytes();
        let enough = self.marks().high.saturating_add(Bytes::new(range.len() as u64));
        if len < FRAME_LEAST || self.free() < enough {
            return Vec::new();
        }
        let table = self.gate_shared();
        let Some(span) = table.find(range.start()) else { return Vec::new() };
        let all = Granules::range(0, (len / OS_PAGE) as u32);
        let is_free =
            |index: &usize| span.page(*index, range, len).granules == all && span.word(*index) == Word::EMPTY;
        let free = span.indices(range, len).take_while(is_free);
        let mut frames: Vec<_> = free.map_while(|_| self.take_whole_ready(Taker::ONCE)).collect();
        for slot in &frames {
            self.receiving(self.zones.of_slot(slot.index()), len as i64);
        }
        // Other channels may have taken theirs at the same time.
        if self.free() < self.marks().high {
            frames.drain(..).for_each(|slot| self.put_frame(slot, 0));
        }
        frames
    }

    /// A frame that was received into has `moved` bytes elsewhere now; its rest is ready again.
    fn put_frame(&self, slot: Slot, moved: usize) {
        let (zone, len) = (self.zones.of_slot(slot.index()), self.entry_bytes());
        let left = Granules::range((moved / OS_PAGE) as u32, (len / OS_PAGE) as u32);
        self.zones.put_pieces(&self.space, slot, left);
        self.receiving(zone, -(len as i64));
    }

    /// Moves a frame to the base page that it was `filled` for, or copies its content there.
    fn place_frame(
        &self,
        at: PageRange,
        slot: Slot,
        filled: io::Result<()>,
        memory: &RegionBytes,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let moved = if filled.is_ok() { self.move_to_page(at, &slot) } else { 0 };
        let placed = filled.and_then(|()| match PageRange::new(at.start() + moved, at.end()) {
            Some(rest) => self.receive_pages(rest, &self.space.bytes(&slot)[moved..], memory, scratch),
            None => Ok(()),
        });
        self.put_frame(slot, moved);
        placed
    }

    /// Moves a frame to a base page that holds nothing. Returns how many of its bytes are there
    /// now.
    fn move_to_page(&self, at: PageRange, slot: &Slot) -> usize {
        let table = self.gate_shared();
        let Some(span) = table.find(at.start()).filter(|_| table.order.deferred() == 0) else { return 0 };
        let page = span.page(table.page_at(span, at.start()).index, at, at.len());
        let Some(word) = take_fresh(span.entry(page.index)) else { return 0 };
        let is_free = word == Word::EMPTY && page.granules.count() as usize * OS_PAGE == at.len();
        let moved = if is_free { self.move_frame(&page, slot).bytes } else { 0 };
        let came = Granules::range(0, (moved / OS_PAGE) as u32);
        let word = if moved > 0 { self.came_in(word, came, self.zones.of_slot(slot.index())) } else { word };
        give(span.entry(page.index), word);
        self.counters.add(Counter::ArrivedMovedBytes, moved as u64);
        moved
    }
}

#[cfg(test)]
#[path = "landing_test.rs"]
mod tests;
