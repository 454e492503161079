//! Adoption of present memory as steps: `adopt` of the engine. Registered memory must never be
//! taken for all memory that is mapped by then.

use crate::fill::one;
use crate::kernel::{Coverage, Range};
use crate::table::give;
use crate::world::{World, step};

impl World {
    /// Adopts the mappings that an earlier look at the maps showed.
    pub async fn adopt(&self) {
        let mappings = self.kernel.borrow().mappings();
        for mapping in mappings {
            self.adopt_mapping(mapping).await;
        }
    }

    async fn adopt_mapping(&self, mapping: Range) {
        let mut start = mapping.start;
        while start < mapping.end {
            let _gate = self.gate_exclusive().await;
            let gaps = self.table.borrow().gaps(start..mapping.end);
            let Some(gap) = gaps.into_iter().next() else { break };
            start = gap.end;
            step().await;
            // All of it each time, whatever is entered of it.
            if !self.kernel.borrow_mut().register(gap.clone()) {
                continue;
            }
            step().await;
            if !self.may_enter(&gap) {
                continue;
            }
            let chunk = gap.start..gap.start + 1 + self.below(gap.len());
            start = chunk.end;
            self.table.borrow_mut().insert(chunk.clone(), |entries| self.is_queued(entries));
            self.note(|| format!("engine: adopt {chunk:?} of {gap:?}"));
            self.mark_present(chunk).await;
        }
    }

    /// Checked after registration: memory that was mapped since in a hole is not registered. While
    /// a mapping is changing, this may be the target of a move whose event is still to come.
    fn may_enter(&self, gap: &Range) -> bool {
        let is_quiet = || self.kernel.borrow().changing == 0 && !self.is_any_deferred();
        match self.kernel.borrow().coverage(gap) {
            Coverage::Parts if !self.without.coverage => {
                self.note_seen(|seen| seen.registered_in_part += 1);
                false
            }
            _ => is_quiet() || self.without.quiet_adoption,
        }
    }

    /// Marks the present pages of a range that was just entered, at the moment of its entry. A
    /// mapping that moves in between takes pages along that stay uncounted; that is not simulated
    /// here.
    async fn mark_present(&self, range: Range) {
        let is_present = |address: &usize| self.kernel.borrow().pages[*address].content.is_some();
        let present: Vec<usize> = range.filter(is_present).collect();
        for address in present {
            step().await;
            let page = self.table.borrow().page_at(address).expect("just inserted");
            let word = self.take(&page).await;
            let marked = one(page.granule_of(address)).without(word.resident());
            give(page.entry(), self.came(word, marked, self.zone_of_kernel_memory(word)));
        }
    }
}
