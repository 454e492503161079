//! A real server: killed, started anew, hung and full.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use pagoda_core::page::BasePage;
use pagoda_linux::testing::redis::RedisServer;
use pagoda_linux::testing::wait::EndsWith;

use super::link::{Link, packed};
use super::*;
use crate::store::tests::{assert_holds, disk, page_of, stored};
use crate::store::walk_test::walk;
use crate::store::{
    FileConfig, Handle, OpenError, PutError, Scratch, Store, StoreConfig, StoreUsage, TieredStore,
};

pub(super) const EXPIRY: Duration = Duration::from_secs(60);

/// Of which a batch is the largest there is.
pub(super) const ROOMY: Bytes = Bytes::mib(128);

pub(super) fn address_of(server: &RedisServer) -> RemoteAddress {
    RemoteAddress { socket: server.address(), user: None, password: None, database: 0 }
}

pub(super) fn config(address: RemoteAddress, memory: Bytes, limit: Bytes, expiry: Duration) -> StoreConfig {
    let remote = Some(RemoteConfig { address, limit, expiry });
    StoreConfig { base: BasePage::K64, memory_limit: memory, file: None, remote }
}

pub(super) fn open(server: &RedisServer, memory: Bytes) -> TieredStore {
    TieredStore::open(config(address_of(server), memory, Bytes::mib(64), EXPIRY)).expect("a server")
}

/// Pages of all kinds, each with its handle.
pub(super) fn fill(store: &TieredStore, scratch: &mut Scratch, count: u64) -> Vec<(Handle, Vec<u8>)> {
    let kinds = [3, 25, 43, 90, 100];
    (0..count)
        .map(|i| page_of(store.page_bytes(), kinds[i as usize % 5], i))
        .map(|page| (stored(store.put(&page, scratch)), page))
        .collect()
}

pub(super) fn assert_all(store: &TieredStore, scratch: &mut Scratch, held: &[(Handle, Vec<u8>)]) {
    held.iter().for_each(|(handle, page)| assert_holds(store, scratch, *handle, page));
}

/// What the server answers to one request.
pub(super) fn ask(server: &RedisServer, request: Cmd) -> Value {
    let mut link = Link::new(address_of(server));
    link.ask(&packed(&[request]), 1, 64 << 20, deadline_ns()).expect("an answer").remove(0)
}

use redis::Cmd;

