//! Huge frames before they go into a region and after they left it: cleared, taken from the kernel,
//! given back to it.
//!
//! No gate is held here, nor any lock while a frame is cleared: who clears keeps nobody waiting but
//! the thread that asked. If all handlers are busy and somebody else has a fault, who clears gives
//! way to it within 256 KiB. (What the kernel clears it clears as one.) This module must never take
//! a frame that was used for one of zeroes.

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

/// What who wants a frame of zeroes gets.
pub(crate) enum Cleared {
    Frame(HugeSlot),
    /// It is being cleared, and other faults come first: ask again after them.
    Later,
    /// There is none.
    Nothing,
}

impl Engine {
    /// A frame of zeroes for who touches this byte, of the zone whose turn it is: one that is
    /// ready, one that was used and is cleared now, or one from the kernel.
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
                // By the byte: whoever rounds it down to less than a page has lost what was
                // touched.
                self.clear_in_fault(slot, begun, Target::of_address(at.byte(), FrameSize::HUGE).1)
            }
            None => self.frame_from_kernel(zone).map_or(Cleared::Nothing, Cleared::Frame),
        }
    }

    /// A frame of zeroes of a zone that is ready. Wakes who clears ahead when there are few.
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
        // What was begun for another fault goes on towards that one's target: it is the same bytes
        // that are left.
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

    /// Whether a message waits that no handler is free for, and this one is to read it. Who serves
    /// the fault of his own thread is no handler.
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

    /// Gives a frame, of which the slot holds `bytes`, back to the kernel. False if it has to stay:
    /// somebody who reads all of the process has pinned it, say.
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
                    // The kernel clears what was missing, and so does who takes a used frame. (How
                    // much of `bytes` went before the move stopped nobody tells.)
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
        // What is ready there may be pinned.
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
