//! Huge frames before they go into a region and after they left it: clearing them, taking them from
//! the kernel and giving them back.
//!
//! No gate is held here, nor any lock while a frame is cleared: a clear keeps only the thread
//! waiting that asked for it. If all handlers are busy and another fault comes, a clear yields to
//! it within 256 KiB. (The kernel clears a page as one.) This module must never take a used frame
//! for a zeroed one.

use std::sync::atomic::Ordering;

use pagoda_core::clear::{FrameSize, Order, Target};
use pagoda_core::page::HUGE_FRAME;
use pagoda_core::size::Bytes;
use pagoda_linux::arena::huge_arena::{GivenBack, HugeSlot};
use pagoda_linux::io::wait::Wait;
use pagoda_linux::process::thread::{now_ns, yield_now};
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::frames::huge_pool::Begun;
use crate::stats::counters::Counter;

/// The outcome of a request for a zeroed frame.
pub(crate) enum Cleared {
    Frame(HugeSlot),
    /// It is being cleared, and other faults come first: ask again after them.
    Later,
    /// There is none.
    Nothing,
}

impl Engine {
    /// A zeroed frame for a touch of this byte, of the zone in turn: a ready one, a used one that
    /// is cleared now, or one from the kernel.
    pub(crate) fn cleared_frame(&self, at: FaultAddress) -> Cleared {
        self.huge.note_asked();
        let Some(zone) = self.zone_for_huge() else { return Cleared::Nothing };
        let cleared = self.cleared_frame_of(zone, at);
        if let Cleared::Frame(_) = cleared {
            self.gave_huge(zone);
        }
        cleared
    }

    fn cleared_frame_of(&self, zone: usize, at: FaultAddress) -> Cleared {
        if let Some(slot) = self.ready_frame(zone) {
            self.counters.add(Counter::TakenClearedBytes, HUGE_FRAME as u64);
            return Cleared::Frame(slot);
        }
        match self.huge.take_used(&self.space, zone) {
            Some((slot, begun)) => {
                #[cfg(test)]
                self.clears.last_byte.store(at.byte(), Ordering::Relaxed);
                // By the byte: rounding down to a page would lose the touched line.
                self.clear_in_fault(slot, begun, Target::of_address(at.byte(), FrameSize::HUGE).1)
            }
            None => self.frame_from_kernel(zone).map_or(Cleared::Nothing, Cleared::Frame),
        }
    }

    /// A ready zeroed frame of a zone. Wakes the clearing thread when there are few.
    pub(crate) fn ready_frame(&self, zone: usize) -> Option<HugeSlot> {
        let slot = self.huge.take_zeroed(&self.space, zone)?;
        if self.huge.is_low(zone) {
            self.clear_bell.ring();
        }
        Some(slot)
    }

    fn clear_in_fault(&self, mut slot: HugeSlot, begun: Option<Begun>, target: Target) -> Cleared {
        let choice = || self.clears.choice.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
        let others = self.clears.now.fetch_add(1, Ordering::Relaxed);
        let chosen = || self.clearing.order.unwrap_or_else(|| choice().order(target.pages(), others));
        // A clear that was begun for another fault goes on towards that one's target: the same
        // bytes are left.
        let mut begun = begun.unwrap_or_else(|| Begun { order: chosen(), target, step: 0, took_ns: 0 });
        let begin = now_ns();
        let bytes = self.space.huge_bytes_mut(&mut slot);
        let rest =
            self.clearer.clear_on(bytes, begun.order, begun.target, begun.step, || self.is_handler_wanted());
        begun.took_ns += now_ns() - begin;
        self.clears.now.fetch_sub(1, Ordering::Relaxed);
        if let Some(step) = rest {
            self.counters.add(Counter::ClearsInterrupted, 1);
            self.huge.put_begun(&self.space, slot, Begun { step, ..begun });
            return Cleared::Later;
        }
        if self.clearing.order.is_none() {
            choice().note(begun.order, target.pages(), others, begun.took_ns);
        }
        #[cfg(test)]
        self.clears.last_target.store(begun.target.page(), Ordering::Relaxed);
        self.counters.add(Counter::ClearedInFaultBytes, HUGE_FRAME as u64);
        if begun.order == Order::Streaming {
            self.counters.add(Counter::ClearedStreamingBytes, HUGE_FRAME as u64);
        }
        Cleared::Frame(slot)
    }

