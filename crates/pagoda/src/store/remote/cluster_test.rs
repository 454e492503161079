//! A real cluster of three servers: each named, slots that move, nodes that are killed or hang, and
//! one that lies.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;

use pagoda_core::page::BasePage;
use pagoda_linux::testing::redis_cluster::RedisCluster;
use pagoda_linux::testing::wait::EndsWith;

use super::tests::{
    EXPIRY, SECOND, SHORT, address_of, assert_all, be_second_owner, config, delete_all_gone, fill,
    in_the_end, start_second_owner,
};
use super::*;
use crate::store::fault_injection::{Fault, Faults, Plan};
use crate::store::tests::disk;
use crate::store::{Handle, OpenError, PutError, Scratch, Store, TieredStore};

const NODES: usize = 3;

type Held = Vec<(Handle, Vec<u8>)>;

fn open(cluster: &RedisCluster, node: usize) -> TieredStore {
    let address = address_of(&cluster.nodes()[node]);
    TieredStore::open(config(address, Bytes::mib(16), Bytes::mib(64), EXPIRY)).expect("a cluster")
}

/// A batch for each hash of its owner.
fn fill_every_shard(store: &TieredStore, scratch: &mut Scratch) -> Held {
    let batch = |_| {
        let held = fill(store, scratch, 2);
        assert!(store.spill(Bytes::ZERO).expect("room") > Bytes::ZERO);
        held
    };
    (0..SHARDS).flat_map(batch).collect()
}

/// Fields at each node, of all owners.
fn fields(cluster: &RedisCluster) -> Vec<u64> {
    let fields_of = |server: &pagoda_linux::testing::redis::RedisServer| {
        let keys = server.ask("KEYS *");
        let number = |key: &str| server.ask(&format!("HLEN {key}")).parse::<u64>().expect("a number");
        keys.lines().filter(|key| !key.is_empty()).map(number).sum()
    };
    cluster.nodes().iter().map(fields_of).collect()
}

fn failures(store: &TieredStore) -> u64 {
    store.usage().remote_failures
}

fn remote(store: &TieredStore) -> &RemoteTier {
    store.remote.as_ref().expect("a cluster")
}

/// The node of each shard, by the servers' answers.
fn nodes_of(cluster: &RedisCluster, store: &TieredStore) -> Vec<usize> {
    let node = |shard| cluster.node_of(cluster.slot_of(&remote(store).names.key_of_shard(shard)));
    (0..SHARDS).map(node).collect()
}

/// A node that has some of an owner's hashes, and is not the one that was named.
fn other_than_named(cluster: &RedisCluster, store: &TieredStore) -> usize {
    nodes_of(cluster, store).into_iter().find(|node| *node != 0).expect("sixteen hashes are not at one node")
}

#[test]
fn owners_that_name_any_node_have_their_pages_at_all_of_them() {
    let directory = disk();
    let Some(cluster) = RedisCluster::start(directory.path(), NODES, &[]) else { return };
    let stores: Vec<TieredStore> = (0..NODES).map(|node| open(&cluster, node)).collect();
    let mut scratch = Scratch::new(BasePage::K64);
    let mut held: Vec<Held> = stores.iter().map(|store| fill_every_shard(store, &mut scratch)).collect();
    let at_each = fields(&cluster);
    assert!(at_each.iter().all(|fields| *fields > 0), "{at_each:?}");
    assert_eq!(at_each.iter().sum::<u64>(), NODES as u64 * u64::from(SHARDS) * 2);
    for (store, held) in stores.iter().zip(&mut held) {
        assert_all(store, &mut scratch, held);
        // Neighbours of several hashes, and so of several nodes.
        let handles: Vec<Handle> = held.iter().map(|(handle, _)| *handle).collect();
        assert_eq!(store.promote_together(handles[0], &handles[1..12]), 12);
        assert_all(store, &mut scratch, held);
        remote(store).renew_now();
        assert_eq!(failures(store), 0, "each was known where it is");
    }
    held.pop().expect("three").into_iter().for_each(|(handle, _)| stores[2].free(handle));
    delete_all_gone(&stores[2]);
    assert_eq!((stores[2].usage().remote_bytes, remote(&stores[2]).fields()), (Bytes::ZERO, 0));
    assert_eq!(fields(&cluster).iter().sum::<u64>(), 2 * u64::from(SHARDS) * 2);
    // A store that ends in order leaves nothing, at any node.
    stores.iter().for_each(|store| store.leave_remote());
    assert_eq!(fields(&cluster), [0, 0, 0]);
}