fn keys(server: &RedisServer) -> Vec<String> {
    let Value::Array(keys) = ask(server, redis::cmd("KEYS").arg("*").clone()) else { panic!("an array") };
    let text = |key| match key {
        Value::BulkString(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("{other:?}"),
    };
    keys.into_iter().map(text).collect()
}

/// Fields at the server, of all owners.
fn fields(server: &RedisServer) -> i64 {
    let count = |key| match ask(server, redis::cmd("HLEN").arg(key).clone()) {
        Value::Int(count) => count,
        other => panic!("{other:?}"),
    };
    keys(server).iter().map(count).sum()
}

pub(super) fn delete_all_gone(store: &TieredStore) {
    while store.delete_gone() {}
}

/// Tries until it works, for longer than a pause may take.
pub(super) fn in_the_end<T, E: std::fmt::Debug>(mut work: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match work() {
            Ok(done) => return done,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(60), "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn pages_of_every_kind_come_back_and_leave_nothing() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let store = open(&server, Bytes::mib(16));
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill(&store, &mut scratch, 60);
    assert!(store.spill(Bytes::ZERO).expect("room") > Bytes::ZERO);
    let usage = store.usage();
    assert_eq!((usage.memory_used_bytes, usage.objects, usage.remote_failures), (Bytes::ZERO, 60, 0));
    assert!(usage.remote_bytes > Bytes::mib(1) && !store.is_in_memory(held[0].0));
    assert_eq!(fields(&server), 60);
    assert_all(&store, &mut scratch, &held);
    held.iter().for_each(|(handle, _)| store.free(*handle));
    assert_eq!(store.usage().objects, 0);
    let error = store.get(held[0].0, 0, &mut [0; 4096], &mut scratch).expect_err("it is free");
    assert_eq!(error, GetError::Corrupt);
    delete_all_gone(&store);
    assert_eq!((store.usage().remote_bytes, fields(&server)), (Bytes::ZERO, 0));
    assert_eq!(store.memory.lock().numbers.used, 0);
}

#[test]
fn objects_that_the_file_does_not_take_go_to_the_server() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let mut config = config(address_of(&server), Bytes::mib(1), Bytes::mib(64), EXPIRY);
    config.file =
        Some(FileConfig { directory: directory.path().to_owned(), limit: Bytes::mib(2), io_uring: false });
    let store = TieredStore::open(config).expect("opened");
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill(&store, &mut scratch, 200);
    let StoreUsage { file_bytes, remote_bytes, objects, .. } = store.usage();
    assert!(file_bytes > Bytes::kib(1500) && remote_bytes > Bytes::mib(1), "{:?}", store.usage());
    assert_eq!(objects, 200);
    assert_all(&store, &mut scratch, &held);
    held.into_iter().for_each(|(handle, _)| store.free(handle));
    walk(&store, 7, 2000, true);
    delete_all_gone(&store);
    assert_eq!((store.usage().objects, store.usage().remote_bytes), (0, Bytes::ZERO));
}

/// An object that was only read costs nothing to store again: its field is still there.
#[test]
fn a_fetched_object_keeps_its_field_and_leaves_again_without_being_sent() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let store = open(&server, Bytes::mib(16));
    let mut scratch = Scratch::new(BasePage::K64);
    let mut held = fill(&store, &mut scratch, 60);
    store.spill(Bytes::ZERO).expect("room");
    let sent = store.usage().remote_bytes;
    let next = || store.remote.as_ref().expect("a server").writer.lock().next;
    let batches = next();
    for (handle, page) in &held {
        assert_eq!(store.promote(*handle, &mut scratch), Ok(true));
        assert!(store.is_in_memory(*handle) && store.is_kept(*handle));
        assert_holds(&store, &mut scratch, *handle, page);
    }
    assert_eq!((store.usage().remote_bytes, fields(&server)), (sent, 60));
    store.demote(held[0].0);
    assert!(!store.is_in_memory(held[0].0));
    store.spill(Bytes::ZERO).expect("nothing is written");
    let usage = store.usage();
    assert_eq!((usage.memory_used_bytes, usage.remote_bytes, next()), (Bytes::ZERO, sent, batches));
    assert_all(&store, &mut scratch, &held);
    // In both places, in one, and at the server again: all of it is freed.
    for (handle, _) in &held[..40] {
        assert_eq!(store.promote(*handle, &mut scratch), Ok(true));
    }
    held[..20].iter().for_each(|(handle, _)| store.demote(*handle));
    held.drain(..).for_each(|(handle, _)| store.free(handle));
    let usage = store.usage();
    assert_eq!((usage.objects, usage.memory_used_bytes), (0, Bytes::ZERO));
    delete_all_gone(&store);
    assert_eq!((store.usage().remote_bytes, fields(&server)), (Bytes::ZERO, 0));
    assert_eq!(store.memory.lock().numbers.used, 0);
}

#[test]
fn pages_that_follow_each_other_come_by_one_request() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let store = open(&server, Bytes::mib(16));
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill(&store, &mut scratch, 10);
    store.spill(Bytes::ZERO).expect("room");
    let remote = store.remote.as_ref().expect("a server");
    let handles: Vec<Handle> = held.iter().map(|(handle, _)| *handle).collect();
    assert_eq!(store.promote_together(handles[1], &handles[2..4]), 3);
    assert_eq!(remote.reads.load(Ordering::Relaxed), 1);
    assert!(handles[1..4].iter().all(|handle| store.is_in_memory(*handle)));
    assert!(!store.is_in_memory(handles[0]) && !store.is_in_memory(handles[4]));
    assert_eq!(store.promote_together(handles[4], &[]), 0, "alone it comes by a request that is tried again");
    assert_all(&store, &mut scratch, &held[1..4]);
    // The undamaged others come all the same.
    ask(&server, redis::cmd("FLUSHALL").clone());
    assert_eq!(store.promote_together(handles[4], &handles[5..7]), 0);
    assert_all(&store, &mut scratch, &held[1..4]);
}

