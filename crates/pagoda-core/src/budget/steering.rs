//! Steering of the kernel's own swapping: the limit of a memory group, and the compressed swap
//! behind it, so that both together stay within a budget.
//!
//! The group's limit does not cover the memory that its compressed pages take. So the limit falls
//! as that memory grows, and rises as it shrinks. The first swap device is so large that it keeps
//! to the budget even if nothing compresses; more are added as the ratio allows, before the present
//! ones are full, so that no page goes to the file that has room in memory. If the content gets
//! less compressible later, the newest device is given up. The kernel lets a limit fall only below
//! what is in use, and a program that takes memory meanwhile is faster than that: so it is held
//! until the limit has fallen. This module must never measure: the
//! caller passes sizes and times.

use crate::size::Bytes;

/// A budget leaves one part in this to memory that is not compressed, as the engine does.
const WORKING_SHARE: u64 = 5;

/// Compressed memory grows between two looks. The limit leaves one part in this of the budget for
/// that, within [`LEAD_LEAST`] and [`LEAD_MOST`].
const LEAD_SHARE: u64 = 64;
const LEAD_LEAST: u64 = 1 << 20;
const LEAD_MOST: u64 = 8 << 20;

/// The limit rises once it may rise by one part in this of the budget: else it would follow each
/// page to and fro.
const RISE_SHARE: u64 = 32;

/// Thousandths of its content that a full device takes if nothing compresses: such pages are kept
/// as they are, beside the allocator's own memory.
const INCOMPRESSIBLE: u64 = 1020;

/// Thousandths by which the ratio of later content may be worse than that of the present content.
const CAUTION: u64 = 1040;

/// Content by which a ratio is known.
const KNOWN_BY: u64 = 4 << 20;

/// No budget takes more content than so many times itself: zeroes would have no bound.
const CONTENT_MOST: u64 = 16;

/// A program that is held is let go once the limit has not fallen for so long.
const STANDING_MOST_US: u64 = 50_000;

/// Devices, and files: the kernel has about 23 swap areas for all.
const AREAS_MOST: usize = 6;

/// The first swap file, as so many times the budget. A further one is as large as all before.
const FILE_FIRST: u64 = 3;
const FILE_LEAST: u64 = 256 << 20;

/// A program that has waited so long for memory that can't be had is ended.
const PATIENCE_US: u64 = 10_000_000;

/// A program that the kernel holds goes on when a limit rises: by so much, within the lead.
const WAKING: u64 = 1 << 20;

/// The first looks: shorter ones cost more than a hundredth of a processor.
const LOOK_LEAST_US: u64 = 1_000;
/// Swapping goes on.
const LOOK_SWAPPING_US: u64 = 2_000;
/// At the limit, and no page moves.
const LOOK_CALM_US: u64 = 5_000;
/// Far below the limit.
const LOOK_MOST_US: u64 = 10_000;
/// Two processors that do nothing else populate so many bytes in a microsecond.
const POPULATED_PER_US: u64 = 4 << 10;

/// The state at a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// The memory that the group holds.
    pub group: Bytes,
    /// The limit of the group, which may not have fallen as far as it was ordered.
    pub limit: Bytes,
    /// The memory that compressed pages take.
    pub zram_memory: Bytes,
    /// The content of compressed pages.
    pub zram_content: Bytes,
    /// Used slots of the devices.
    pub zram_used: Bytes,
    /// Used slots of the files.
    pub file_used: Bytes,
    /// The kernel holds processes of the group until memory is free.
    pub is_paused: bool,
    /// Microseconds since the look before.
    pub since_us: u64,
}

/// The change to the swap areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Areas {
    /// They are right.
    Keep,
    /// One more device, before the others are full.
    AddZram(Bytes),
    /// One more file.
    AddFile(Bytes),
    /// The newest device goes.
    DropZram,
}

/// The changes to make after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// The limit of the group.
    pub limit: Bytes,
    /// The program is held from before the changes until a look that does not say so.
    pub holds: bool,
    /// The change to the swap areas, to be made after that of the limit.
    pub areas: Areas,
    /// The kernel holds the program, and there is room to swap: it goes on once this limit, which
    /// is a little higher, is set after the changes.
    pub wakes_by: Option<Bytes>,
    /// Nothing more can be had, and the program has waited long enough.
    pub gives_up: bool,
    /// Microseconds to the next look.
    pub look_after_us: u64,
}