/// At each step of a slot's way pages are read, written, renewed and deleted: those of before, and
/// those of meanwhile.
#[test]
fn slots_that_move_to_another_node_in_the_middle_lose_and_fail_nothing() {
    let directory = disk();
    let Some(cluster) = RedisCluster::start(directory.path(), NODES, &[]) else { return };
    let store = open(&cluster, 0);
    let mut scratch = Scratch::new(BasePage::K64);
    let mut held = fill_every_shard(&store, &mut scratch);
    // One whose hash is there, and one whose hash is not yet.
    let bare = open(&cluster, 0);
    let mut held_bare = Held::new();
    let moves: Vec<(usize, usize, usize)> = [&store, &bare]
        .map(|owner| {
            let slot = cluster.slot_of(&remote(owner).names.key_of_shard(3));
            let from = cluster.node_of(slot);
            (slot, from, (from + 1) % NODES)
        })
        .to_vec();
    let mut work = |step: &str| {
        for (store, held) in [(&store, &mut held), (&bare, &mut held_bare)] {
            held.extend(fill_every_shard(store, &mut scratch));
            assert_all(store, &mut scratch, held);
            let handles: Vec<Handle> = held.iter().rev().map(|(handle, _)| *handle).collect();
            assert_eq!(store.promote_together(handles[0], &handles[1..12]), 12, "{step}");
            remote(store).renew_now();
            let (gone, _) = held.split_at(held.len() / 3);
            gone.iter().for_each(|(handle, _)| store.free(*handle));
            held.drain(..held.len() / 3);
            delete_all_gone(store);
            assert_eq!(remote(store).fields(), held.len() as i64, "{step}");
            assert_eq!(failures(store), 0, "{step}");
        }
    };
    work("before");
    moves.iter().for_each(|(slot, from, to)| cluster.begin_move(*slot, *from, *to));
    work("begun");
    moves.iter().for_each(|(slot, from, to)| cluster.move_keys(*slot, *from, *to));
    work("keys moved");
    moves.iter().for_each(|(slot, from, to)| cluster.end_move(*slot, *from, *to));
    work("moved");
    let [to, named] = [cluster.nodes()[moves[0].2].address(), cluster.nodes()[0].address()];
    assert_eq!(remote(&store).routes.node_of(3), to);
    assert_eq!(remote(&store).routes.nodes().len(), NODES, "{named} and the others");
}

#[test]
fn a_node_that_is_killed_and_started_anew_in_the_middle_loses_nothing() {
    let directory = disk();
    let kept = ["--appendonly", "yes", "--cluster-require-full-coverage", "no"];
    let Some(mut cluster) = RedisCluster::start(directory.path(), NODES, &kept) else { return };
    let store = open(&cluster, 0);
    let mut scratch = Scratch::new(BasePage::K64);
    let mut held = fill_every_shard(&store, &mut scratch);
    let (nodes, node) = (nodes_of(&cluster, &store), other_than_named(&cluster, &store));
    cluster.kill(node);
    // Objects elsewhere are served.
    let there: Vec<bool> = nodes.iter().flat_map(|at| [*at == node; 2]).collect();
    let elsewhere: Held =
        held.iter().zip(&there).filter(|(_, there)| !**there).map(|(held, _)| held.clone()).collect();
    assert_all(&store, &mut scratch, &elsewhere);
    // Batch by batch, until it is that node's turn.
    let error = loop {
        held.extend(fill(&store, &mut scratch, 2));
        if let Err(error) = store.spill(Bytes::ZERO) {
            break error;
        }
        assert!(held.len() < 4 * SHARDS as usize, "each node has its turn");
    };
    assert!(matches!(error, PutError::Remote { source: RemoteError::CutOff(_) }), "{error}");
    let (last, page) = held.last().expect("some").clone();
    assert_all(&store, &mut scratch, &[(last, page)]);
    std::thread::scope(|scope| {
        // A fetch meanwhile gets its page when the node is back.
        let waiter = scope.spawn(|| assert_all(&store, &mut Scratch::new(BasePage::K64), &held));
        std::thread::sleep(std::time::Duration::from_millis(300));
        cluster.restart(node);
        waiter.join().expect("all came back");
    });
    cluster.wait_until_whole();
    in_the_end(|| store.spill(Bytes::ZERO));
    held.extend(fill_every_shard(&store, &mut scratch));
    assert_all(&store, &mut scratch, &held);
    assert_eq!(remote(&store).fields(), held.len() as i64, "an abandoned object is deleted");
    held.into_iter().for_each(|(handle, _)| store.free(handle));
    in_the_end(|| {
        if store.delete_gone() || remote(&store).fields() > 0 { Err(fields(&cluster)) } else { Ok(()) }
    });
}

