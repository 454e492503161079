//! A model check of concurrent threads on one entry: the busy bit, the gate, the events, the queue
//! of staged pages, the pins, and the end of management.
//!
//! The threads here are shuttle's: it chooses which thread runs at each atomic operation and lock,
//! and finds the interleaving that breaks an assertion, deadlocks, or takes more steps than any
//! right one. The real `Word` is between them; the kernel is a lock around its state. As in
//! `entry_sim`, each rule is also left out once and the check must fail.

use std::collections::VecDeque;

use super::support::{fails, holds};
use pagoda_core::page_entry::{Backing, Granules, Word};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex, RwLock};
use shuttle::thread::{self, yield_now};

const PAGE: Granules = Granules::range(0, 1);

/// The rule of the protocol that is left out.
#[derive(Clone, Copy, Default)]
struct Without {
    gate_around_reading: bool,
    giving_back_before_the_gate: bool,
    check_under_the_gate: bool,
}

#[derive(Default)]
struct Kernel {
    present: Option<u32>,
    slots: [Option<u32>; 2],
    /// A discard was begun, and its event is not read.
    unread: bool,
    fault: bool,
    registered: bool,
}

struct Engine {
    without: Without,
    gate: RwLock<()>,
    entry: AtomicU64,
    kernel: Mutex<Kernel>,
    empty: Mutex<Vec<u32>>,
    queue: Mutex<VecDeque<u32>>,
    store: Mutex<Vec<Option<u32>>>,
    /// Movers that hold the entry: never more than one.
    owners: AtomicUsize,
    released: AtomicBool,
    done: AtomicBool,
}

