//! A seeded simulation of owners that close, workers that free at their own pace or not at all, and
//! helpers that need the room.
//!
//! The queues and the gathering are the real ones; the store is an array that records freed slots.
//! In every run, queued and inline together are freed, nothing twice, nothing is leaked, every
//! bound holds, and nothing is freed before an owner's last frame is back unless it had to be
//! inline.

use pagoda_core::release::batch::{Batch, Run};
use pagoda_core::release::gather::Gather;
use pagoda_core::release::queue::{BATCHES_MOST, PIECE_ENTRIES, Piece, Queue, STALL_US, Taker};
use pagoda_core::release::{LEAST_ENTRIES, WORKERS_MAX};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Stored pages by handle: how many are there, and which.
struct Store {
    held: Vec<bool>,
    next: usize,
}

impl Store {
    fn put(&mut self, random: &mut Random) -> u64 {
        // Mostly neighbours, as reclaim stores them; now and then others come between.
        if random.below(10) == 0 {
            self.next = random.below(self.held.len() as u64) as usize;
        }
        while self.held[self.next % self.held.len()] {
            self.next += 1;
        }
        let handle = self.next % self.held.len();
        self.next += 1;
        self.held[handle] = true;
        handle as u64
    }
    fn free(&mut self, run: Run) -> u64 {
        for handle in run.first..run.first + run.entries {
            assert!(std::mem::replace(&mut self.held[handle as usize], false), "{handle} is freed twice");
        }
        run.entries
    }
}

struct World {
    random: Random,
    now_us: u64,
    store: Store,
    shards: Vec<Queue<u32>>,
    /// A piece in each worker's hands.
    hands: Vec<Option<Piece<u32>>>,
    /// Workers that are not scheduled.
    asleep: Vec<bool>,
    queued: u64,
    inline: u64,
    freed: u64,
    stalls: u64,
}

impl World {
    fn new(seed: u64, shards: usize, entries_max: u64) -> Self {
        Self {
            random: Random(seed),
            now_us: 0,
            store: Store { held: vec![false; 1 << 17], next: 0 },
            shards: (0..shards).map(|_| Queue::new(entries_max)).collect(),
            hands: (0..shards).map(|_| None).collect(),
            asleep: vec![false; shards],
            queued: 0,
            inline: 0,
            freed: 0,
            stalls: 0,
        }
    }

    fn free_inline(&mut self, batch: &mut Batch) {
        while let Some(run) = batch.take(u64::MAX) {
            let freed = self.store.free(run);
            self.inline += freed;
            self.freed += freed;
        }
    }

    /// An owner with so many entries closes.
    fn close(&mut self, owner: u32, entries: u64) {
        let handles: Vec<u64> = (0..entries).map(|_| self.store.put(&mut self.random)).collect();
        let mut gather = Gather::default();
        let shards = self.shards.len();
        let mut left = Vec::new();
        let freed_before = self.freed;
        for handle in handles {
            if !gather.push(handle, shards, |shard| self.shards[shard].spare()) {
                left.push(handle);
            }
        }
        assert_eq!(self.freed, freed_before, "nothing is freed before the last frame is back");
        assert_eq!(gather.left(), left.len() as u64);
        let (worth, batches) = gather.finish();
        assert_eq!(worth, entries >= LEAST_ENTRIES);
        for (shard, mut batch) in batches {
            let count = batch.entries();
            if worth {
                match self.shards[shard].hand_over(owner, batch, self.now_us) {
                    Ok(()) => {
                        self.queued += count;
                        continue;
                    }
                    Err(back) => batch = back,
                }
            }
            self.free_inline(&mut batch);
            self.shards[shard].put_spare(batch);
        }
        for handle in left {
            let freed = self.store.free(Run { first: handle, entries: 1 });
            self.inline += freed;
            self.freed += freed;
        }
    }

    fn free_piece(&mut self, shard: usize, taker: Taker, piece: &Piece<u32>) {
        assert!(piece.entries() <= PIECE_ENTRIES);
        for run in piece.runs() {
            self.freed += self.store.free(*run);
        }
        self.shards[shard].freed(taker, piece, self.now_us);
    }

