//! Sampling pages of local and remote zones, and demoting cold ones: what the policy of tiers asks
//! for (`pagoda_core::zone::tiering`).
//!
//! The reclaimer does it, once in a tick at most. A sample is staged as any page that is evicted. A
//! hot page is promoted by the fault that brings it back (`fault/staged.rs`). Only whole pages
//! without a stored copy change zones, and none of files. This module must never move a page that
//! another thread has taken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_core::zone::tiering::{Local, Seen, Tiering, is_cold};
use pagoda_linux::mem::range::PageRange;

use super::LOOK_BOUND;
use crate::engine::Engine;
use crate::frames::tier_notes::{Tier, tick};
use crate::frames::tiers::Moved;
use crate::state::hand::{Staged, Step};
use crate::stats::counters::Counter;
use crate::store::Scratch;
use crate::table::{Entries, Span, Table, give, try_take};

/// The most local pages that are remembered while they are away. One tick samples a sixteenth.
const AWAY_MOST: usize = 4096;

/// The warmth of a page that could not be moved: the next sample passes over it.
const WARMEST: u8 = 3;

/// The reclaimer's part of the tiers.
#[derive(Default)]
pub(crate) struct Looks {
    policy: Tiering,
    tick: u64,
    /// Where the sampling of each tier is.
    local: usize,
    remote: usize,
    is_round_over: bool,
    /// Pages of local zones that were staged, and when; oldest first.
    away: VecDeque<(Staged, u16)>,
}

impl Looks {
    /// Whether there is something to do in the next tick already.
    pub(crate) fn are_due_soon(&self) -> bool {
        self.tick > 0 && self.policy.is_busy()
    }
}

impl Engine {
    /// Looks at the tiers, if there are any and a tick has passed.
    pub(crate) fn look_at_tiers(&self, looks: &mut Looks, scratch: &mut Scratch) {
        let Some(tiers) = self.zones.tiers() else { return };
        let now = tick();
        if now == looks.tick || self.is_released() {
            return;
        }
        looks.tick = now;
        let (spare, frames) = self.local_frames();
        let seen = Seen { is_round_over: looks.is_round_over, ..tiers.take_seen() };
        let plan = looks.policy.look(now, &seen, &Local { frames, spare });
        tiers.may_promote(plan.promote);
        self.demote_cold(&mut looks.away, plan.demote);
        if !looks.policy.is_busy() {
            looks.away.clear();
        }
        looks.is_round_over = self.sample(Tier::Remote, &mut looks.remote, plan.sample_remote, None, scratch);
        self.sample(Tier::Local, &mut looks.local, plan.sample_local, Some(&mut looks.away), scratch);
    }

    /// Demotes up to `most` of the pages that were away long enough.
    fn demote_cold(&self, away: &mut VecDeque<(Staged, u16)>, mut most: u32) {
        while let Some((page, _)) = away.front().filter(|(_, since)| is_cold(tick() as u16, *since)) {
            if self.is_away(page) {
                if most == 0 || !self.demote(&page.entries, page.index, page.slot) {
                    return;
                }
                most -= 1;
            }
            away.pop_front();
        }
    }

    /// Whether a page is still where it was staged, by a look that may be outdated.
    fn is_away(&self, page: &Staged) -> bool {
        let word = page.entries.word(page.index);
        !word.is_busy() && word.backing() == Backing::Slot(page.slot) && word.resident().is_empty()
    }

    /// Demotes the page in `slot` to make room for a hot one, if it still is there, whole.
    pub(crate) fn demote(&self, entries: &Entries, index: usize, slot: u32) -> bool {
        let Some(word) = try_take(&entries[index]) else { return false };
        let is_whole = word.backing() == Backing::Slot(slot) && word.resident().is_empty();
        if is_whole && let Some(moved) = self.demote_staged(slot, true) {
            self.publish_moved(entries, index, word, moved);
            return true;
        }
        give(&entries[index], word);
        false
    }

    /// Demotes a staged page whose busy bit the caller has, before it is packed. False if no remote
    /// zone has a frame to spare: the caller still has the bit.
    pub(super) fn demote_before_packing(
        &self,
        entries: &Entries,
        index: usize,
        word: Word,
        slot: u32,
    ) -> bool {
        if !word.resident().is_empty() {
            return false;
        }
        let moved = self.demote_staged(slot, false);
        moved.map(|moved| self.publish_moved(entries, index, word, moved)).is_some()
    }

    fn publish_moved(&self, entries: &Entries, index: usize, word: Word, Moved { slot, left }: Moved) {
        give(&entries[index], word.with_backing(Backing::Slot(slot)));
        self.queue_staged(entries, index, slot);
        self.unstage(left);
    }