impl Engine {
    fn new(without: Without) -> Arc<Self> {
        Arc::new(Self {
            without,
            gate: RwLock::new(()),
            entry: AtomicU64::new(Word::EMPTY.bits()),
            kernel: Mutex::new(Kernel { registered: true, ..Kernel::default() }),
            empty: Mutex::new(vec![1, 0]),
            queue: Mutex::default(),
            store: Mutex::default(),
            owners: AtomicUsize::new(0),
            released: AtomicBool::new(false),
            done: AtomicBool::new(false),
        })
    }
    fn word(&self) -> Word {
        Word::from_bits(self.entry.load(Ordering::Acquire))
    }
    fn try_take(&self) -> Option<Word> {
        let word = self.word();
        let free = !word.is_busy()
            && self
                .entry
                .compare_exchange(word.bits(), word.busy().bits(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        free.then(|| {
            assert_eq!(self.owners.fetch_add(1, Ordering::SeqCst), 0, "one mover at a time");
            word
        })
    }
    fn give(&self, word: Word) {
        self.owners.fetch_sub(1, Ordering::SeqCst);
        self.entry.store(word.idle().bits(), Ordering::Release);
    }
    fn take(&self) -> Word {
        loop {
            if let Some(word) = self.try_take() {
                return word;
            }
            yield_now();
        }
    }

    /// Serves a fault. False: serve it again.
    fn serve(&self) -> bool {
        loop {
            let gate = self.gate.read().expect("no panic");
            let Some(word) = self.try_take() else { return false };
            if let Backing::Handle(handle) = word.backing() {
                let held = if self.without.giving_back_before_the_gate {
                    Some(gate)
                } else {
                    drop(gate);
                    None
                };
                let Some(slot) = self.empty.lock().expect("no panic").pop() else {
                    self.give(word);
                    return false;
                };
                let content = self.store.lock().expect("no panic")[handle as usize].take();
                let content = content.expect("a handle in an entry is not freed");
                self.kernel.lock().expect("no panic").slots[slot as usize] = Some(content);
                drop(held);
                // Left out: the entry is given back only after the gate was had again.
                let _again =
                    self.without.giving_back_before_the_gate.then(|| self.gate.read().expect("no panic"));
                self.give(word.with_backing(Backing::Slot(slot)));
                continue;
            }
            let mut kernel = self.kernel.lock().expect("no panic");
            if kernel.unread {
                drop(kernel);
                self.give(word);
                return false;
            }
            if kernel.present.is_some() {
                // It is there already.
                drop(kernel);
                self.give(word);
                return true;
            }
            let mut new = word.with_resident(PAGE);
            if let (Backing::Slot(slot), true) = (word.backing(), word.resident().is_empty()) {
                kernel.present = kernel.slots[slot as usize].take();
                assert!(kernel.present.is_some(), "a staged page is in its slot");
                drop(kernel);
                self.empty.lock().expect("no panic").push(slot);
                new = new.with_backing(Backing::None);
            } else {
                kernel.present = Some(0);
                drop(kernel);
            }
            self.give(new);
            return true;
        }
    }

    fn apply_discard(&self) {
        let word = self.take();
        match word.backing() {
            Backing::None => {}
            Backing::Slot(slot) => {
                self.kernel.lock().expect("no panic").slots[slot as usize] = None;
                self.empty.lock().expect("no panic").push(slot);
            }
            Backing::Handle(handle) => {
                assert!(self.store.lock().expect("no panic")[handle as usize].take().is_some(), "freed once");
            }
        }
        self.give(Word::EMPTY);
    }

    fn read(&self) -> (bool, bool) {
        let mut kernel = self.kernel.lock().expect("no panic");
        (std::mem::take(&mut kernel.fault), std::mem::take(&mut kernel.unread))
    }

    fn handler(&self) {
        let mut fault = false;
        while !self.done.load(Ordering::Acquire) {
            let early = self.without.gate_around_reading.then(|| self.read());
            {
                let _gate = self.gate.write().expect("no panic");
                let (new, discard) = early.unwrap_or_else(|| self.read());
                fault |= new;
                if discard {
                    self.apply_discard();
                }
            }
            if fault && self.serve() {
                fault = false;
            }
            yield_now();
        }
    }

    fn stage(&self) {
        let _gate = self.gate.read().expect("no panic");
        if self.released.load(Ordering::Acquire) && !self.without.check_under_the_gate {
            return;
        }
        let Some(word) = self.try_take() else { return };
        if word.resident().is_empty() || word.backing() != Backing::None {
            return self.give(word);
        }
        let Some(slot) = self.empty.lock().expect("no panic").pop() else { return self.give(word) };
        {
            let mut kernel = self.kernel.lock().expect("no panic");
            assert!(kernel.slots[slot as usize].is_none(), "an empty slot is empty");
            if kernel.unread || kernel.present.is_none() {
                drop(kernel);
                self.empty.lock().expect("no panic").push(slot);
                return self.give(word);
            }
            kernel.slots[slot as usize] = kernel.present.take();
        }
        self.give(word.with_resident(Granules::NONE).with_backing(Backing::Slot(slot)));
        // Queued after it is given back: the element may be stale when it arrives, and so may any
        // other.
        self.queue.lock().expect("no panic").push_back(slot);
    }

    fn store_oldest(&self) {
        let Some(slot) = self.queue.lock().expect("no panic").pop_front() else { return };
        let Some(word) = self.try_take() else { return };
        if word.backing() != Backing::Slot(slot) {
            return self.give(word);
        }
        let content = self.kernel.lock().expect("no panic").slots[slot as usize].take();
        let handle = {
            let mut store = self.store.lock().expect("no panic");
            store.push(Some(content.expect("a staged page is in its slot")));
            store.len() as u64 - 1
        };
        self.give(word.with_backing(Backing::Handle(handle)));
        self.empty.lock().expect("no panic").push(slot);
    }

    /// The program reads or writes the page.
    fn access(&self, write: Option<u32>) -> u32 {
        loop {
            {
                let mut kernel = self.kernel.lock().expect("no panic");
                if !kernel.registered && kernel.present.is_none() {
                    kernel.present = Some(0);
                }
                if let Some(content) = kernel.present {
                    kernel.present = Some(write.unwrap_or(content));
                    return content;
                }
                kernel.fault = true;
            }
            yield_now();
        }
    }

    fn discard(&self) {
        self.kernel.lock().expect("no panic").unread = true;
        while self.kernel.lock().expect("no panic").unread {
            yield_now();
        }
        self.kernel.lock().expect("no panic").present = None;
    }

    /// Brings the page back and ends the management, as before a fork.
    fn release(&self) {
        self.released.store(true, Ordering::Release);
        loop {
            if !self.serve() {
                yield_now();
                continue;
            }
            let _gate = self.gate.write().expect("no panic");
            let word = self.word();
            if !word.is_busy() && word.backing() == Backing::None {
                self.kernel.lock().expect("no panic").registered = false;
                return;
            }
        }
    }
}

fn program_and_engine(without: Without) {
    let engine = Engine::new(without);
    let mut threads = Vec::new();
    for _ in 0..2 {
        let engine = Arc::clone(&engine);
        threads.push(thread::spawn(move || engine.handler()));
    }
    for _ in 0..2 {
        let engine = Arc::clone(&engine);
        threads.push(thread::spawn(move || {
            for _ in 0..2 {
                engine.stage();
                engine.store_oldest();
            }
        }));
    }
    for round in 1..3 {
        engine.access(Some(round));
        assert_eq!(engine.access(None), round, "a write is not lost");
        engine.discard();
        assert_eq!(engine.access(None), 0, "discarded content does not come back");
    }
    engine.done.store(true, Ordering::Release);
    for thread in threads {
        thread.join().expect("no panic");
    }
}

#[test]
fn writes_last_discards_last_and_no_thread_hangs() {
    holds(|| program_and_engine(Without::default()));
}

#[test]
fn reading_an_event_outside_the_gate_brings_discarded_content_back() {
    fails(|| program_and_engine(Without { gate_around_reading: true, ..Without::default() }));
}

/// A page is fetched from the store for one thread while another discards it.
fn fetch_and_discard(without: Without) {
    let engine = Engine::new(without);
    engine.store.lock().expect("no panic").push(Some(7));
    engine.entry.store(Word::EMPTY.with_backing(Backing::Handle(0)).bits(), Ordering::Release);
    let threads = [
        thread::spawn({
            let engine = Arc::clone(&engine);
            move || {
                while !engine.serve() {
                    yield_now();
                }
            }
        }),
        thread::spawn({
            let engine = Arc::clone(&engine);
            move || engine.handler()
        }),
    ];
    engine.discard();
    assert_eq!(engine.access(None), 0, "discarded content does not come back");
    engine.done.store(true, Ordering::Release);
    for thread in threads {
        thread.join().expect("no panic");
    }
}

#[test]
fn a_fetch_and_a_discard_wait_for_each_other_only_in_turn() {
    holds(|| fetch_and_discard(Without::default()));
}

#[test]
fn asking_for_the_gate_with_a_busy_entry_hangs() {
    fails(|| fetch_and_discard(Without { giving_back_before_the_gate: true, ..Without::default() }));
}

fn release_and_reclaim(without: Without) {
    let engine = Engine::new(without);
    engine.kernel.lock().expect("no panic").present = Some(7);
    engine.entry.store(Word::EMPTY.with_resident(PAGE).bits(), Ordering::Release);
    let reclaimer = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || {
            for _ in 0..3 {
                // The reclaimer's own look, some steps before.
                if engine.released.load(Ordering::Acquire) {
                    return;
                }
                engine.stage();
                engine.store_oldest();
            }
        })
    };
    engine.release();
    assert_eq!(engine.access(None), 7, "all released content is there");
    reclaimer.join().expect("no panic");
    assert_eq!(engine.access(None), 7, "and stays there");
}

