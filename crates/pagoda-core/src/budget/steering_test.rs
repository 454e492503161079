//! Steering against a model of a program and of the kernel: bursts, ratios that change, and a
//! steady state.

use super::*;

const MIB: u64 = 1 << 20;

/// The model. Sizes are bytes, rates are bytes in a microsecond.
struct World {
    steering: Steering,
    budget: u64,
    limit: u64,
    group: u64,
    content: u64,
    memory: u64,
    file: u64,
    zram_room: u64,
    file_room: u64,
    /// Thousandths of its content that new compressed content takes.
    per_content: u64,
    /// Content that could not be put anywhere.
    refused: u64,
    peak: u64,
    limits: Vec<u64>,
    wait_us: u64,
    is_held: bool,
    gave_up: bool,
    orders: Vec<Areas>,
}

/// Two processors compress so much, at best.
const SWAPPED_PER_US: u64 = 1000;
/// The limit of a program that is held falls by so much in a look, at most.
const LOWERED_HELD: u64 = 4 * MIB;
/// A look takes so long.
const LOOK_US: u64 = 1000;

impl World {
    fn new(budget_mib: u64, file_mib: u64, per_content: u64) -> Self {
        let mut steering = Steering::new(Bytes::mib(budget_mib), Bytes::mib(file_mib));
        let (zram, file) = (steering.first_zram(), steering.first_file());
        steering.added(Areas::AddZram(zram), zram);
        if file > Bytes::ZERO {
            steering.added(Areas::AddFile(file), file);
        }
        let (zram_room, file_room, limit) = (zram.get(), file.get(), steering.limit().get());
        Self {
            steering,
            budget: budget_mib * MIB,
            limit,
            group: 0,
            content: 0,
            memory: 0,
            file: 0,
            zram_room,
            file_room,
            per_content,
            refused: 0,
            peak: 0,
            limits: Vec::new(),
            wait_us: 1000,
            is_held: false,
            gave_up: false,
            orders: Vec::new(),
        }
    }

    /// The kernel swaps out the excess over the limit.
    fn swap_out(&mut self, limit: u64) {
        let over = self.group.saturating_sub(limit);
        let to_zram = over.min(self.zram_room.saturating_sub(self.content));
        self.content += to_zram;
        self.memory += to_zram * self.per_content / 1000;
        let to_file = (over - to_zram).min(self.file_room - self.file);
        self.file += to_file;
        self.group -= to_zram + to_file;
        self.limit = limit.max(self.group);
    }

    /// The program takes `bytes` more until the next look, as far as it gets them.
    fn take(&mut self, bytes: u64) {
        let bytes = if self.is_held { 0 } else { bytes };
        let free = self.limit.saturating_sub(self.group);
        let wanted = bytes.min(free + SWAPPED_PER_US * self.wait_us);
        self.group += wanted;
        let limit = self.limit;
        self.swap_out(limit);
        if self.group > limit {
            self.refused += self.group - limit;
            (self.group, self.limit) = (limit, limit);
        }
    }

    /// The program writes so much of its compressed content anew, by way of memory.
    fn rewrite(&mut self, bytes: u64) {
        let bytes = if self.is_held { 0 } else { bytes };
        let bytes = bytes.min(self.content).min(SWAPPED_PER_US / 2 * self.wait_us);
        if bytes > 0 {
            self.memory -= self.memory * bytes / self.content;
            self.memory += bytes * self.per_content / 1000;
        }
    }

    fn free(&mut self, bytes: u64) {
        let of_zram = bytes.min(self.content);
        self.memory -= (self.memory * of_zram).checked_div(self.content).unwrap_or(0);
        self.content -= of_zram;
        self.group -= (bytes - of_zram).min(self.group);
    }

