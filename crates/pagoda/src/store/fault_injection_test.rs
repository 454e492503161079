//! Everything one can do with a store while everything below it fails: right content or a typed
//! error, and nothing leaked. `PAGODA_RUNS` makes more runs.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use pagoda_core::page::BasePage;
use pagoda_core::release::ReleasePolicy;
use pagoda_core::release::batch::Batch;
use pagoda_core::release::gather::Gather;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::runs;
use pagoda_linux::testing::redis::RedisServer;
use pagoda_linux::testing::redis_cluster::RedisCluster;
use pagoda_linux::testing::wait::EndsWith;

use super::tests::{Random, disk, page_of, stored};
use super::*;
use crate::stats::account::Account;
use crate::stats::counters::Counters;
use crate::store::fault_injection::{Faults, Plan};

/// Steps of one run. Longer runs find other errors than many restarts of the generator.
const STEPS: u32 = 2500;

/// How often a call fails: often enough for two faults in a row, seldom enough that much is spilled
/// in between.
const PER_MILLE: u32 = 60;

fn open(
    memory: Bytes,
    file: Option<FileConfig>,
    remote: Option<SocketAddr>,
    plan: &Arc<Plan>,
) -> TieredStore {
    let remote = remote.map(|socket| RemoteConfig {
        address: RemoteAddress { socket, user: None, password: None, database: 0 },
        limit: Bytes::mib(3),
        expiry: Duration::from_secs(60),
    });
    let config = StoreConfig { base: BasePage::K16, memory_limit: memory, file, remote };
    let mut store = TieredStore::open(config).expect("nothing fails yet");
    let faults = Faults(Some(Arc::clone(plan)));
    store.memory.faults = faults.clone();
    store.file.iter_mut().for_each(|file| file.faults = faults.clone());
    store.remote.iter_mut().for_each(|remote| remote.inject(&faults));
    store.releasing_by(ReleasePolicy::Background, Bytes::mib(64), 1)
}

/// Ends the process if its work hangs: no test waits for good.
struct Deadline(Option<Sender<()>>);

impl Deadline {
    fn new() -> Self {
        let (over, ends) = channel();
        std::thread::spawn(move || {
            if ends.recv_timeout(Duration::from_secs(900)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("a store whose calls fail hangs");
                std::process::abort();
            }
        });
        Self(Some(over))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

fn new_account() -> Arc<Account> {
    Arc::new(Account::new(Arc::new(Counters::private().expect("counters"))))
}

/// Does `work` while a worker frees queued pages.
fn with_worker<T>(store: &TieredStore, work: impl FnOnce() -> T) -> T {
    let quit = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = EndsWith(&quit);
        scope.spawn(|| store.release_queued(0, &quit, |_| false));
        let done = work();
        drop(ends);
        done
    })
}

/// Gives up as many pages as a close does at once: those that find no batch are freed inline.
fn release(store: &TieredStore, account: &Arc<Account>, handles: impl Iterator<Item = Handle>) {
    let (releases, mut gather) = (store.releases(), Gather::default());
    let mut left = Batch::default();
    for handle in handles.filter(|handle| !handle.is_same_filled()) {
        if !gather.push(handle.to_bits(), releases.shards(), |shard| releases.spare(shard)) {
            assert!(left.push(handle.to_bits()), "fewer than fit a batch");
        }
    }
    let (worth, batches) = gather.finish();
    for (shard, mut batch) in batches {
        if worth {
            match releases.hand_over(shard, account, batch) {
                Ok(()) => continue,
                Err(back) => batch = back,
            }
        }
        let freed = store.free_batch(&mut batch);
        account.is_inline(freed.entries);
        account.is_freed(freed);
        releases.put_spare(shard, batch);
    }
    let freed = store.free_batch(&mut left);
    if freed.entries > 0 {
        account.is_inline(freed.entries);
        account.is_freed(freed);
    }
}

/// Checks the outcome of a fetch: the page, or an error that names the cause, and nothing else.
fn is_right(store: &TieredStore, handle: Handle, page: &[u8], scratch: &mut Scratch) -> bool {
    let mut back = vec![0xee; page.len()];
    match store.get(handle, 0, &mut back, scratch) {
        Ok(()) => {
            assert!(back == page, "other content was served for {handle:?}");
            true
        }
        Err(GetError::Corrupt | GetError::Io { .. } | GetError::Remote { .. }) => false,
    }
}