#[test]
fn nothing_is_moved_out_of_released_memory() {
    holds(|| release_and_reclaim(Without::default()));
}

#[test]
fn a_mover_that_looks_before_the_gate_empties_released_memory() {
    fails(|| release_and_reclaim(Without { check_under_the_gate: true, ..Without::default() }));
}

/// A thread pins its page and touches it; an evictor takes the entry and looks for pins.
fn pin_and_evict(is_held_while_moving: bool) {
    let engine = Engine::new(Without::default());
    engine.kernel.lock().expect("no panic").present = Some(7);
    engine.entry.store(Word::EMPTY.with_resident(PAGE).bits(), Ordering::Release);
    let pins = Arc::new(RwLock::new(false));
    let evictor = {
        let (engine, pins) = (Arc::clone(&engine), Arc::clone(&pins));
        thread::spawn(move || {
            let _gate = engine.gate.read().expect("no panic");
            let word = engine.try_take().expect("no other thread takes it before it is out");
            let look = pins.read().expect("no panic");
            if *look {
                return engine.give(word);
            }
            let _held = is_held_while_moving.then_some(look);
            let mut kernel = engine.kernel.lock().expect("no panic");
            kernel.slots[0] = kernel.present.take();
            drop(kernel);
            engine.empty.lock().expect("no panic").retain(|&slot| slot != 0);
            engine.give(word.with_resident(Granules::NONE).with_backing(Backing::Slot(0)));
        })
    };
    *pins.write().expect("no panic") = true;
    // Served by the handler, if it is swapped out.
    let handler = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || {
            while !engine.done.load(Ordering::Acquire) {
                if engine.kernel.lock().expect("no panic").fault && engine.serve() {
                    engine.kernel.lock().expect("no panic").fault = false;
                }
                yield_now();
            }
        })
    };
    engine.access(None);
    evictor.join().expect("no panic");
    assert_eq!(
        engine.kernel.lock().expect("no panic").present,
        Some(7),
        "a page that is pinned and touched stays"
    );
    engine.done.store(true, Ordering::Release);
    handler.join().expect("no panic");
}

#[test]
fn a_pinned_page_stays_if_no_pin_is_entered_between_look_and_move() {
    holds(|| pin_and_evict(true));
}

#[test]
fn a_look_that_ends_before_the_move_misses_a_pin() {
    fails(|| pin_and_evict(false));
}