    fn look(&mut self) {
        self.peak = self.peak.max(self.group + self.memory);
        let is_paused = self.refused > 0;
        let [group, zram_memory, zram_content, file_used] =
            [self.group, self.memory, self.content, self.file].map(Bytes::new);
        let sight = Sight {
            group,
            limit: Bytes::new(self.limit),
            zram_memory,
            zram_content,
            zram_used: zram_content,
            file_used,
            is_paused,
            since_us: self.wait_us,
        };
        let orders = self.steering.look(&sight);
        assert!(orders.limit >= self.steering.floor() && orders.limit.get() <= self.budget);
        self.is_held = orders.holds;
        if !self.is_held && (orders.wakes_by.is_some() || self.file < self.file_room) {
            self.refused = 0;
        }
        let falls = if self.is_held { LOWERED_HELD } else { 0 };
        // Up at once.
        self.swap_out(orders.limit.get().max(self.limit.saturating_sub(falls)));
        match orders.areas {
            Areas::Keep => {}
            Areas::AddZram(bytes) => {
                self.zram_room += bytes.get();
                self.steering.added(orders.areas, bytes);
            }
            Areas::AddFile(bytes) => {
                self.file_room += bytes.get();
                self.steering.added(orders.areas, bytes);
            }
            Areas::DropZram => {
                let gone = *self.steering.devices.last().expect("a device");
                self.zram_room -= gone;
                let moved = self.content.saturating_sub(self.zram_room);
                self.memory -= (self.memory * moved).checked_div(self.content).unwrap_or(0);
                self.content -= moved;
                self.file += moved;
                self.steering.dropped(true);
            }
        }
        if orders.areas != Areas::Keep {
            self.orders.push(orders.areas);
        }
        self.gave_up |= orders.gives_up;
        self.limits.push(self.limit);
        self.wait_us = orders.look_after_us.max(LOOK_US);
    }

    /// Takes `mib` more, at `rate`.
    fn grow(&mut self, mib: u64, rate: u64) {
        let mut left = mib * MIB;
        for _ in 0..100_000 {
            let bytes = left.min(rate * self.wait_us);
            let before = self.group + self.content + self.file;
            self.take(bytes);
            left -= (self.group + self.content + self.file - before).min(left);
            self.look();
            if left == 0 || self.gave_up {
                return;
            }
        }
        panic!("{} MiB were never had", left / MIB);
    }

    fn rest(&mut self, looks: u32) {
        (0..looks).for_each(|_| self.look());
    }

    #[track_caller]
    fn kept(&self) {
        let over = self.peak.saturating_sub(self.budget);
        assert!(over <= 16 * MIB, "{} KiB over", over >> 10);
    }
}