#[test]
fn where_little_room_is_left_at_the_server_nothing_is_held_twice() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let config = config(address_of(&server), Bytes::mib(16), Bytes::mib(2), EXPIRY);
    let store = TieredStore::open(config).expect("a server");
    let mut scratch = Scratch::new(BasePage::K64);
    let mut held = Vec::new();
    while store.remote.as_ref().expect("a server").has_room_for_copies() {
        let page = page_of(64 << 10, 43, held.len() as u64);
        held.push((stored(store.put(&page, &mut scratch)), page));
        store.spill(Bytes::ZERO).expect("room");
    }
    assert_eq!(store.promote(held[0].0, &mut scratch), Ok(false));
    assert_eq!(store.promote_together(held[0].0, &[held[1].0]), 0);
    assert_all(&store, &mut scratch, &held);
}

#[test]
fn a_server_that_is_killed_and_started_anew_in_the_middle_loses_nothing() {
    let directory = disk();
    let kept = ["--appendonly", "yes"];
    let Some(mut server) = RedisServer::start(directory.path(), &kept) else { return };
    let store = open(&server, Bytes::mib(16));
    let mut scratch = Scratch::new(BasePage::K64);
    let mut held = fill(&store, &mut scratch, 40);
    store.spill(Bytes::ZERO).expect("room");
    server.kill();
    held.extend(fill(&store, &mut scratch, 40));
    let error = store.spill(Bytes::ZERO).expect_err("no server there");
    assert!(matches!(error, PutError::Remote { source: RemoteError::CutOff(_) }), "{error}");
    assert!(store.usage().remote_failures > 0);
    assert_all(&store, &mut scratch, &held[40..]);
    std::thread::scope(|scope| {
        // A fetch meanwhile gets its page when the server is back.
        let waiter = scope.spawn(|| assert_all(&store, &mut Scratch::new(BasePage::K64), &held[..40]));
        std::thread::sleep(Duration::from_millis(300));
        server.restart(&kept);
        waiter.join().expect("all came back");
    });
    assert!(in_the_end(|| store.spill(Bytes::ZERO)) > Bytes::ZERO);
    assert_all(&store, &mut scratch, &held);
    held.into_iter().for_each(|(handle, _)| store.free(handle));
    in_the_end(|| if store.delete_gone() || fields(&server) > 0 { Err(fields(&server)) } else { Ok(()) });
}

#[test]
fn a_server_that_has_lost_its_content_is_an_error_at_once() {
    let directory = disk();
    let Some(mut server) = RedisServer::start(directory.path(), &[]) else { return };
    let store = open(&server, Bytes::mib(16));
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill(&store, &mut scratch, 5);
    store.spill(Bytes::ZERO).expect("room");
    server.kill();
    server.restart(&[]);
    for (handle, page) in &held {
        let error = store.get(*handle, 0, &mut vec![0; page.len()], &mut scratch).expect_err("lost");
        assert_eq!(error, GetError::Remote { source: RemoteError::Gone });
    }
}

#[test]
fn a_server_that_hangs_is_given_up_and_nothing_is_lost() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let mut store = open(&server, ROOMY);
    let mut scratch = Scratch::new(BasePage::K64);
    let old = fill(&store, &mut scratch, 3);
    store.spill(Bytes::ZERO).expect("room");
    store.remote.as_mut().expect("a remote store").answered_within(Duration::from_secs(1));
    // Fewer that do not shrink than would go to the server by themselves.
    let held = fill(&store, &mut scratch, 20);
    server.pause();
    std::thread::scope(|scope| {
        // It is patient for longer than the write, and begins with it.
        let reader = scope.spawn(|| {
            let mut scratch = Scratch::new(BasePage::K64);
            store.get(old[0].0, 0, &mut vec![0; 64 << 10], &mut scratch)
        });
        let error = store.spill(Bytes::ZERO).expect_err("no answer");
        assert_eq!(error, PutError::Remote { source: RemoteError::TimedOut });
        // In the pause after a failure the error is returned at once, and objects in memory are
        // still served.
        assert_eq!(store.spill(Bytes::ZERO), Err(error));
        assert_all(&store, &mut scratch, &held);
        let error = reader.join().expect("it does not panic").expect_err("no answer");
        assert_eq!(error, GetError::Remote { source: RemoteError::TimedOut });
    });
    server.go_on();
    assert!(in_the_end(|| store.spill(Bytes::ZERO)) > Bytes::ZERO);
    assert_all(&store, &mut scratch, &held);
    // Its write of the batch that was given up is undone.
    assert_eq!(fields(&server), 23);
}