/// That it is to be asked for elsewhere came as another number than a deletion can answer: nothing
/// was deleted.
#[test]
fn an_answer_that_can_not_be_right_is_not_believed() {
    let directory = disk();
    let Some(cluster) = RedisCluster::start(directory.path(), NODES, &[]) else { return };
    let store = open(&cluster, 0);
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill_every_shard(&store, &mut scratch);
    let shard = 3;
    // The connections to all nodes are open, and where one hash is is known wrong.
    remote(&store).renew_now();
    let at = nodes_of(&cluster, &store)[shard];
    remote(&store).routes.moved(shard as u32, cluster.nodes()[(at + 1) % NODES].address());
    let faults = Faults(Some(Plan::once(Fault::Corrupt)));
    remote(&store).keeper.lock().inject(&faults);
    let of_shard = &held[2 * shard..][..2];
    of_shard.iter().for_each(|(handle, _)| store.free(*handle));
    assert!(!store.delete_gone(), "the node said that it is elsewhere");
    assert_eq!(remote(&store).fields(), held.len() as i64);
    in_the_end(|| if store.delete_gone() { Ok(()) } else { Err("not deleted") });
    assert_eq!(remote(&store).fields(), held.len() as i64 - 2);
}

/// The node is gone for good, and another one has its slot: that is found out from those that are
/// left, the named one or not.
#[test]
fn a_hash_whose_node_was_replaced_is_found_where_it_is() {
    let directory = disk();
    let partly = ["--cluster-require-full-coverage", "no"];
    let Some(mut cluster) = RedisCluster::start(directory.path(), NODES, &partly) else { return };
    let store = open(&cluster, 0);
    let lost = 0;
    let shard = nodes_of(&cluster, &store).iter().position(|node| *node == lost).expect("it has some") as u32;
    let slot = cluster.slot_of(&remote(&store).names.key_of_shard(shard));
    cluster.kill(lost);
    let ask = || {
        let length = redis::cmd("HLEN").arg(remote(&store).names.key_of_shard(shard)).clone();
        let mut writer = remote(&store).writer.lock();
        writer.links.ask_one(&remote(&store).routes, Part::counting(shard, &length, i64::MAX), deadline_ns())
    };
    assert!(matches!(ask(), Err(RemoteError::CutOff(_))));
    cluster.replace(slot, lost, 2);
    assert_eq!(in_the_end(ask), [Value::Int(0)]);
    assert_eq!(remote(&store).routes.node_of(shard), cluster.nodes()[2].address());
}

/// All objects elsewhere are renewed and deleted while one node does not answer.
#[test]
fn a_node_that_hangs_lets_nothing_expire_at_the_others() {
    let directory = disk();
    let Some(cluster) =
        RedisCluster::start(directory.path(), NODES, &["--cluster-require-full-coverage", "no"])
    else {
        return;
    };
    // Longer than a renewal and a deletion that the node holds up.
    let expiry = 6 * SHORT;
    let own = config(address_of(&cluster.nodes()[0]), Bytes::mib(16), Bytes::mib(64), expiry);
    let mut store = TieredStore::open(own).expect("a cluster");
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill_every_shard(&store, &mut scratch);
    store.remote.as_mut().expect("a remote store").answered_within(SHORT / 2);
    let (nodes, node) = (nodes_of(&cluster, &store), other_than_named(&cluster, &store));
    cluster.nodes()[node].pause();
    let quit = AtomicBool::new(false);
    let is_there = |at: usize| nodes[at / 2] == node;
    std::thread::scope(|scope| {
        scope.spawn(|| store.keep(&quit));
        let _quits = EndsWith(&quit);
        // One of each hash is deleted; that of the hanging node holds up no other.
        held.iter().step_by(2).for_each(|(handle, _)| store.free(*handle));
        std::thread::sleep(expiry + SHORT);
        let left = (1..held.len()).step_by(2).filter(|at| !is_there(*at)).map(|at| held[at].clone());
        assert_all(&store, &mut scratch, &left.collect::<Held>());
        let live: Vec<usize> = (0..NODES).filter(|at| *at != node).collect();
        let fields: u64 = live
            .iter()
            .map(|at| &cluster.nodes()[*at])
            .flat_map(|server| {
                let keys = server.ask("KEYS *");
                keys.lines().map(|key| server.ask(&format!("HLEN {key}"))).collect::<Vec<_>>()
            })
            .map(|fields| fields.parse::<u64>().expect("a number"))
            .sum();
        assert_eq!(fields as usize, nodes.iter().filter(|at| **at != node).count(), "one of two of each");
        cluster.nodes()[node].go_on();
    });
}