    fn work(&mut self, shard: usize) {
        match self.hands[shard].take() {
            Some(piece) => self.free_piece(shard, Taker::Worker, &piece),
            None => self.hands[shard] = self.shards[shard].take(Taker::Worker, self.now_us),
        }
    }

    fn help(&mut self, shard: usize) -> bool {
        let Some(piece) = self.shards[shard].take(Taker::Helper, self.now_us) else { return false };
        self.free_piece(shard, Taker::Helper, &piece);
        true
    }

    fn step(&mut self, owner: u32) {
        self.now_us += self.random.below(STALL_US / 100);
        let shard = self.random.below(self.shards.len() as u64) as usize;
        match self.random.below(100) {
            0..10 => {
                let most = [40, 600, 3000][self.random.below(3) as usize];
                let entries = self.random.below(most);
                self.close(owner, entries);
            }
            10..14 => _ = self.help(shard),
            14 => self.asleep[shard] = self.random.below(2) == 0,
            15 => {
                let news = self.shards[shard].look(self.now_us);
                self.stalls += u64::from(news);
                // The rest of a stalled worker is freed by the thread that found it stalled.
                while news && self.help(shard) {}
            }
            _ if !self.asleep[shard] => self.work(shard),
            _ => {}
        }
        let waiting: u64 = self.shards.iter().map(Queue::entries).sum();
        assert_eq!(self.queued + self.inline, self.freed + waiting, "each is freed or waits");
        self.shards.iter().for_each(|queue| queue.assert_whole(0));
    }

    /// Everything ends: the queue is flushed, and a piece that a worker has gets done when it runs
    /// again.
    fn end(&mut self) {
        for shard in 0..self.shards.len() {
            while self.help(shard) {}
            if self.hands[shard].is_some() {
                self.work(shard);
            }
            assert!(self.shards[shard].is_idle());
            self.shards[shard].assert_whole(0);
        }
        assert_eq!(self.queued + self.inline, self.freed, "queued and inline together are freed");
        assert!(self.store.held.iter().all(|held| !held), "nothing is leaked");
    }
}

#[test]
fn nothing_is_lost_or_freed_twice_for_any_pace_of_the_workers() {
    let mut seen = [0; 3];
    for seed in 1..=60u64 {
        let shards = 1 + (seed as usize % WORKERS_MAX);
        let entries_max = [500, 5000, 1 << 16][seed as usize % 3];
        let mut world = World::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), shards, entries_max);
        for owner in 0..3000 {
            world.step(owner);
        }
        world.end();
        for (seen, count) in seen.iter_mut().zip([world.queued, world.inline, world.stalls]) {
            *seen += count;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "the seeds reach every path: {seen:?}");
}

#[test]
fn a_queue_takes_up_to_its_bound_and_a_stalled_one_takes_nothing() {
    let mut world = World::new(7, 1, u64::MAX);
    // Handles that are no neighbours take a word each.
    let mut gather = Gather::default();
    let words = (BATCHES_MOST * pagoda_core::release::batch::BATCH_WORDS) as u64;
    let taken =
        (0..words + 100).filter(|i| gather.push(2 * i, 1, |_| world.shards[0].spare())).count() as u64;
    assert_eq!((taken, gather.left()), (words, 100));
    for (shard, batch) in gather.finish().1 {
        assert!(world.shards[shard].hand_over(0, batch, 0).is_ok());
    }
    assert!(!world.shards[0].look(STALL_US - 1) && world.shards[0].spare().is_none());
    assert!(world.shards[0].look(STALL_US) && !world.shards[0].look(STALL_US), "it is news once");
    let mut freed = 0;
    while let Some(piece) = world.shards[0].take(Taker::Helper, STALL_US) {
        freed += piece.entries();
        world.shards[0].freed(Taker::Helper, &piece, STALL_US);
    }
    assert_eq!(freed, words);
    assert!(world.shards[0].is_idle() && world.shards[0].spare().is_none(), "inline from then on");
}
