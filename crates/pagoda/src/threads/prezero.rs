//! The clearing thread: it makes zeroed frames ready for later faults, huge ones and base frames of
//! each zone.
//!
//! It runs only when a processor is idle, and takes no more than its share of one. Used frames come
//! first, then fresh ones from the kernel as long as there is plenty of room. Of both kinds only a
//! few are kept, and none before a fault has asked for one. Fresh base frames of 64 KiB are
//! contiguous where there may be many. A thread that runs so seldom must hold nothing that others
//! wait for. So this module must never have a lock while it clears, nor the gate at all, and asks
//! the zones for a turn's frames in one go.

use pagoda_core::budget;
use pagoda_core::clear::{FrameSize, Order, Target};
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::arena::Slot;
use pagoda_linux::process::thread::{cpu_ns, run_when_idle, sleep_us};

use crate::engine::Engine;
use crate::frames::pool::all_of_slot;
use crate::stats::counters::Counter;

/// How long it sleeps when there is nothing to do.
const IDLE_US: u32 = 100_000;

/// Base frames of one turn: up to 0.4 ms, after which it rests for its share.
const TURN_FRAMES: usize = 16;

impl Engine {
    /// Clears ahead until the engine ends.
    pub(crate) fn clear_ahead(&self) {
        run_when_idle();
        let percent = u64::from(self.clearing.ahead_percent.clamp(1, 100));
        while !self.is_quitting() {
            let begin = cpu_ns();
            if !self.clear_one_ahead() {
                self.clear_bell.sleep(IDLE_US);
                continue;
            }
            let used_ns = cpu_ns() - begin;
            self.counters.add(Counter::ClearingAheadNs, used_ns);
            let rest_us = used_ns * (100 - percent) / percent / 1000;
            if rest_us > 0 {
                sleep_us(u32::try_from(rest_us).unwrap_or(IDLE_US));
            }
        }
    }

    /// Clears a huge frame ahead, or some base frames. False if there is nothing to do.
    pub(crate) fn clear_one_ahead(&self) -> bool {
        if self.is_released() {
            return false;
        }
        let zones = || 0..self.zones.count();
        zones().any(|zone| self.clear_huge_ahead(zone)) || zones().any(|zone| self.clear_base_ahead(zone))
    }

    fn clear_huge_ahead(&self, zone: usize) -> bool {
        if !self.huge.wants_zeroed(zone) {
            return false;
        }
        if let Some((mut slot, _)) = self.huge.take_used(&self.space, zone) {
            // The first touch is not known yet.
            let target = Target::of_address(0, FrameSize::HUGE).1;
            self.clearer.clear(self.space.huge_bytes_mut(&mut slot), Order::Streaming, target);
            self.counters.add(Counter::ClearedAheadBytes, HUGE_FRAME as u64);
            self.huge.put_zeroed(&self.space, slot);
            return true;
        }
        let most = Bytes::new((self.huge.most(zone) * HUGE_FRAME) as u64);
        let (room, high) = self.zone_room_and_high(zone);
        if !self.huge.was_asked() || !budget::takes_ahead(room, most, high) {
            return false;
        }
        self.frame_from_kernel(zone).map(|slot| self.huge.put_zeroed(&self.space, slot)).is_some()
    }

    /// Gets some base frames of a zone ready, and says whether it did.
    fn clear_base_ahead(&self, zone: usize) -> bool {
        let entry_bytes = self.entry_bytes();
        let hands = self.zones.hands(zone);
        let most = budget::ready_base_most(self.zones.size(zone));
        let missing = (most.as_usize() / entry_bytes).saturating_sub(hands.zeroed()).min(TURN_FRAMES);
        if missing == 0 || !self.zones.was_asked() {
            return false;
        }
        let mut slots = hands.take_used(&self.space, missing);
        if slots.is_empty() {
            let (room, high) = self.zone_room_and_high(zone);
            if !budget::takes_ahead(room, most, high) {
                return false;
            }
            // All of a huge page, though less is missing.
            let whole = most.saturating_add(Bytes::new(HUGE_FRAME as u64));
            if most.as_usize() >= 2 * HUGE_FRAME
                && budget::takes_ahead(room, whole, high)
                && self.take_contiguous(zone)
            {
                return true;
            }
            slots = hands.take_empties(&self.space, missing);
            // The ledger first: another thread may want the same room.
            self.ledger.took((slots.len() * entry_bytes) as i64);
            let all = all_of_slot(&self.space);
            slots.iter_mut().for_each(|slot| self.take_zeroes_from_kernel(slot, all));
        } else {
            slots.iter_mut().for_each(|slot| self.clear_base_frame(slot));
        }
        let any = !slots.is_empty();
        hands.put_zeroed(&self.space, slots);
        any
    }

    fn clear_base_frame(&self, slot: &mut Slot) {
        let bytes = self.space.bytes_mut(slot);
        let target = Target::in_frame((bytes.len() / OS_PAGE) as u32, None).expect("its beginning");
        self.counters.add(Counter::ClearedAheadBytes, bytes.len() as u64);
        self.clearer.clear(bytes, Order::Streaming, target);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use pagoda_core::page::BasePage;
    use pagoda_linux::testing::skip::skip_without_moves;
    use pagoda_linux::testing::wait::until;

    use super::*;
    use crate::Manager;

    /// SCHED_IDLE, as sched(7) numbers it.
    const IDLE: &str = "5";

    /// How each thread that clears ahead in this process is scheduled.
    fn policies() -> Vec<String> {
        let threads = fs::read_dir("/proc/self/task").expect("threads").flatten();
        // A thread of another test may end meanwhile.
        let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        let policy = |stat: String| {
            let (name, fields) = stat.rsplit_once(") ")?;
            // The 41st field; the name is the second.
            name.ends_with("(pagoda-clear")
                .then(|| fields.split(' ').nth(41 - 3).unwrap_or("none").to_owned())
        };
        stats.filter_map(policy).collect()
    }

    #[test]
    fn the_clearing_thread_runs_when_no_other_does_and_keeps_to_its_share() {
        const PERCENT: u32 = 10;
        if skip_without_moves("frames that are cleared ahead") {
            return;
        }
        let builder = Manager::builder().budget(Bytes::mib(256)).base_page(BasePage::M2).user_mode_only(true);
        let begin = Instant::now();
        let manager = builder.tune(|tuning| tuning.clear_ahead(PERCENT)).build().expect("a manager");
        until("each of them is scheduled when a processor is idle", || {
            let policies = policies();
            !policies.is_empty() && policies.iter().all(|policy| policy == IDLE)
        });
        // Owners come and go, so that there is always something to clear.
        until("it has worked for a while", || {
            let region = manager.region(Bytes::mib(32)).create().expect("a region");
            (0..16).for_each(|frame| region.write_words(frame * HUGE_FRAME, &[1; 8]).expect("written"));
            drop(region);
            // It runs when no other thread does.
            std::thread::sleep(std::time::Duration::from_millis(1));
            manager.stats().clearing_ahead_ns > 20_000_000
        });
        // No time is asserted, but a share of it: whatever disturbs makes the rests longer. The
        // last turn may not have had its rest.
        let share = manager.stats().clearing_ahead_ns as f64 / begin.elapsed().as_nanos() as f64;
        assert!(share < 1.5 * f64::from(PERCENT) / 100.0, "{share}");
    }
}