fn walk(store: &TieredStore, account: &Arc<Account>, seed: u64) -> Vec<(Handle, Vec<u8>)> {
    let (page, mut scratch) = (store.page_bytes(), Scratch::new(BasePage::K16));
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut shadow: HashMap<u64, (Handle, Vec<u8>)> = HashMap::new();
    let mut condenser = store.condenser();
    for _ in 0..STEPS {
        let key = random.below(500);
        if random.below(60) == 0 {
            // An owner closes: neighbours go together, and those that lie apart; few, that are
            // freed inline, and far more than a hand-over is worth.
            let width = [80, 400][random.below(2) as usize];
            let keys: Vec<u64> = (key..key + width).step_by(1 + random.below(2) as usize).collect();
            let gone: Vec<Handle> = keys.iter().filter_map(|key| Some(shadow.remove(key)?.0)).collect();
            release(store, account, gone.into_iter());
            continue;
        }
        let beside: Vec<_> = (1..6).filter_map(|i| shadow.get(&(key + i)).cloned()).collect();
        match (random.below(100), shadow.get_mut(&key)) {
            (0..2, _) => {
                let _ = store.spill(Bytes::kib(random.below(1500)));
                store.trim();
            }
            (2..6, _) => {
                store.delete_gone();
                store.remote.iter().for_each(|remote| remote.renew_now());
                let _ = store.file.as_ref().is_some_and(|file| file.discard_unused());
                for _ in 0..10 {
                    store.condense_oldest(&mut condenser, 100);
                }
            }
            (_, None) => {
                let percent = [2, 25, 43, 80, 100][random.below(5) as usize];
                let content = page_of(page, percent, random.next());
                match store.put(&content, &mut scratch) {
                    Ok(put) => drop(shadow.insert(key, (stored(Ok(put)), content))),
                    Err(PutError::Full | PutError::Io { .. } | PutError::Remote { .. }) => {}
                }
            }
            (6..50, Some((handle, content))) => drop(is_right(store, *handle, content, &mut scratch)),
            (50..60, Some((handle, content))) => {
                let mut other = content.clone();
                other[4096..8192].copy_from_slice(&page_of(4096, 43, random.next()));
                let changed = 4096..8192;
                let anew = store.put_changed(*handle, std::slice::from_ref(&changed), &other, &mut scratch);
                if let Ok(Some(anew)) = anew {
                    store.free(*handle);
                    (*handle, *content) = (anew, other);
                }
            }
            (60..65, Some((handle, content))) => {
                // It may not be sure that it has this page, but it never has another one.
                let _ = store.holds(*handle, 0, content, &mut scratch);
                let mut other = content.clone();
                other[random.below(page as u64) as usize] ^= 1;
                assert_ne!(store.holds(*handle, 0, &other, &mut scratch), Ok(true));
            }
            (65..70, Some((handle, content))) => {
                let _ = store.promote(*handle, &mut scratch);
                is_right(store, *handle, content, &mut scratch);
            }
            (70..75, Some((handle, content))) => {
                let others: Vec<_> = beside.iter().map(|(handle, _)| *handle).collect();
                store.promote_together(*handle, &others);
                is_right(store, *handle, content, &mut scratch);
                for (handle, content) in &beside {
                    is_right(store, *handle, content, &mut scratch);
                }
            }
            (75..78, Some((handle, content))) => {
                store.demote(*handle);
                is_right(store, *handle, content, &mut scratch);
            }
            (_, Some((handle, _))) => {
                store.free(*handle);
                shadow.remove(&key);
            }
        }
    }
    shadow.into_values().collect()
}

/// Ends the faults: every page that was not spoilt is there, and when it is freed nothing is left,
/// here or at the server.
fn settle(store: &TieredStore, account: &Account, plan: &Plan, held: Vec<(Handle, Vec<u8>)>) {
    plan.end();
    store.flush_releases();
    store.releases().assert_whole();
    let released = account.released();
    assert!(released.queued > 0 && released.inline > 0, "{released:?}");
    assert_eq!(released.queued + released.inline, released.freed, "{released:?}");
    let mut scratch = Scratch::new(BasePage::K16);
    let lost =
        held.iter().filter(|(handle, page)| !is_right(store, *handle, page, &mut scratch)).count() as u64;
    let spoilt = plan.spoilt.load(Ordering::Relaxed);
    println!(
        "{} held, {lost} of them lost by {spoilt} spoilt writes; faults {:?}",
        held.len(),
        plan.happened()
    );
    assert!(lost <= spoilt, "{lost} pages lost by {spoilt} spoilt writes");
    assert!(plan.happened().iter().all(|count| *count > 0), "every kind of fault happened");
    held.into_iter().for_each(|(handle, _)| store.free(handle));
    let start = Instant::now();
    while store.usage().remote_bytes > Bytes::ZERO {
        store.delete_gone();
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", store.usage());
    }
    store.trim();
    let StoreUsage { memory_used_bytes, file_bytes, objects, .. } = store.usage();
    assert_eq!((memory_used_bytes, file_bytes, objects), (Bytes::ZERO, Bytes::ZERO, 0));
    let state = store.memory.lock();
    assert_eq!(
        (state.numbers.used, state.raw.bytes + state.dense.bytes + state.packed.bytes + state.gone.bytes),
        (0, 0)
    );
    assert_eq!((state.filed.objects, state.filed.bytes, state.filed.oldest()), (0, 0, None));
    assert_eq!(
        (state.raw.objects, state.dense.objects, state.packed.objects, state.gone.objects),
        (0, 0, 0, 0)
    );
    assert_eq!(state.pool.present_segments(), 0);
}

