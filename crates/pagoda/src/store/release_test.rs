//! A real store without workers: as good as workers that are never scheduled.

use super::*;
use crate::stats::counters::{Counter, Counters};
use crate::store::{Put, PutError, Scratch, Store, StoreConfig};
use pagoda_core::page::BasePage;
use pagoda_core::release::gather::Gather;
use pagoda_core::release::queue::{BATCHES, STALL_US};
use pagoda_linux::testing::redis::RedisServer;
use pagoda_linux::testing::wait::until;
use std::time::Duration;

use super::super::RemoteConfig;
use super::super::remote::RemoteAddress;
use super::super::tests::{config, disk};

struct Fixture {
    store: TieredStore,
    counters: Arc<Counters>,
    account: Arc<Account>,
    scratch: Scratch,
}

impl Fixture {
    fn new(policy: ReleasePolicy, memory: Bytes) -> Self {
        Self::of(policy, StoreConfig { base: BasePage::K4, memory_limit: memory, file: None, remote: None })
    }

    fn of(policy: ReleasePolicy, config: StoreConfig) -> Self {
        let base = config.base;
        let store = TieredStore::open(config).expect("store");
        let counters = Arc::new(Counters::private().expect("counters"));
        Self {
            store: store.releasing_by(policy, Bytes::gib(1), 1),
            account: Arc::new(Account::new(Arc::clone(&counters))),
            counters,
            scratch: Scratch::new(base),
        }
    }