/// The policy of one run.
#[derive(Clone, Debug)]
pub struct Steering {
    budget: u64,
    file_most: u64,
    limit: u64,
    devices: Vec<u64>,
    files: Vec<u64>,
    zram_fails: bool,
    file_fails: bool,
    /// There was no memory for the content of the newest device.
    drop_fails: bool,
    zram_before: u64,
    paused_us: u64,
    is_held: bool,
    /// The limit at the look before, and the time since it fell.
    held_limit: u64,
    standing_us: u64,
    /// The excess of the limit where it could not fall.
    stuck_excess: u64,
}

impl Steering {
    /// A run within `budget`, with at most `file_most` of swap files.
    #[must_use]
    pub fn new(budget: Bytes, file_most: Bytes) -> Self {
        let budget = budget.get();
        Self {
            budget,
            file_most: pages(file_most.get()),
            limit: pages(budget - lead(budget)),
            devices: Vec::new(),
            files: Vec::new(),
            zram_fails: false,
            file_fails: false,
            drop_fails: false,
            zram_before: 0,
            paused_us: 0,
            is_held: false,
            held_limit: 0,
            standing_us: 0,
            stuck_excess: 0,
        }
    }

    /// The limit of the group now.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        Bytes::new(self.limit)
    }

    /// The least limit.
    #[must_use]
    pub fn floor(&self) -> Bytes {
        Bytes::new(pages(self.budget / WORKING_SHARE))
    }

    /// The first device. Full of content that does not compress it leaves the least limit.
    #[must_use]
    pub fn first_zram(&self) -> Bytes {
        Bytes::new(self.content_at(INCOMPRESSIBLE))
    }

    /// The first file; zero if there may be none.
    #[must_use]
    pub fn first_file(&self) -> Bytes {
        Bytes::new(pages((self.budget * FILE_FIRST).max(FILE_LEAST).min(self.file_most)))
    }

    /// An area was added as ordered, or could not be, if its size is zero. Then no other of its
    /// kind is asked for.
    pub fn added(&mut self, areas: Areas, bytes: Bytes) {
        // Its content may have more room now.
        self.drop_fails &= bytes == Bytes::ZERO;
        let (kind, fails) = match areas {
            Areas::AddZram(_) => (&mut self.devices, &mut self.zram_fails),
            Areas::AddFile(_) => (&mut self.files, &mut self.file_fails),
            Areas::Keep | Areas::DropZram => return,
        };
        match bytes {
            Bytes::ZERO => *fails = true,
            bytes => kind.push(bytes.get()),
        }
    }

    /// The newest device is gone, or there is no memory for its content. Then it is asked for again
    /// only when another area was added: the program is held while it is tried.
    pub fn dropped(&mut self, is_gone: bool) {
        self.drop_fails = !is_gone;
        if is_gone {
            self.devices.pop();
        }
    }

    /// Decides by a look. The caller sets the limit, then changes the areas and says so by
    /// [`added`](Self::added) or [`dropped`](Self::dropped).
    pub fn look(&mut self, sight: &Sight) -> Orders {
        let zram = sight.zram_memory.get();
        let grown = zram.saturating_sub(self.zram_before);
        let moved = zram.abs_diff(self.zram_before);
        self.zram_before = zram;
        let floor = self.floor().get();
        let target = self.target(zram, grown);
        if target < self.limit || target >= self.limit + self.budget / RISE_SHARE {
            self.limit = target.max(floor);
        }
        let holds = self.holds(sight);
        self.paused_us = if sight.is_paused { self.paused_us + sight.since_us } else { 0 };
        let areas = self.areas(sight);
        let is_lost = areas == Areas::Keep && self.paused_us >= PATIENCE_US;
        let room: u64 = self.devices.iter().chain(&self.files).sum();
        let left = room.saturating_sub(sight.zram_used.get() + sight.file_used.get());
        let wakes = sight.is_paused && (left >= WAKING || areas != Areas::Keep);
        Orders {
            limit: Bytes::new(self.limit),
            // The content of a device comes back through memory, and has to go elsewhere first.
            holds: holds || areas == Areas::DropZram,
            areas,
            wakes_by: wakes.then(|| Bytes::new(self.limit + WAKING)),
            gives_up: is_lost,
            look_after_us: self.next_look(sight, moved),
        }
    }

    /// Whether the limit is too far above the order: until it has fallen, the program is held.
    /// Where it can't fall, the program is let go, and held again only when the excess has grown.
    fn holds(&mut self, sight: &Sight) -> bool {
        let (limit, slack) = (sight.limit.get(), lead(self.budget) / 2);
        let excess = limit.saturating_sub(self.limit);
        if excess <= slack {
            self.stuck_excess = 0;
        }
        if self.is_held {
            let falls = limit < self.held_limit;
            self.standing_us = if falls { 0 } else { self.standing_us + sight.since_us };
            if self.standing_us >= STANDING_MOST_US {
                (self.is_held, self.stuck_excess) = (false, excess);
            }
            self.is_held &= excess > 0;
        } else {
            self.is_held = excess > self.stuck_excess + slack;
            self.standing_us = 0;
        }
        self.held_limit = limit;
        self.is_held
    }

    /// The limit that keeps to the budget until the next look.
    fn target(&self, zram: u64, grown: u64) -> u64 {
        pages(self.budget.saturating_sub(lead(self.budget) + zram + grown))
    }

    /// Content for which compressed memory leaves the least limit, at `per_content` thousandths.
    fn content_at(&self, per_content: u64) -> u64 {
        let most = self.budget - self.floor().get() - lead(self.budget);
        pages((most * 1000 / per_content.max(1)).min(self.budget * CONTENT_MOST))
    }

    fn areas(&self, sight: &Sight) -> Areas {
        let room: u64 = self.devices.iter().sum();
        let part = self.budget / 8;
        let (zram, content) = (sight.zram_memory.get(), sight.zram_content.get());
        let most = self.budget - self.floor().get();
        if zram + lead(self.budget) / 2 > most && self.devices.len() > 1 && !self.drop_fails {
            return Areas::DropZram;
        }
        let is_known = content >= KNOWN_BY && !self.zram_fails;
        let left = room.saturating_sub(sight.zram_used.get());
        // Half of the budget takes longer to fill than a device to set up.
        if is_known && left < (self.budget / 2).max(room / 4) && self.devices.len() < AREAS_MOST {
            let may_have = self.content_at(zram * CAUTION / content);
            // The ratio of a small sample says little of far more.
            let more = may_have.saturating_sub(room).min(2 * room);
            if more >= part {
                return Areas::AddZram(Bytes::new(more));
            }
        }
        let room: u64 = self.files.iter().sum();
        let left = room.saturating_sub(sight.file_used.get());
        if room > 0 && !self.file_fails && left < self.budget.min(room / 2) && self.files.len() < AREAS_MOST {
            let more = pages(self.file_most.saturating_sub(room).min(room));
            if more > 0 {
                return Areas::AddFile(Bytes::new(more));
            }
        }
        Areas::Keep
    }

    fn next_look(&self, sight: &Sight, moved: u64) -> u64 {
        let free = self.limit.saturating_sub(sight.group.get());
        if self.is_held {
            return 0;
        }
        if sight.is_paused || moved > 1 << 20 {
            return LOOK_LEAST_US;
        }
        if moved > 0 {
            return LOOK_SWAPPING_US;
        }
        let most = if sight.zram_used > Bytes::ZERO { LOOK_CALM_US } else { LOOK_MOST_US };
        (free / POPULATED_PER_US).clamp(LOOK_SWAPPING_US, most)
    }
}

/// The room that the limit leaves for compressed memory that is not seen yet.
fn lead(budget: u64) -> u64 {
    (budget / LEAD_SHARE).clamp(LEAD_LEAST, LEAD_MOST)
}

fn pages(bytes: u64) -> u64 {
    bytes & !4095
}

#[cfg(test)]
#[path = "steering_test.rs"]
mod tests;
