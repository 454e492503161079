//! One look at all mappings: which ones are adopted, which are left alone and why, and which
//! managed ones have become immovable.
//!
//! The counts are those of the program's maps at the moment. This module must never touch the
//! mapped memory.

use std::sync::atomic::Ordering;

use pagoda_core::adopt::{Decision, MappingFacts, Reason, Situation, decide, executable_pays, is_code};
use pagoda_core::budget;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::own_memory::not_own;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::now_ns;
use pagoda_linux::procfs::maps::{Mapping, MappingKind};
use pagoda_linux::procfs::pagemap::{PagemapScanner, Presence};

use crate::engine::Engine;
use crate::stats::counters::Counter;
use crate::threads::watcher::{KNOWN_MOST, Known, LOCKED_MOST, UNFORKED_MOST, Watcher};

/// The time between two looks at locked and shared mappings. These grow by the program's own calls
/// alone, and a walk may take milliseconds.
const APART_NS: u64 = 500_000_000;

/// How much of `range` is present, without the kernel's page of zeros. None if the kernel does not
/// say.
fn populated_bytes(present: &mut PagemapScanner, range: PageRange) -> Option<u64> {
    let mut populated = 0;
    let count = |run: std::ops::Range<usize>, presence| {
        if presence == Presence::Memory {
            populated += run.len() as u64;
        }
    };
    present.populated_runs(range.start(), range.end(), count).ok()?;
    Some(populated)
}

impl Watcher {
    /// In how many looks before this one the mapping that starts there was seen; notes that it was
    /// in this one.
    fn looks_before(&mut self, start: usize) -> u32 {
        let looks = match self.known_before.binary_search_by_key(&start, |known| known.start) {
            Ok(at) => self.known_before[at].looks + 1,
            Err(_) if self.known.len() == KNOWN_MOST => 1,
            Err(_) => 0,
        };
        if self.known.len() < KNOWN_MOST {
            self.known.push(Known { start, looks });
        }
        looks
    }

    /// Remembers the locked mappings until the next look.
    fn look_at_locked(&mut self) {
        self.locked_ranges.clear();
        let ranges = &mut self.locked_ranges;
        // A mapping that could not be read is taken for not locked: then the kernel refuses to move
        // it.
        let _ = self.locked.for_each(|mapping| {
            if ranges.len() < LOCKED_MOST {
                ranges.extend(PageRange::new(mapping.start, mapping.end));
            }
        });
    }

    /// Remembers the mappings that the program keeps out of its children, before any of them is
    /// adopted.
    fn look_at_unforked(&mut self) {
        self.unforked_ranges.clear();
        let (reader, ranges) = (&mut self.unforked, &mut self.unforked_ranges);
        let Some(reader) = reader else { return };
        self.unforked_calls = pagoda_linux::mem::unforked::Calls::look();
        // A mapping that could not be read is adopted, and children get it.
        let _ = reader.of_program(|mapping| {
            if ranges.len() < UNFORKED_MOST {
                ranges.extend(PageRange::new(mapping.start, mapping.end));
            }
        });
    }
}

/// Whether any of `ranges`, which lie lowest address first, has a part of `range`.
fn overlaps(ranges: &[PageRange], range: PageRange) -> bool {
    let at = ranges.partition_point(|one| one.end() <= range.start());
    ranges.get(at).is_some_and(|one| one.start() < range.end())
}