#[test]
fn a_full_server_and_a_limit_are_said_and_lose_nothing() {
    let directory = disk();
    let full = ["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"];
    for (options, limit) in [(&full[..], Bytes::mib(64)), (&[], Bytes::mib(1))] {
        let Some(server) = RedisServer::start(directory.path(), options) else { return };
        let config = config(address_of(&server), Bytes::mib(4), limit, EXPIRY);
        let store = TieredStore::open(config).expect("a server");
        let mut scratch = Scratch::new(BasePage::K64);
        let mut held = Vec::new();
        let error = loop {
            match store.put(&page_of(64 << 10, 43, held.len() as u64), &mut scratch) {
                Ok(put) => held.push((stored(Ok(put)), page_of(64 << 10, 43, held.len() as u64))),
                Err(error) => break error,
            }
            assert!(held.len() < 1000, "ten MiB don't hold 60");
        };
        assert_eq!(error, PutError::Full);
        assert!(store.usage().remote_bytes > Bytes::ZERO);
        assert_all(&store, &mut scratch, &held);
        held.drain(..).for_each(|(handle, _)| store.free(handle));
        if limit > Bytes::mib(1) {
            // A store keeps its own limit by itself; the server counts its own memory.
            delete_all_gone(&store);
        }
        held = fill(&store, &mut scratch, 20);
        in_the_end(|| store.spill(Bytes::ZERO));
        assert_all(&store, &mut scratch, &held);
    }
}

#[test]
fn a_server_that_can_not_be_used_is_refused_when_it_is_opened() {
    let directory = disk();
    let options = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", "--requirepass", "x y@"];
    let Some(mut server) = RedisServer::start(directory.path(), &options) else { return };
    let refused = |password: Option<&str>, limit| {
        let mut address = address_of(&server);
        address.password = password.map(str::to_owned);
        let error = TieredStore::open(config(address, Bytes::mib(1), limit, EXPIRY)).map(|_| ());
        match error.expect_err("refused") {
            OpenError::Remote(error) => error,
            other => panic!("{other}"),
        }
    };
    let unusable = RemoteOpenError::Unusable(RemoteError::Refused);
    assert_eq!(refused(None, Bytes::mib(8)), unusable);
    assert_eq!(refused(Some("wrong"), Bytes::mib(8)), unusable);
    assert_eq!(refused(Some("x y@"), Bytes::mib(8)), RemoteOpenError::Evicts);
    let least = Bytes::mib(1);
    assert_eq!(refused(None, Bytes::kib(8)), RemoteOpenError::Limit { limit: Bytes::kib(8), least });
    server.kill();
    let address = address_of(&server);
    let error = TieredStore::open(config(address, Bytes::mib(1), Bytes::mib(8), EXPIRY)).map(|_| ());
    let Err(OpenError::Remote(RemoteOpenError::Unusable(RemoteError::CutOff(_)))) = error else {
        panic!("{error:?}");
    };
    server.restart(&["--cluster-enabled", "yes"]);
    // A cluster without slots.
    let error =
        TieredStore::open(config(address_of(&server), Bytes::mib(1), Bytes::mib(8), EXPIRY)).map(|_| ());
    let Err(OpenError::Remote(RemoteOpenError::Unusable(RemoteError::Down))) = error else {
        panic!("{error:?}");
    };
}

/// The least that an expiry can be told apart by on a machine that has much else to do.
pub(super) const SHORT: Duration = Duration::from_millis(1500);

/// How many owners have anything at the server.
fn owners(server: &RedisServer) -> usize {
    let owner = |key: String| key.rsplit_once(':').expect("a shard").0.to_owned();
    keys(server).into_iter().map(owner).collect::<std::collections::HashSet<_>>().len()
}

pub(super) const SECOND: &str = "PAGODA_TEST_SECOND_OWNER";