#[test]
fn a_program_that_fits_has_all_of_the_budget_and_no_swap() {
    for budget in [32, 256, 4096] {
        let mut world = World::new(budget, 1 << 20, 500);
        world.grow(budget - (budget / 64).clamp(1, 8), 4000);
        world.rest(100);
        assert_eq!((world.content, world.file), (0, 0));
        assert!(world.orders.is_empty() && world.limits.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn bursts_of_any_ratio_keep_to_the_budget() {
    for budget in [32, 64, 256, 1024] {
        for per_content in [0, 10, 200, 350, 535, 800, 1000, 1015] {
            for rate in [100, 1000, 4000] {
                let mut world = World::new(budget, 1 << 20, per_content);
                world.grow(4 * budget, rate);
                world.rest(500);
                world.kept();
                assert!(!world.gave_up);
            }
        }
    }
}

#[test]
fn content_that_fits_compressed_is_never_spilled() {
    for (per_content, times) in [(10, 10), (200, 3), (350, 2)] {
        let mut world = World::new(256, 1 << 20, per_content);
        world.grow(256 * times, 1000);
        assert_eq!(world.file, 0, "at {per_content}");
        world.kept();
    }
}

#[test]
fn content_that_does_not_fit_uses_all_of_the_budget_first() {
    let mut world = World::new(256, 1 << 20, 535);
    world.grow(1024, 1000);
    world.rest(100);
    let used = world.group + world.memory;
    assert!(used >= world.budget / 100 * 93, "{} MiB used", used / MIB);
    assert!(world.file > 0);
}

#[test]
fn content_that_gets_less_compressible_gives_devices_up_and_keeps_to_the_budget() {
    for per_content in [600, 800, 1015] {
        for budget in [64, 256, 1024] {
            let mut world = World::new(budget, 1 << 20, 250);
            world.grow(3 * budget, 1000);
            let before = world.zram_room;
            world.per_content = per_content;
            for _ in 0..20_000 {
                world.rewrite(200 * world.wait_us);
                world.look();
            }
            world.kept();
            assert!(world.zram_room < before && world.file > 0);
            let changes = world.orders.len();
            world.rest(1000);
            assert_eq!(world.orders.len(), changes, "it rests");
        }
    }
}

#[test]
fn a_steady_state_has_a_steady_limit() {
    let mut world = World::new(256, 1 << 20, 535);
    world.grow(1024, 1000);
    world.rest(500);
    let from = world.limits.len();
    for look in 0..5000 {
        // A hundredth of the budget to and fro, as pages come and go.
        let memory = world.memory;
        world.memory += if look % 2 == 0 { 256 << 10 } else { 0 };
        world.look();
        world.memory = memory;
    }
    let turns = world.limits[from..].windows(2).filter(|pair| pair[1] > pair[0]).count();
    assert!(turns <= 2, "the limit rose {turns} times");
}

#[test]
fn memory_that_is_freed_gives_the_limit_back() {
    let mut world = World::new(256, 1 << 20, 350);
    world.grow(500, 1000);
    assert!(world.limit < 200 * MIB);
    world.free(480 * MIB);
    world.rest(10);
    assert!(world.limit >= 240 * MIB, "{} MiB", world.limit / MIB);
    world.grow(480, 4000);
    world.kept();
}

#[test]
fn an_area_that_could_not_be_added_is_not_asked_for_again() {
    let mut steering = Steering::new(Bytes::mib(64), Bytes::gib(1));
    let (zram, file) = (steering.first_zram(), steering.first_file());
    steering.added(Areas::AddZram(zram), zram);
    steering.added(Areas::AddFile(file), file);
    let sight = Sight { zram_memory: Bytes::mib(12), zram_content: Bytes::mib(40), ..Sight::default() };
    let full = Sight { zram_used: zram, file_used: file, ..sight };
    for _ in 0..2 {
        let asked = steering.look(&full).areas;
        assert!(matches!(asked, Areas::AddZram(_) | Areas::AddFile(_)), "{asked:?}");
        steering.added(asked, Bytes::ZERO);
    }
    assert_eq!(steering.look(&full).areas, Areas::Keep);
}

/// The program is held while it is tried: again at once would be for good.
#[test]
fn a_device_whose_content_fits_nowhere_is_given_up_only_once_there_is_more_room() {
    let mut steering = Steering::new(Bytes::mib(64), Bytes::gib(1));
    let device = Bytes::mib(30);
    (0..2).for_each(|_| steering.added(Areas::AddZram(device), device));
    let sight = Sight { zram_memory: Bytes::mib(55), zram_content: Bytes::mib(60), ..Sight::default() };
    let full = Sight { zram_used: Bytes::mib(60), limit: steering.floor(), ..sight };
    let orders = steering.look(&full);
    assert!(orders.areas == Areas::DropZram && orders.holds, "{orders:?}");
    steering.dropped(false);
    let orders = steering.look(&full);
    assert!(orders.areas == Areas::Keep && !orders.holds, "{orders:?}");
    let file = steering.first_file();
    steering.added(Areas::AddFile(file), file);
    assert_eq!(steering.look(&full).areas, Areas::DropZram);
    steering.dropped(true);
    assert_ne!(steering.look(&full).areas, Areas::DropZram, "the last one stays");
}

#[test]
fn a_limit_that_can_not_fall_holds_a_program_for_moments_only() {
    let mut steering = Steering::new(Bytes::mib(64), Bytes::ZERO);
    steering.added(Areas::AddZram(Bytes::mib(50)), Bytes::mib(50));
    let sight = Sight { group: Bytes::mib(63), limit: Bytes::mib(63), since_us: 1000, ..Sight::default() };
    let sight = Sight { zram_memory: Bytes::mib(50), zram_content: Bytes::mib(50), ..sight };
    let held = (0..10_000).filter(|_| steering.look(&sight).holds).count();
    assert!((1..=60).contains(&held), "{held} looks of a millisecond");
}

#[test]
fn files_grow_before_they_are_full_up_to_their_limit() {
    let mut world = World::new(64, 4096, 1015);
    world.grow(3000, 1000);
    assert!(!world.gave_up && world.file_room <= 4096 * MIB);
    assert!(world.orders.iter().any(|order| matches!(order, Areas::AddFile(_))));
    world.kept();
}

#[test]
fn a_program_that_fits_nowhere_is_given_up_after_ten_seconds() {
    for file in [0, 64] {
        let mut world = World::new(64, file, 1000);
        world.grow(4096, 1000);
        assert!(world.gave_up);
        world.kept();
        let waited: usize = world.limits.len();
        assert!(waited >= 9_000, "{waited} looks of a millisecond");
    }
}