    /// A page that no other is like.
    fn put(&mut self, number: u64) -> Result<Handle, PutError> {
        let words = (0..512u64)
            .map(|i| if i % 4 == 0 { (number + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { number });
        let page: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        match self.store.put(&page, &mut self.scratch)? {
            Put::Stored(handle) => Ok(handle),
            Put::Zero => unreachable!("it is not all zero"),
        }
    }

    /// Hands over the handles that fit, and returns the number of the others.
    fn hand_over(&self, handles: &[Handle]) -> usize {
        let releases = self.store.releases();
        let mut gather = Gather::default();
        let take = |handle: &&Handle| {
            !gather.push(handle.to_bits(), releases.shards(), |shard| releases.spare(shard))
        };
        let left = handles.iter().filter(take).count();
        for (shard, batch) in gather.finish().1 {
            assert!(releases.hand_over(shard, &self.account, batch).is_ok());
        }
        left
    }

    fn assert_balanced(&self) {
        let released = self.account.released();
        assert_eq!(released.queued + released.inline, released.freed);
        assert_eq!(released.bytes, released.freed * 4096);
        for (counter, value) in [
            (Counter::ReleaseQueued, released.queued),
            (Counter::ReleaseInline, released.inline),
            (Counter::ReleaseFreed, released.freed),
            (Counter::ReleaseCpuNs, released.cpu_ns),
        ] {
            assert_eq!(self.counters.get(counter), value, "{counter:?}");
        }
        assert_eq!(self.store.releases().queued_entries(), 0);
        self.store.releases().assert_whole();
    }
}

#[test]
fn room_that_only_waits_to_be_freed_is_found_before_the_store_says_that_it_is_full() {
    let mut fixture = Fixture::new(ReleasePolicy::Background, Bytes::mib(1));
    let mut handles = Vec::new();
    let full = loop {
        match fixture.put(handles.len() as u64) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
    };
    assert_eq!(full, PutError::Full);
    assert_eq!(fixture.hand_over(&handles), 0);
    for number in 0..handles.len() as u64 {
        fixture.put(1_000_000 + number).expect("as many fit again");
    }
    assert!(fixture.counters.get(Counter::ReleaseHelped) > 0, "the thread that needed the room freed it");
    fixture.store.flush_releases();
    fixture.assert_balanced();
    assert_eq!(fixture.store.usage().objects, handles.len() as u64);
}

#[test]
fn a_worker_that_never_runs_is_seen_and_nothing_waits_for_it() {
    let mut fixture = Fixture::new(ReleasePolicy::Workers, Bytes::mib(16));
    let handles: Vec<Handle> = (0..200).map(|number| fixture.put(number).expect("room")).collect();
    assert_eq!(fixture.hand_over(&handles), 0);
    // The queue's test shows that it is not seen earlier: here the delay is not known.
    std::thread::sleep(std::time::Duration::from_micros(STALL_US + 10_000));
    assert_eq!(fixture.store.releases().look(), 1, "both hundreds are neighbours, in one queue");
    while fixture.store.help_release() {}
    fixture.assert_balanced();
    assert_eq!(fixture.store.usage().objects, 0);
    let more: Vec<Handle> = (0..50).map(|number| fixture.put(number).expect("room")).collect();
    assert_eq!(fixture.hand_over(&more), more.len(), "everything is freed inline from then on");
}

#[test]
fn a_work_item_that_is_full_is_followed_by_another() {
    let mut fixture = Fixture::new(ReleasePolicy::Background, Bytes::mib(64));
    let handles: Vec<Handle> =
        (0..2 * 510 * BATCHES as u64 + 200).map(|number| fixture.put(number).expect("room")).collect();
    // Every other one: no neighbours, a word each.
    let odd: Vec<Handle> = handles.iter().copied().skip(1).step_by(2).collect();
    assert!(odd.len() > 510 * BATCHES);
    assert_eq!(fixture.hand_over(&odd), 0);
    fixture.store.flush_releases();
    fixture.assert_balanced();
    assert_eq!(fixture.account.released().freed, odd.len() as u64);
}

#[test]
fn numbers_that_were_freed_together_make_runs_again() {
    let mut fixture = Fixture::new(ReleasePolicy::Background, Bytes::mib(16));
    let first: Vec<Handle> = (0..1000).map(|number| fixture.put(number).expect("room")).collect();
    fixture.hand_over(&first);
    fixture.store.flush_releases();
    let again: Vec<u64> = (0..1000).map(|number| fixture.put(number).expect("room").to_bits()).collect();
    let neighbours = again.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    assert!(neighbours >= 1000 - 1000 / PIECE_ENTRIES as usize - 1, "{neighbours} of 999");
}

#[test]
fn pages_queued_while_a_thread_waits_for_a_piece_held_by_another_are_freed_by_it() {
    let mut fixture = Fixture::new(ReleasePolicy::Background, Bytes::mib(16));
    let handles: Vec<Handle> = (0..400).map(|number| fixture.put(number).expect("room")).collect();
    assert_eq!(fixture.hand_over(&handles[..100]), 0);
    // A worker that took it, and is not scheduled.
    let shard = &fixture.store.releases().shards[0];
    let piece = shard.queue.lock().take(Taker::Worker, now_us()).expect("a piece");
    let helps = |handle: &Handle| {
        let waits = AtomicBool::new(false);
        let helped = std::thread::scope(|scope| {
            let helper = scope.spawn(|| {
                waits.store(true, Ordering::Release);
                fixture.store.help_release()
            });
            while !waits.load(Ordering::Acquire) {
                sleep_us(10);
            }
            sleep_us(300);
            fixture.hand_over(&[*handle]);
            helper.join().expect("it does not panic")
        });
        while fixture.store.free_piece(0, Taker::Helper, &mut cpu_ns()) {}
        helped
    };
    // Now and then this thread is too late: then the other one has rightly given up.
    let helped = handles[100..].iter().any(helps);
    assert!(helped);
    fixture.account.is_freed(fixture.store.free_runs(piece.runs()));
    fixture.store.releases().entries.fetch_sub(piece.entries(), Ordering::AcqRel);
    shard.queue.lock().freed(Taker::Worker, &piece, now_us());
    fixture.store.flush_releases();
    fixture.assert_balanced();
}

/// The tiers below memory are given back as well: the file's slots, and the server's numbers and
/// bytes.
#[test]
fn pages_in_the_file_or_at_the_server_are_released_by_every_policy() {
    const MEMORY: Bytes = Bytes::mib(16);
    let directory = disk();
    let server = RedisServer::start(directory.path(), &[]);
    let file = || config(BasePage::K4, MEMORY, Some((directory.path(), Bytes::mib(64))));
    let remote = |server: &RedisServer| {
        let address = RemoteAddress { socket: server.address(), user: None, password: None, database: 0 };
        let remote = RemoteConfig { address, limit: Bytes::mib(64), expiry: Duration::from_secs(60) };
        StoreConfig { remote: Some(remote), ..config(BasePage::K4, MEMORY, None) }
    };
    for policy in ReleasePolicy::ALL {
        for config in std::iter::once(file()).chain(server.iter().map(remote)) {
            let mut fixture = Fixture::of(policy, config);
            let mut handles: Vec<_> = (0..2000).map(|number| fixture.put(number).expect("room")).collect();
            assert!(fixture.store.spill(Bytes::ZERO).expect("room") > Bytes::ZERO);
            handles.extend((2000..3000).map(|number| fixture.put(number).expect("room")));
            let usage = fixture.store.usage();
            assert!(usage.file_bytes.max(usage.remote_bytes) >= Bytes::mib(2), "{usage:?}");
            // Every third stays, so that nothing is freed as a whole.
            let (kept, freed): (Vec<_>, Vec<_>) =
                handles.into_iter().enumerate().partition(|(number, _)| number % 3 == 0);
            let mut freed: Vec<Handle> = freed.into_iter().map(|(_, handle)| handle).collect();
            if matches!(policy, ReleasePolicy::Background | ReleasePolicy::Workers) {
                freed.truncate(freed.len() - fixture.hand_over(&freed));
                fixture.store.flush_releases();
                fixture.assert_balanced();
            } else if policy == ReleasePolicy::Runs {
                let mut gather = Gather::default();
                let left = freed
                    .iter()
                    .filter(|handle| !gather.push(handle.to_bits(), 1, |_| Some(Batch::default())));
                assert_eq!(left.count(), 0);
                for (_, mut batch) in gather.finish().1 {
                    fixture.store.free_batch(&mut batch);
                }
            } else {
                freed.iter().for_each(|handle| _ = fixture.store.free_one(*handle));
            }
            assert_eq!(fixture.store.usage().objects, 3000 - freed.len() as u64, "{policy:?}");
            let mut page = [0; 4096];
            for (number, handle) in kept {
                fixture.store.get(handle, 0, &mut page, &mut fixture.scratch).expect("it is kept");
                let word = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                assert_eq!(page[..8], word.to_le_bytes(), "page {number} under {policy:?}");
                fixture.store.free_one(handle);
            }
            while fixture.store.delete_gone() {}
            let usage = fixture.store.usage();
            assert_eq!((usage.file_bytes, usage.remote_bytes), (Bytes::ZERO, Bytes::ZERO), "{policy:?}");
        }
    }
}

/// The wait for the store's lock while another holds it is counted for the owner whose pages are
/// freed.
#[test]
fn waiting_for_the_lock_is_entered_in_the_account_of_the_owner_that_caused_it() {
    let mut fixture = Fixture::new(ReleasePolicy::Background, Bytes::mib(16));
    let mut number = 0;
    until("one that had to wait", || {
        let handles: Vec<Handle> = (0..64).map(|i| fixture.put(number + i).expect("room")).collect();
        number += 64;
        assert_eq!(fixture.hand_over(&handles), 0);
        let held = fixture.store.memory.lock();
        let begins = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let freeing = scope.spawn(|| {
                begins.store(true, Ordering::Release);
                fixture.store.flush_releases();
            });
            until("it begins", || begins.load(Ordering::Acquire));
            std::thread::sleep(Duration::from_millis(5));
            drop(held);
            freeing.join().expect("no panic");
        });
        fixture.account.released().lock_wait_ns > 0
    });
    let [locks, waited] =
        [Counter::ReleaseLocks, Counter::ReleaseLockWaitNs].map(|counter| fixture.counters.get(counter));
    assert_eq!(locks, number / 64, "one for each piece");
    assert_eq!(waited, fixture.account.released().lock_wait_ns);
    fixture.assert_balanced();
}
