//! The setting of a run of the simulation: the rule that is left out, and the tenants beside plain
//! programs; and the events that it saw. This module takes no part in the run.

/// The rule of the protocol that is left out, to show that the checks catch it.
#[derive(Clone, Copy, Default)]
pub struct Without {
    /// Events are read before the gate is taken.
    pub gate_around_reading: bool,
    /// The arena has a descriptor of its own, so that no eviction is refused for an unread event.
    pub shared_descriptor: bool,
    /// Every present page is evicted.
    pub resident_mask: bool,
    /// A move of a mapping is applied when its event is read, before its target is settled.
    pub order_of_moves: bool,
    /// A discard of memory that is not in the table yet is forgotten.
    pub discards_of_unknown: bool,
    /// Memory is adopted while mappings are changing.
    pub quiet_adoption: bool,
    /// A registered range counts as registered in full, also where it was mapped anew since.
    pub coverage: bool,
    /// A page that is fetched, staged again into the slot it has, or busy when its turn comes is
    /// not queued again.
    pub queueing_again: bool,
    /// A page with a stored copy is dropped, written or not.
    pub comparison_of_copies: bool,
    /// A discard of a part of a staged page leaves the old copies of granules that were in the
    /// region.
    pub discards_of_old_copies: bool,
    /// A page of which a part was stored anew keeps its old place in the store, too.
    pub freeing_of_old_copies: bool,
    /// The content of a slot is overwritten by a move out, when its page is staged again.
    pub places_taken_in_slots: bool,
    /// The kernel's count of a move into a region is believed.
    pub asking_what_moved_in: bool,
    /// The kernel's count of a move out of a region is believed.
    pub asking_what_moved_out: bool,
    /// A page at both ends of a move counts as left behind, although the program may have mapped a
    /// new one.
    pub changes_while_asking: bool,
    /// A hole of a slot counts as in the region once its page is installed.
    pub holes_of_slots: bool,
    /// Of a run that went in part, the page in the middle counts as gone whole.
    pub end_of_runs: bool,
    /// A run of pages may be of several zones.
    pub zones_of_runs: bool,
    /// Base pages leave a huge page by themselves.
    pub whole_huge_pages: bool,
    /// A huge page that the kernel split in place is still taken for a huge frame.
    pub forgetting_of_huge: bool,
    /// A huge frame that was used is handed out as it is.
    pub clearing_of_used_frames: bool,
    /// A huge frame goes to a place where it fitted, without a second look.
    pub second_look_for_place: bool,
    /// A frame that the kernel split on its way out counts as gone whole.
    pub parts_of_huge_frames: bool,
    /// The stored copies of a huge frame from before its collapse stay in the store.
    pub freeing_of_huge_copies: bool,
}

/// The tenants beside programs that share an address space.
#[derive(Clone, Copy)]
pub struct Setting {
    pub zones: usize,
    /// A tenant's region in huge frames.
    pub has_region: bool,
}

impl Setting {
    pub const PLAIN: Self = Self { zones: 1, has_region: false };
    pub const ZONES: Self = Self { zones: ZONES_MAX, has_region: false };
    pub const REGION: Self = Self { zones: 1, has_region: true };

    /// Slots of the arena, and those of huge frames.
    pub fn slots(self) -> (usize, usize) {
        if self.has_region { (40, 4) } else { (20 * self.zones, 0) }
    }
    /// OS pages of memory that the process may hold.
    pub fn budget(self) -> usize {
        if self.has_region { 56 } else { 40 }
    }
}

pub const ZONES_MAX: usize = 2;
/// How often each event happened that a run is for: a simulation that never does it shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub runs: usize,
    pub runs_in_part: usize,
    pub registered_in_part: usize,
    pub huge_in: usize,
    pub huge_out: usize,
    pub huge_torn_in: usize,
    pub huge_torn_out: usize,
    pub huge_kept: usize,
    pub huge_forgotten: usize,
    pub joined: usize,
}

impl Seen {
    pub fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.runs_in_part += other.runs_in_part;
        self.registered_in_part += other.registered_in_part;
        self.huge_in += other.huge_in;
        self.huge_out += other.huge_out;
        self.huge_torn_in += other.huge_torn_in;
        self.huge_torn_out += other.huge_torn_out;
        self.huge_kept += other.huge_kept;
        self.huge_forgotten += other.huge_forgotten;
        self.joined += other.joined;
    }
}