/// A second owner on another host: a process of its own, which is killed. Starts a process that is
/// a second owner, by a test of the remote store's that calls [`be_second_owner`]. Returns when it
/// has stored its pages.
pub(super) fn start_second_owner(test: &str, address: &RemoteAddress) -> Child {
    let mut second = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "--nocapture"])
        .arg(format!("store::remote::{test}"))
        .env(SECOND, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let lines = BufReader::new(second.stdout.take().expect("piped")).lines();
    let told = lines.map_while(Result::ok).any(|line| line.ends_with("stored"));
    assert!(told, "the second owner stored its pages");
    second
}

#[test]
fn an_owner_that_dies_leaves_nothing_and_one_that_lives_keeps_everything() {
    if let Some(address) = std::env::var_os(SECOND) {
        return be_second_owner(address.to_str().expect("text").parse().expect("an address"));
    }
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let own = config(address_of(&server), Bytes::mib(4), Bytes::mib(64), SHORT);
    let store = TieredStore::open(own).expect("a server");
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill(&store, &mut scratch, 30);
    store.spill(Bytes::ZERO).expect("room");
    let quit = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| store.keep(&quit));
        let _quits = EndsWith(&quit);
        let test = "an_owner_that_dies_leaves_nothing_and_one_that_lives_keeps_everything";
        let mut second = start_second_owner(&format!("tests::{test}"), &address_of(&server));
        assert_eq!((owners(&server), fields(&server)), (2, 60));
        // Longer than either would last without renewal.
        std::thread::sleep(2 * SHORT);
        assert_eq!((owners(&server), fields(&server)), (2, 60));
        second.kill().expect("a child");
        second.wait().expect("a child");
        in_the_end(|| if owners(&server) == 1 { Ok(()) } else { Err(keys(&server)) });
        assert_eq!(fields(&server), 30);
        assert_all(&store, &mut scratch, &held);
    });
    assert!(keys(&server).is_empty(), "one that ends in order leaves nothing at once");
}

pub(super) fn be_second_owner(address: RemoteAddress) {
    let own = config(address, Bytes::mib(4), Bytes::mib(64), SHORT);
    let store = TieredStore::open(own).expect("a server");
    fill(&store, &mut Scratch::new(BasePage::K64), 30);
    store.spill(Bytes::ZERO).expect("room");
    println!("stored");
    store.keep(&AtomicBool::new(false));
}

#[test]
fn an_object_damaged_on_the_way_is_asked_for_once_more() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let mut store = open(&server, Bytes::mib(16));
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill(&store, &mut scratch, 10);
    store.spill(Bytes::ZERO).expect("room");
    let once = crate::store::fault_injection::Plan::once(crate::store::fault_injection::Fault::Corrupt);
    store.remote.as_mut().expect("a remote store").inject(&crate::store::fault_injection::Faults(Some(once)));
    assert_all(&store, &mut scratch, &held);
}

#[test]
fn a_server_that_is_slow_to_delete_keeps_live_objects() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let own = config(address_of(&server), Bytes::mib(32), Bytes::mib(64), SHORT);
    let store = TieredStore::open(StoreConfig { base: BasePage::K4, ..own }).expect("a server");
    let mut scratch = Scratch::new(BasePage::K4);
    // Eight pipelines of deletions, longer than an expiry together.
    let mut held = fill(&store, &mut scratch, 8 * 512 + 30);
    store.spill(Bytes::ZERO).expect("room");
    held.drain(30..).for_each(|(handle, _)| store.free(handle));
    let slow =
        crate::store::fault_injection::Faults(Some(crate::store::fault_injection::Plan::slow(300_000)));
    store.remote.as_ref().expect("a remote store").keeper.lock().inject(&slow);
    store.keep_remote();
    assert_eq!(fields(&server), 30);
    assert_all(&store, &mut scratch, &held);
}

/// A reply can nest as deep as the parser follows, a hundred times: threads of the engine have 512
/// KiB of stack.
#[test]
fn the_deepest_reply_fits_a_thread_of_the_engine() {
    let parse = || {
        let reply = [b"*1\r\n".repeat(200), b":1\r\n".to_vec()].concat();
        redis::Parser::new().parse_value(&reply[..]).is_err()
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(parse).expect("started");
    assert!(thread.join().expect("it did not overflow"), "deeper than the parser follows");
}
