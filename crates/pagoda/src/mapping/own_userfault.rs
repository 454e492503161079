//! Ranges that the program registers with a userfaultfd of its own. Memory has one descriptor only.
//!
//! The range is brought back and unregistered, and the rest stays managed. The thread that asks
//! runs on a stack that may be managed, so that it can hold no lock of the engine: the watcher does
//! the work, and adopts nothing of the range until the thread has registered it. From then on the
//! kernel refuses to adopt it, for as long as the program keeps it registered. This module must
//! never end a registration while anything of the range is missing.

use pagoda_linux::mem::own_memory::not_own;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{ran_ns, sleep_us};

use crate::engine::Engine;
use crate::state::asked::Held;
use crate::threads::watcher::Watcher;

/// How long the watcher adopts nothing of a range that is in memory. A thread may leave in the
/// middle: by a jump out of a signal handler.
const HOLD_NS: u64 = 1_000_000_000;

/// How long a thread waits for another one's range.
const TURN_NS: u64 = 10_000_000_000;

impl Engine {
    /// Has the watcher bring back all of `range` and end its management, then runs `register` while
    /// nothing of it is adopted. False, and `register` did not run, if other threads were in the
    /// way for too long.
    pub(crate) fn while_given_back(&self, range: PageRange, register: impl FnOnce()) -> bool {
        let began = ran_ns();
        while !self.asked.ask(range) {
            if ran_ns() - began > TURN_NS {
                return false;
            }
            sleep_us(200);
        }
        while self.asked.is_asked() {
            sleep_us(200);
        }
        register();
        self.asked.is_over();
        true
    }

    /// On the watcher's thread: swaps in the range that was asked for.
    pub(crate) fn give_back_asked(&self, watcher: &mut Watcher) {
        if watcher.held.is_some_and(|held| ran_ns() > held.until_ns) {
            self.asked.is_over();
        }
        if !self.asked.is_held() {
            watcher.held = None;
        }
        if let Some(range) = self.asked.range() {
            self.leave_to_program(watcher, range);
            watcher.held = Some(Held { range, until_ns: ran_ns() + HOLD_NS });
            self.asked.is_back();
        }
    }

    fn leave_to_program(&self, watcher: &mut Watcher, range: PageRange) {
        let mut managed = Vec::new();
        {
            let table = self.gate_shared();
            let mut at = range.start();
            while let Some(span) = table.next_from(at).filter(|span| span.range().start() < range.end()) {
                managed.extend(range.intersection(span.range()));
                at = span.range().end();
            }
        }
        for part in managed {
            self.bring_back(part);
        }
        // What a managed mapping has grown by is registered without being in the table, and kept
        // out of children with the rest.
        if let Some(unforked) = &mut watcher.unforked {
            let _ = unforked.of_engine(|mapping| {
                let grown =
                    PageRange::new(mapping.start, mapping.end).and_then(|grown| grown.intersection(range));
                if let Some(grown) = grown {
                    not_own(grown, |part| self.space.set_forked(part, true));
                }
            });
        }
        // Unless a mapping that moves is on its way to this place, with pages that are out.
        let table = self.gate_exclusive();
        if table.next_from(range.start()).is_none_or(|span| span.range().start() >= range.end())
            && table.order.deferred() == 0
            && self.space.is_quiet()
        {
            // It fails where the range is not one that could be registered: the program's call
            // fails then, too.
            let _ = self.space.unregister(range);
        }
    }
}

impl Watcher {
    /// Whether the program is about to register a part of `range`.
    pub(crate) fn is_left_to_program(&self, range: PageRange) -> bool {
        self.held.is_some_and(|held| held.range.intersection(range).is_some())
    }
}