    /// Stages up to `most` pages of a tier, from where the last sample ended. Those that are staged
    /// already are entered in `away`, too. Whether it came to the last page.
    fn sample(
        &self,
        tier: Tier,
        from: &mut usize,
        mut most: u32,
        mut away: Option<&mut VecDeque<(Staged, u16)>>,
        scratch: &mut Scratch,
    ) -> bool {
        let mut looks = LOOK_BOUND;
        let mut has_wrapped = false;
        while most > 0 && looks > 0 && away.as_ref().is_none_or(|away| away.len() < AWAY_MOST) {
            let table = self.gate_shared();
            // As in `stage_next`.
            if self.is_released() || self.is_making_any_own() || table.order.deferred() > 0 {
                break;
            }
            let Some(span) = table.next_from(*from) else {
                if std::mem::replace(&mut has_wrapped, true) {
                    break;
                }
                *from = 0;
                continue;
            };
            let Some((first, count)) = self.next_sample(&table, span, tier, from, &mut looks, &mut away)
            else {
                continue;
            };
            let mut copied = Vec::new();
            let run = (count > 1).then(|| self.stage_run(&table, span, first, count, &mut copied)).flatten();
            let step = run.unwrap_or_else(|| self.stage_page(&table, span, first, &mut copied));
            for index in first..first + count {
                self.note_sample(span, index);
                if let Some(away) = &mut away {
                    self.enter_away(span, index, away);
                }
            }
            drop(table);
            // A copy came to a page since it was looked at.
            copied.into_iter().for_each(|out| _ = self.settle_copied(out, scratch));
            if step == Step::Again {
                break;
            }
            let count = count.min(most as usize) as u32;
            self.counters.add(Counter::ZonesSampled, count.into());
            most -= count;
        }
        has_wrapped
    }

    /// The next pages of a span that may be sampled together, from address `from` on.
    fn next_sample(
        &self,
        table: &Table,
        span: &Span,
        tier: Tier,
        from: &mut usize,
        looks: &mut usize,
        away: &mut Option<&mut VecDeque<(Staged, u16)>>,
    ) -> Option<(usize, usize)> {
        let entry_bytes = table.entry_bytes();
        let start = (*from).max(span.range().start());
        *from = span.range().end();
        if !span.movable.load(Ordering::Relaxed) || span.entries().file().is_some() {
            *looks = looks.saturating_sub(1);
            return None;
        }
        let rest = PageRange::new(start & !4095, span.range().end())?;
        let indices = span.indices(rest, entry_bytes);
        let last = indices.end;
        let address = |index| span.page(index, span.range(), entry_bytes).addresses(0, 1).start();
        for index in span.entries().used(indices) {
            if *looks == 0 {
                *from = address(index).max(start);
                return None;
            }
            *looks -= 1;
            if let Some(away) = away {
                self.enter_away(span, index, away);
            }
            let word = span.word(index);
            if word.warmth() == WARMEST && !word.is_busy() {
                // It could not be moved. If another thread changed it meanwhile, it is warm no
                // more.
                let cooler = word.with_warmth(WARMEST - 1);
                let (entry, bits) = (span.entry(index), word.bits());
                let _ = entry.compare_exchange(bits, cooler.bits(), Ordering::AcqRel, Ordering::Relaxed);
                continue;
            }
            if !self.may_sample(span, index, tier, entry_bytes)
                || self.leaves_huge(table, span, address(index))
            {
                continue;
            }
            let end = self.end_of_run(span, index, last, entry_bytes, |next| {
                self.may_sample(span, next, tier, entry_bytes)
            });
            // As many as one move takes: the next sample begins with the rest.
            let count = 1usize << (end - index).ilog2();
            *from = address(index + count - 1) + entry_bytes;
            return Some((index, count));
        }
        None
    }

    /// Whether a page of the span is in the region whole, without a copy, in a frame of this tier.
    fn may_sample(&self, span: &Span, index: usize, tier: Tier, entry_bytes: usize) -> bool {
        let word = span.word(index);
        let all = Granules::range(0, (entry_bytes / 4096) as u32);
        !word.is_busy()
            && word.resident() == all
            && word.backing() == Backing::None
            && !word.is_huge()
            && word.warmth() < WARMEST
            && self.zones.tier_of(word.zone()) == tier
            && span.page(index, span.range(), entry_bytes).granules == all
    }

    /// Notes that a page was staged to see whether it comes back, unless it is back already.
    fn note_sample(&self, span: &Span, index: usize) {
        let word = span.word(index);
        if let (Backing::Slot(slot), Some(tiers)) = (word.backing(), self.zones.tiers())
            && word.resident().is_empty()
        {
            tiers.note_sampled(slot);
        }
    }

    /// Remembers a page of a local zone that is staged whole.
    fn enter_away(&self, span: &Span, index: usize, away: &mut VecDeque<(Staged, u16)>) {
        let word = span.word(index);
        let Backing::Slot(slot) = word.backing() else { return };
        let is_local = self.zones.tier_of_slot(slot) == Tier::Local;
        if is_local && !word.is_busy() && word.resident().is_empty() && away.len() < AWAY_MOST {
            let since = self.zones.tiers().and_then(|tiers| tiers.since(slot)).unwrap_or(tick() as u16);
            away.push_back((Staged { entries: Arc::clone(span.entries()), index, slot }, since));
        }
    }
}