    /// Whether a message waits, no handler is free for it, and this one is to read it. A thread
    /// that serves its own fault is no handler.
    fn is_handler_wanted(&self) -> bool {
        let serving = self.serving_since_ns.iter().filter(|since| since.load(Ordering::Relaxed) != 0);
        serving.count() >= self.handlers as usize
            && self.space.wait(0) == Wait::Ready
            && !self.clears.gives_way.swap(true, Ordering::Relaxed)
    }

    /// A fresh frame of a zone, which the kernel has cleared.
    pub(crate) fn frame_from_kernel(&self, zone: usize) -> Option<HugeSlot> {
        let (room, _) = self.zone_room_and_high(zone);
        if room < Bytes::new(HUGE_FRAME as u64) {
            return None;
        }
        let mut slot = self.huge.take_empty(&self.space, zone)?;
        // The ledger first: another thread may want the same room.
        self.ledger.took(HUGE_FRAME as i64);
        if self.space.populate_huge(&mut slot).is_err() {
            self.give_frame_back(slot, HUGE_FRAME);
            return None;
        }
        self.counters.add(Counter::KernelZeroedBytes, HUGE_FRAME as u64);
        Some(slot)
    }

    /// Gives a frame, of which the slot holds `bytes`, back to the kernel. False if it has to stay,
    /// because a reader of the process has pinned it, for example.
    pub(crate) fn give_frame_back(&self, mut slot: HugeSlot, bytes: usize) -> bool {
        loop {
            match self.space.give_back_huge(&slot) {
                GivenBack::All => break,
                // It is done in a moment.
                GivenBack::Busy => yield_now(),
                GivenBack::PartStays => {
                    // It is whole again, or becomes so when it is cleared: counted like any that
                    // was used. It may be one more than are kept ready; the slots of the arena
                    // bound them.
                    let _ = self.space.populate_huge(&mut slot);
                    let lacked_bytes = HUGE_FRAME - bytes;
                    self.ledger.took(lacked_bytes as i64);
                    // The kernel clears the missing part, and so does a taker of a used frame. (How
                    // much of `bytes` left before the move stopped is not known.)
                    self.counters.add(Counter::KernelZeroedBytes, lacked_bytes as u64);
                    self.counters.add(Counter::ClearedTwiceBytes, lacked_bytes as u64);
                    self.huge.put_used(&self.space, slot);
                    return false;
                }
            }
        }
        self.ledger.took(-(bytes as i64));
        self.counters.add(Counter::ReleasedBytes, bytes as u64);
        self.huge.put_empty(&self.space, slot);
        true
    }

    /// Gives a huge frame that is ready back to the kernel, of the zone that has most of them, so
    /// that base pages find room. False if there is none that can go.
    pub(crate) fn give_back_a_huge_frame(&self) -> bool {
        let fullest = self.huge.fullest();
        // A ready frame there may be pinned.
        self.give_back_a_huge_frame_of(fullest)
            || (0..self.zones.count()).any(|zone| zone != fullest && self.give_back_a_huge_frame_of(zone))
    }

    /// The same, of this zone.
    pub(crate) fn give_back_a_huge_frame_of(&self, zone: usize) -> bool {
        let used = self.huge.take_used(&self.space, zone).map(|(slot, _)| slot);
        let ready = used.or_else(|| self.huge.take_zeroed(&self.space, zone));
        ready.is_some_and(|slot| self.give_frame_back(slot, HUGE_FRAME))
    }
}

#[cfg(test)]
#[path = "huge_test.rs"]
mod tests;