#[test]
fn an_owner_that_dies_leaves_nothing_at_any_node() {
    if let Some(address) = std::env::var_os(SECOND) {
        return be_second_owner(address.to_str().expect("text").parse().expect("an address"));
    }
    let directory = disk();
    let Some(cluster) = RedisCluster::start(directory.path(), NODES, &[]) else { return };
    let own = config(address_of(&cluster.nodes()[0]), Bytes::mib(16), Bytes::mib(64), SHORT);
    let store = TieredStore::open(own).expect("a cluster");
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill_every_shard(&store, &mut scratch);
    let all = || fields(&cluster).iter().sum::<u64>();
    let quit = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| store.keep(&quit));
        let _quits = EndsWith(&quit);
        let test = "cluster_test::an_owner_that_dies_leaves_nothing_at_any_node";
        let mut second = start_second_owner(test, &address_of(&cluster.nodes()[1]));
        let both = all();
        assert!(both > held.len() as u64);
        // Longer than either would last without renewal.
        std::thread::sleep(2 * SHORT);
        assert_eq!(all(), both);
        second.kill().expect("a child");
        second.wait().expect("a child");
        in_the_end(|| if all() == held.len() as u64 { Ok(()) } else { Err(fields(&cluster)) });
        assert_all(&store, &mut scratch, &held);
    });
    assert_eq!(all(), 0, "one that ends in order leaves nothing at once");
}

fn refused(address: RemoteAddress) -> RemoteOpenError {
    match TieredStore::open(config(address, Bytes::mib(1), Bytes::mib(8), EXPIRY)).map(|_| ()) {
        Err(OpenError::Remote(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cluster_is_refused_where_a_server_would_be_and_takes_a_password_at_each_node() {
    let directory = disk();
    let pager = ["--user", "pager", "on", ">sesame", "~pagoda:*", "+@all"];
    let options = [&["--user", "default", "on", "nopass", "~*", "+@all"], &pager[..]].concat();
    let Some(cluster) = RedisCluster::start(directory.path(), NODES, &options) else { return };
    let address = address_of(&cluster.nodes()[0]);
    let pager = RemoteAddress {
        user: Some("pager".to_owned()),
        password: Some("sesame".to_owned()),
        ..address.clone()
    };
    let wrong = RemoteAddress { password: Some("barley".to_owned()), ..pager.clone() };
    assert_eq!(refused(wrong), RemoteOpenError::Unusable(RemoteError::Refused));
    assert_eq!(refused(RemoteAddress { database: 1, ..pager.clone() }), RemoteOpenError::ClusterDatabase);
    let store = TieredStore::open(config(pager.clone(), Bytes::mib(16), Bytes::mib(64), EXPIRY)).expect("in");
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill_every_shard(&store, &mut scratch);
    assert_all(&store, &mut scratch, &held);
    let clients: Vec<String> = cluster.nodes().iter().map(|server| server.ask("CLIENT LIST")).collect();
    assert!(clients.iter().all(|list| list.contains("user=pager")), "{clients:?}");
    // It is one of the others that evicts.
    let node = other_than_named(&cluster, &store);
    cluster.tell(node, "CONFIG SET maxmemory-policy allkeys-lru maxmemory 64mb");
    assert_eq!(refused(pager), RemoteOpenError::Evicts);
}

/// A server that claims to be one of a cluster, and answers everything else by `says`. Returns its
/// address.
fn liar(says: impl Fn(SocketAddr) -> String + Send + 'static, asked: &'static AtomicU64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let line = says(address);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, line) = (stream.expect("a connection"), line.clone());
            std::thread::spawn(move || {
                let mut parser = redis::Parser::new();
                let from = stream.try_clone().expect("a descriptor");
                let mut from = BufReader::new(from);
                while let Ok(Value::Array(words)) = parser.parse_value(&mut from) {
                    let info = "cluster_enabled:1\r\n";
                    let answer = match &words[0] {
                        Value::BulkString(word) if word == b"INFO" => {
                            format!("${}\r\n{info}\r\n", info.len())
                        }
                        Value::BulkString(word) if word == b"ASKING" => "+OK\r\n".to_owned(),
                        _ => {
                            asked.fetch_add(1, Ordering::Relaxed);
                            format!("{line}\r\n")
                        }
                    };
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn redirects_that_do_not_end_end() {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let address = |socket| RemoteAddress { socket, user: None, password: None, database: 0 };
    // To itself, as two that send to each other do.
    for (line, error) in [
        ("MOVED 1 SELF", RemoteError::Astray),
        ("ASK 1 SELF", RemoteError::Astray),
        ("TRYAGAIN", RemoteError::Down),
        ("CLUSTERDOWN", RemoteError::Down),
        ("MOVED 1 somewhere:7", RemoteError::Astray),
    ] {
        ASKED.store(0, Ordering::Relaxed);
        let socket = liar(move |own| format!("-{}", line.replace("SELF", &own.to_string())), &ASKED);
        assert_eq!(refused(address(socket)), RemoteOpenError::Unusable(error), "{line}");
        assert!(ASKED.load(Ordering::Relaxed) <= 6 * u64::from(SHARDS), "{line}");
    }
}
