//! A fork that was not announced: the child gets its own copy of everything that is not in its memory.
//!
//! The kernel holds the forking thread until the event is read, and gives us the child's descriptor. The child shares
//! what was resident; what was staged or stored is copied into it here, before its descriptor is closed and its memory is
//! its own. A child that faults meanwhile waits for exactly these copies. This module must never let a child run on
//! without its data.

use pagoda_core::entry::Backing;
use pagoda_linux::thread::yield_now;
use pagoda_linux::uffd::{Stop, Uffd};

use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::{Errno, StopReason};
use crate::fault::unreadable;
use crate::store::{Handle, Scratch, Store};
use crate::table::{Page, Span, Table, give};

impl Engine {
    /// Copies all that is out of the regions into the child behind `child`. With the gate held exclusively.
    pub(crate) fn serve_fork(&self, table: &Table, child: &Uffd, scratch: &mut Scratch) {
        self.counters.add(Counter::ChildrenUnmanaged, 1);
        let mut buffer = vec![0u8; table.entry_bytes()];
        for span in table.spans() {
            for index in span.indices(span.range(), table.entry_bytes()) {
                if span.entry(index).load(std::sync::atomic::Ordering::Acquire) != 0 {
                    let page = span.page(index, span.range(), table.entry_bytes());
                    self.copy_to_child(span, &page, child, &mut buffer, scratch);
                }
            }
        }
    }

    fn copy_to_child(
        &self,
        span: &Span,
        page: &Page,
        child: &Uffd,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) {
        let word = self.take(span.entries(), page.index);
        match word.backing() {
            Backing::None => return give(span.entry(page.index), word),
            Backing::Slot(slot) => {
                let slot = self.space.claim_slot(slot);
                buffer.copy_from_slice(self.space.bytes(&slot));
                self.space.release_slot(slot);
            }
            Backing::Handle(handle) => match self.store.get(Handle::from_bits(handle), 0, buffer, scratch) {
                Ok(()) => {}
                Err(error) => self.stop(unreadable(error)),
            },
        }
        for (from, to) in page.granules.without(word.resident()).runs() {
            let mut at = from;
            while at < to {
                let content = &buffer[at as usize * 4096..to as usize * 4096];
                let progress = self.space.fill_child(child, page.addresses(at, to), content);
                at += (progress.bytes / 4096) as u32;
                match progress.stop {
                    None => {}
                    // The child itself changes its mappings: what it discards or unmaps it gets no copy of.
                    Some(Stop::Again) => {
                        child.read(|_| {});
                        yield_now();
                    }
                    // The child has it, or has no such memory (madvise DONTFORK), or is gone.
                    Some(Stop::Exists | Stop::Missing) => at += 1,
                    Some(Stop::Gone) => break,
                    Some(Stop::Busy | Stop::Refused | Stop::NoMemory) => {
                        self.stop(StopReason::FillRefused(Errno::NONE))
                    }
                }
            }
        }
        self.counters
            .add(Counter::BroughtBackBytes, u64::from(page.granules.without(word.resident()).count()) * 4096);
        give(span.entry(page.index), word);
    }
}