#[test]
fn memory_and_file_that_fail_give_right_content_or_an_error() {
    let _deadline = Deadline::new();
    let directory = disk();
    for seed in runs(length(4, 6)) {
        let plan = Plan::new(seed, PER_MILLE);
        let file =
            FileConfig { directory: directory.path().to_owned(), limit: Bytes::mib(3), io_uring: true };
        let store = open(Bytes::kib(800), Some(file), None, &plan);
        let account = new_account();
        let held = with_worker(&store, || walk(&store, &account, seed));
        let at_once = store.usage().file_requests_at_once;
        assert_eq!(store.take_requests_together() > 0, at_once > 1, "where there is a ring it is used");
        settle(&store, &account, &plan, held);
    }
}

#[test]
fn a_server_that_fails_gives_right_content_or_an_error() {
    let _deadline = Deadline::new();
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &["--appendonly", "no"]) else { return };
    for seed in runs(length(2, 4)) {
        let has_file = seed % 2 == 1;
        let plan = Plan::new(seed, PER_MILLE);
        let file = has_file.then(|| FileConfig {
            directory: directory.path().to_owned(),
            limit: Bytes::mib(1),
            io_uring: true,
        });
        let store = open(Bytes::kib(800), file, Some(server.address()), &plan);
        let account = new_account();
        let held = with_worker(&store, || walk(&store, &account, seed));
        assert!(store.usage().remote_failures > 0);
        settle(&store, &account, &plan, held);
        let remote = store.remote.as_ref().expect("a server");
        remote.delete_strays_now().expect("it works again");
        assert_eq!(remote.fields(), 0, "an unconfirmed write is undone");
    }
}

/// Each connection to each node fails by itself, while hashes move from node to node and back.
#[test]
fn a_cluster_that_fails_and_changes_gives_right_content_or_an_error() {
    let _deadline = Deadline::new();
    let directory = disk();
    let Some(cluster) = RedisCluster::start(directory.path(), 3, &["--appendonly", "no"]) else { return };
    for seed in runs(length(1, 2)) {
        let plan = Plan::new(seed, PER_MILLE);
        let store = open(Bytes::kib(800), None, Some(cluster.nodes()[0].address()), &plan);
        let slots: Vec<usize> =
            store.remote.as_ref().expect("a cluster").keys().iter().map(|key| cluster.slot_of(key)).collect();
        let account = new_account();
        let quit = AtomicBool::new(false);
        let held = std::thread::scope(|scope| {
            let ends = EndsWith(&quit);
            let mover = scope.spawn(|| {
                let mut moved = 0;
                for slot in slots.iter().cycle() {
                    if quit.load(Ordering::Relaxed) {
                        break;
                    }
                    let from = cluster.node_of(*slot);
                    let to = (from + 1) % 3;
                    cluster.begin_move(*slot, from, to);
                    std::thread::sleep(Duration::from_millis(5));
                    cluster.move_keys(*slot, from, to);
                    cluster.end_move(*slot, from, to);
                    moved += 1;
                }
                moved
            });
            let held = with_worker(&store, || walk(&store, &account, seed));
            drop(ends);
            assert!(mover.join().expect("no move failed") > 0, "something moved");
            held
        });
        assert!(store.usage().remote_failures > 0);
        settle(&store, &account, &plan, held);
        let remote = store.remote.as_ref().expect("a cluster");
        remote.delete_strays_now().expect("it works again");
        assert_eq!(remote.fields(), 0, "an unconfirmed write is undone");
    }
}

/// Threads that work against each other, while everything fails.
#[test]
fn threads_over_a_failing_store_give_right_content_or_an_error() {
    let _deadline = Deadline::new();
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &["--appendonly", "no"]) else { return };
    for seed in runs(1) {
        let plan = Plan::new(seed, PER_MILLE);
        let file =
            FileConfig { directory: directory.path().to_owned(), limit: Bytes::mib(2), io_uring: true };
        let store = open(Bytes::mib(1), Some(file), Some(server.address()), &plan);
        let account = new_account();
        let (store_ref, account_ref) = (&store, &account);
        let walkers = || {
            std::thread::scope(|scope| {
                let walkers =
                    [1, 2, 3].map(|id| scope.spawn(move || walk(store_ref, account_ref, seed << 2 | id)));
                walkers.map(|walker| walker.join().expect("no walker failed"))
            })
        };
        let held = with_worker(&store, walkers);
        settle(&store, &account, &plan, held.into_iter().flatten().collect());
    }
}