impl Engine {
    pub(crate) fn look_at_maps(&self, watcher: &mut Watcher, pressure: bool) {
        self.counters.add(Counter::MapScans, 1);
        let Some(mut maps) = watcher.maps.take() else { return };
        let now = now_ns();
        let apart = now - watcher.apart_ns > APART_NS;
        if apart {
            watcher.apart_ns = now;
            watcher.look_at_locked();
        }
        watcher.look_at_unforked();
        let mut shared_bytes = 0;
        watcher.left = [0; Reason::ALL.len()];
        watcher.kept = [0; Reason::ALL.len()];
        watcher.left_registered = 0;
        watcher.followed = 0;
        let (known, before) = (&mut watcher.known, &mut watcher.known_before);
        std::mem::swap(known, before);
        known.clear();
        // Adoption changes no mapping, only the kernel's flags of it.
        let read = maps.for_each(|mapping| {
            let Some(range) = PageRange::new(mapping.start, mapping.end) else { return };
            if mapping.is_private_anonymous() {
                let looks = watcher.looks_before(mapping.start);
                not_own(range, |part| self.look_at_mapping(watcher, mapping, part, looks, pressure));
            } else if apart && mapping.shared && mapping.kind == MappingKind::SharedMemory {
                shared_bytes += populated_bytes(&mut watcher.present, range).unwrap_or(0);
            }
        });
        watcher.maps = Some(maps);
        if read.is_err() {
            // Without the maps nothing new can be adopted. Managed memory stays so, and the counts
            // of the rest are not known.
            return;
        }
        self.ledger.set_followed(watcher.followed);
        if apart {
            self.counters.set(Counter::LeftSharedBytes, shared_bytes);
        }
        let left = |reason: Reason| watcher.left[reason as usize] + watcher.kept[reason as usize];
        let executable = Bytes::new(left(Reason::Executable));
        if !self.space.moves_executable()
            && executable_pays(executable, self.marks().budget())
            && self.space.allow_executable()
        {
            self.look_soon.store(true, Ordering::Relaxed);
        }
        let unwritable = left(Reason::ReadOnly) + left(Reason::NoAccess);
        self.counters.set(Counter::LeftReadonlyBytes, unwritable);
        self.counters.set(Counter::LeftExecutableBytes, left(Reason::Executable));
        self.counters.set(Counter::LeftLockedBytes, left(Reason::Locked));
        self.counters.set(Counter::LeftUnforkedBytes, left(Reason::Unforked));
        self.counters.set(Counter::LeftRegisteredBytes, watcher.left_registered);
        self.counters.set(Counter::LeftSmallBytes, left(Reason::Small) + left(Reason::Young));
        self.counters.set(Counter::LeftThreadBytes, self.pins.bytes());
        let unmanaged = watcher.left.iter().sum::<u64>() + watcher.left_registered;
        self.counters.set(Counter::UnmanagedBytes, unmanaged);
        // Memory that is neither the program's nor holds its content.
        let own = self.ledger.held_bytes().saturating_sub(self.managed_frames_bytes() + unmanaged);
        self.counters.set(Counter::OwnBytes, own);
        self.counters.set(Counter::TableBytes, self.table_bytes());
    }

    fn look_at_mapping(
        &self,
        watcher: &mut Watcher,
        mapping: &Mapping,
        range: PageRange,
        looks: u32,
        pressure: bool,
    ) {
        let mut gaps: Vec<PageRange> = Vec::new();
        let mut managed: Vec<PageRange> = Vec::new();
        let locked = overlaps(&watcher.locked_ranges, range);
        let unforked = overlaps(&watcher.unforked_ranges, range);
        {
            let table = self.gate_shared();
            table.gaps(range, |gap| gaps.push(gap));
            let is_code = is_code(mapping.write, mapping.execute, self.space.moves_executable());
            let movable = mapping.read && mapping.write && !is_code && !locked;
            let mut at = range.start();
            while let Some(span) = table.next_from(at).filter(|span| span.range().start() < range.end()) {
                // Of a span with several protections the parts that can't be moved are found out
                // one by one.
                let whole = range.intersection(span.range()) == Some(span.range());
                if whole || movable {
                    span.movable.store(movable, Ordering::Relaxed);
                }
                if !movable {
                    managed.extend(range.intersection(span.range()));
                }
                at = span.range().end();
            }
        }
        let (marks, executable) = (self.marks(), self.space.moves_executable());
        let follows = self.follows.load(Ordering::Relaxed);
        let room = budget::outrun_from(self.free(), &marks, follows);
        let situation = Situation { pressure, budget: marks.budget(), room, base: self.base, executable };
        let facts = |part: PageRange, populated: u64| MappingFacts {
            length: Bytes::new(part.len() as u64),
            populated: Some(Bytes::new(populated)),
            read: mapping.read,
            write: mapping.write,
            execute: mapping.execute,
            shared: mapping.shared,
            anonymous: true,
            locked,
            unforked,
            own: false,
            main_stack: mapping.kind == MappingKind::MainStack,
            age_scans: looks,
            holds_thread_control_block: self.pins.overlaps(part),
        };
        for gap in gaps {
            let Some(populated) = populated_bytes(&mut watcher.present, gap) else { continue };
            let facts = facts(gap, populated);
            match decide(&facts, &situation) {
                // The new part of a managed mapping that grew is registered like the rest of it.
                Decision::Adopt if follows && gap == range && !facts.exceeds(room) => {
                    watcher.followed += populated;
                }
                Decision::Adopt if watcher.is_left_to_program(gap) => watcher.left_registered += populated,
                Decision::Adopt => {
                    let calls = watcher.unforked.is_some().then_some(watcher.unforked_calls);
                    let not = self.adopt(&mut watcher.present, gap, calls);
                    let registered = not.registered_bytes.min(populated);
                    let refused = not.refused_bytes.min(populated - registered);
                    watcher.left_registered += registered;
                    // The next look tries again.
                    watcher.left[Reason::Young as usize] += refused;
                }
                Decision::Leave(reason) => watcher.left[reason as usize] += populated,
            }
        }
        for part in managed {
            let Some(populated) = populated_bytes(&mut watcher.present, part) else { continue };
            if let Decision::Leave(reason) = decide(&facts(part, populated), &situation)
                && !reason.is_passing()
            {
                watcher.kept[reason as usize] += populated;
            }
        }
    }
}
