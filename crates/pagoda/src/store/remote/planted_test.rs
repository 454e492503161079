//! A server that shows, swaps, replays and makes up values: the store reads none that it did not
//! write there last.

use pagoda_core::page::BasePage;
use pagoda_linux::testing::redis::RedisServer;

use super::tests::{ROOMY, ask, assert_all, delete_all_gone, fill, open};
use super::*;
use crate::store::tests::{disk, page_of, stored};
use crate::store::{Handle, Scratch, Store, TieredStore};

type Held = Vec<(Handle, Vec<u8>)>;

/// Fields of a hash, each with its value.
fn all_fields(server: &RedisServer, key: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Value::Array(content) = ask(server, redis::cmd("HGETALL").arg(key).clone()) else { panic!() };
    let bytes = |value: &Value| match value {
        Value::BulkString(bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    };
    content.chunks(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1]))).collect()
}

fn set(server: &RedisServer, key: &str, field: &[u8], value: &[u8]) {
    let set = redis::cmd("HSET").arg(key).arg(field).arg(value).clone();
    assert_eq!(ask(server, set), Value::Int(0), "the field is there");
}

/// Reads every page: it is as stored, or an error. Returns how many were errors.
fn refused(store: &TieredStore, scratch: &mut Scratch, held: &Held) -> usize {
    let is_refused = |(handle, page): &&(Handle, Vec<u8>)| {
        let mut back = vec![0; page.len()];
        match store.get(*handle, 0, &mut back, scratch) {
            Ok(()) => assert!(back == *page, "planted content was served"),
            Err(error) => assert_eq!(error, GetError::Corrupt),
        }
        back != *page
    };
    held.iter().filter(is_refused).count()
}

fn spilled(store: &TieredStore, scratch: &mut Scratch, pages: impl Iterator<Item = Vec<u8>>) -> Held {
    let held = pages.map(|page| (stored(store.put(&page, scratch)), page)).collect();
    store.spill(Bytes::ZERO).expect("room");
    held
}

#[test]
fn a_server_sees_nothing_of_what_it_stores_and_not_what_is_equal() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let (store, mut scratch) = (open(&server, Bytes::mib(16)), Scratch::new(BasePage::K64));
    // Each twice; those of one kind are stored as they are.
    let held =
        spilled(&store, &mut scratch, (0..10).map(|i| page_of(64 << 10, [25, 100][i % 2], i as u64 / 2 % 3)));
    let values: Vec<Vec<u8>> = store
        .remote
        .as_ref()
        .expect("one")
        .keys()
        .iter()
        .flat_map(|key| all_fields(&server, key))
        .map(|(_, v)| v)
        .collect();
    assert_eq!(values.len(), held.len());
    for (at, value) in values.iter().enumerate() {
        let shown = |page: &[u8]| page.chunks(16).any(|part| value.windows(16).any(|seen| seen == part));
        assert!(!held.iter().any(|(_, page)| shown(&page[..4096])), "value {at} has content of a page");
        assert!(!values[..at].contains(value), "value {at} is equal to one before");
    }
    assert_all(&store, &mut scratch, &held);
}

#[test]
fn values_that_a_server_swaps_replays_or_takes_from_another_engine_are_not_read() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let ([store, other], mut scratch) =
        ([(); 2].map(|()| open(&server, Bytes::mib(16))), Scratch::new(BasePage::K64));
    let pages = |from: u64| (0..8).map(move |i| page_of(64 << 10, 100, from + i));
    let key = |store: &TieredStore| store.remote.as_ref().expect("one").keys();
    // The values of a first generation of pages, which are freed: the next have their numbers.
    let first = spilled(&store, &mut scratch, pages(0));
    let older: Vec<_> = key(&store).iter().flat_map(|key| all_fields(&server, key)).collect();
    first.iter().for_each(|(handle, _)| store.free(*handle));
    delete_all_gone(&store);
    let held = spilled(&store, &mut scratch, pages(100));
    // Another engine's, of the very same pages and numbers.
    let others = spilled(&other, &mut scratch, pages(100));
    let foreign: Vec<_> = key(&other).iter().flat_map(|key| all_fields(&server, key)).collect();
    let fields: Vec<_> = key(&store)
        .into_iter()
        .flat_map(|key| {
            all_fields(&server, &key).into_iter().map(move |(field, value)| (key.clone(), field, value))
        })
        .collect();
    let number = |field: &[u8]| field[..4].to_vec();
    assert_eq!((fields.len(), older.len(), foreign.len()), (8, 8, 8));
    for (at, (key, field, good)) in fields.iter().enumerate() {
        let same = |all: &[(Vec<u8>, Vec<u8>)]| {
            let found = all.iter().find(|(of, _)| number(of) == number(field));
            found.expect("numbers are given out anew").1.clone()
        };
        for planted in [same(&older), same(&foreign), fields[(at + 1) % 8].2.clone(), vec![0; good.len()]] {
            assert_ne!(planted, *good);
            set(&server, key, field, &planted);
            assert_eq!(refused(&store, &mut scratch, &held), 1, "field {at}");
        }
        set(&server, key, field, good);
    }
    assert_eq!(refused(&store, &mut scratch, &held) + refused(&other, &mut scratch, &others), 0);
}

#[test]
fn what_comes_back_otherwise_is_never_served() {
    let directory = disk();
    let Some(server) = RedisServer::start(directory.path(), &[]) else { return };
    let store = open(&server, ROOMY);
    let mut scratch = Scratch::new(BasePage::K64);
    let held = fill(&store, &mut scratch, 10);
    store.spill(Bytes::ZERO).expect("room");
    let key = store.remote.as_ref().expect("one").keys().remove(0);
    let pairs = all_fields(&server, &key);
    assert_eq!(pairs.len(), 10);
    let set = |field: &[u8], value: &[u8]| set(&server, &key, field, value);
    for (at, (field, good)) in pairs.iter().enumerate() {
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 1;
        // One bit; cut off; longer; that of another page; nothing.
        let others = [
            flipped,
            good[..good.len() - 1].to_vec(),
            [good, &[0][..]].concat(),
            pairs[(at + 5) % 10].1.clone(),
            Vec::new(),
        ];
        for other in others {
            set(field, &other);
            assert!(refused(&store, &mut scratch, &held) >= 1);
        }
        set(field, good);
    }
    assert_all(&store, &mut scratch, &held);
}
