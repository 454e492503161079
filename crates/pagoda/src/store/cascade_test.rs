//! Objects that move on from the file to a real server: which ones, and concurrent frees, reads and
//! promotions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::io::direct_file::AlignedBuffer;
use pagoda_linux::testing::redis::RedisServer;
use pagoda_linux::testing::wait::{EndsWith, until};
use tempfile::TempDir;

use super::file::{Batch, HOLD_READ, READ_IS_HELD};
use super::handle::Meaning;
use super::objects::Kind;
use super::tests::{Random, assert_holds, disk, page_of, stored};
use super::*;
use crate::store::fault_injection::{Faults, Plan};

struct Tiers {
    store: TieredStore,
    server: RedisServer,
    _directory: TempDir,
}

fn open(base: BasePage, memory: Bytes, file: Bytes, remote: Bytes) -> Option<Tiers> {
    let directory = disk();
    let server = RedisServer::start(directory.path(), &["--appendonly", "no"])?;
    let address = RemoteAddress { socket: server.address(), user: None, password: None, database: 0 };
    let remote = RemoteConfig { address, limit: remote, expiry: Duration::from_secs(60) };
    let file = FileConfig { directory: directory.path().to_owned(), limit: file, io_uring: false };
    let config = StoreConfig { base, memory_limit: memory, file: Some(file), remote: Some(remote) };
    Some(Tiers { store: TieredStore::open(config).expect("opened"), server, _directory: directory })
}

fn kind(store: &TieredStore, handle: Handle) -> Kind {
    match handle.meaning() {
        Meaning::Object(id) => store.table.at(id).word().kind(),
        Meaning::SameFilled(_) | Meaning::Image(_) => panic!("no object"),
    }
}

type Held = Vec<(Handle, Vec<u8>)>;

/// Pages that are put and spilled one batch after the other, so that their order is that of their
/// ages.
fn spilled(store: &TieredStore, scratch: &mut Scratch, seeds: std::ops::Range<u64>) -> Held {
    let page = |seed| page_of(store.page_bytes(), 43, seed);
    let held: Held = seeds.map(page).map(|page| (stored(store.put(&page, scratch)), page)).collect();
    store.spill(Bytes::ZERO).expect("room");
    held
}

fn assert_all(store: &TieredStore, scratch: &mut Scratch, held: &Held) {
    held.iter().for_each(|(handle, page)| assert_holds(store, scratch, *handle, page));
}

/// Frees everything: nothing is left in any tier.
fn end(tiers: &Tiers, held: &Held) {
    let store = &tiers.store;
    held.iter().for_each(|(handle, _)| store.free(*handle));
    while store.delete_gone() {}
    let remote = store.remote.as_ref().expect("a server");
    remote.delete_strays_now().expect("it works");
    let usage = store.usage();
    assert_eq!((usage.objects, usage.memory_used_bytes), (0, Bytes::ZERO));
    assert_eq!((usage.file_bytes, usage.remote_bytes, remote.fields()), (Bytes::ZERO, Bytes::ZERO, 0));
    let state = store.memory.lock();
    assert_eq!((state.numbers.used, state.filed.objects, state.filed.bytes), (0, 0, 0));
}

#[test]
fn the_file_keeps_warm_objects_and_the_oldest_go_to_the_server() {
    let Some(tiers) = open(BasePage::K64, Bytes::mib(16), Bytes::mib(8), Bytes::mib(64)) else { return };
    let (store, mut scratch) = (&tiers.store, Scratch::new(BasePage::K64));
    // About 32 KiB each: 20 MiB of them.
    let mut held: Held = (0..40).flat_map(|i| spilled(store, &mut scratch, i * 16..i * 16 + 16)).collect();
    let kinds = |held: &[(Handle, Vec<u8>)]| -> Vec<Kind> {
        held.iter().map(|(handle, _)| kind(store, *handle)).collect()
    };
    assert!(kinds(&held[..320]).iter().all(|kind| *kind == Kind::Remote), "the oldest");
    assert!(kinds(&held[480..]).iter().all(|kind| *kind == Kind::File), "the youngest");
    let usage = store.usage();
    assert!(usage.file_bytes > Bytes::mib(5) && usage.file_bytes < Bytes::mib(8), "{usage:?}");
    assert_all(store, &mut scratch, &held);
    // Objects that were in memory again in between are young.
    let warm: Vec<Handle> = held[480..490].iter().map(|(handle, _)| *handle).collect();
    for handle in &warm {
        assert_eq!(store.promote(*handle, &mut scratch), Ok(true));
        store.demote(*handle);
    }
    held.extend((40..48).flat_map(|i| spilled(store, &mut scratch, i * 16..i * 16 + 16)));
    assert!(warm.iter().all(|handle| kind(store, *handle) == Kind::File));
    assert!(kinds(&held[490..500]).iter().all(|kind| *kind == Kind::Remote));
    assert_all(store, &mut scratch, &held);
    end(&tiers, &held);
}

#[test]
fn where_the_server_takes_nothing_the_file_keeps_all_of_it() {
    let Some(mut tiers) = open(BasePage::K64, Bytes::mib(4), Bytes::mib(4), Bytes::mib(64)) else { return };
    let mut scratch = Scratch::new(BasePage::K64);
    let mut held: Held =
        (0..5).flat_map(|i| spilled(&tiers.store, &mut scratch, i * 16..i * 16 + 16)).collect();
    assert_eq!(tiers.store.usage().remote_bytes, Bytes::ZERO);
    tiers.server.kill();
    let store = &tiers.store;
    // It takes the file's last slots, and memory, before an error is returned.
    let error = loop {
        let page = page_of(64 << 10, 43, 1000 + held.len() as u64);
        match store.put(&page, &mut scratch) {
            Ok(put) => held.push((stored(Ok(put)), page)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PutError::Remote { .. }), "{error}");
    assert!(held.iter().all(|(handle, _)| kind(store, *handle) != Kind::Remote));
    assert_all(store, &mut scratch, &held);
    tiers.server.restart(&["--appendonly", "no"]);
    end(&tiers, &held);
}

/// The interleavings of one move, step by step: a free, a read and a promotion between its
/// beginning and its end.
#[test]
fn a_free_a_read_or_a_promotion_during_a_move_is_right() {
    let Some(tiers) = open(BasePage::K64, Bytes::mib(4), Bytes::mib(8), Bytes::mib(64)) else { return };
    let (store, mut scratch) = (&tiers.store, Scratch::new(BasePage::K64));
    let (file, remote) = (store.file.as_ref().expect("a file"), store.remote.as_ref().expect("a server"));
    let mut held = spilled(store, &mut scratch, 0..4);
    for is_written in [false, true] {
        let mut batch = Batch::new(Bytes::gib(1));
        let run = store.gather_filed(&mut store.memory.lock(), &mut batch).expect("there are some");
        assert_eq!(batch.items.len(), held.len());
        file.read_run(run, &mut batch.buffer).expect("a disk");
        assert!(store.split_off_damaged(file, run, &mut batch).is_empty());
        let number = is_written.then(|| remote.write(&mut batch).expect("it works"));
        store.free(held[0].0);
        assert_eq!(store.promote(held[1].0, &mut scratch), Ok(false), "its mover was first");
        assert_eq!(store.promote_together(held[1].0, &[held[2].0]), 0);
        assert_all(store, &mut scratch, &held[1..].to_vec());
        store.settle_filed(file, number.map(|number| (remote, number)), run, &batch);
        let freed = held.remove(0).0;
        assert_eq!(kind(store, freed), Kind::Free);
        let expected = if is_written { Kind::Remote } else { Kind::File };
        assert!(held.iter().all(|(handle, _)| kind(store, *handle) == expected));
        assert_all(store, &mut scratch, &held);
    }
    assert_eq!(store.usage().file_bytes, Bytes::ZERO, "the one that was freed leaves nothing there either");
    end(&tiers, &held);
}

#[test]
fn a_damaged_object_in_the_file_does_not_go_to_the_server_and_holds_up_no_other() {
    let Some(tiers) = open(BasePage::K64, Bytes::mib(4), Bytes::mib(4), Bytes::mib(64)) else { return };
    let (store, mut scratch) = (&tiers.store, Scratch::new(BasePage::K64));
    let mut held = spilled(store, &mut scratch, 0..4);
    let Meaning::Object(id) = held[0].0.meaning() else { panic!("a page of one word") };
    let file = store.file.as_ref().expect("a file").raw_file();
    let at = u64::from(store.table.at(id).word().units().slots().first + 1) * 4096;
    let mut slot = AlignedBuffer::new(4096);
    file.read_at(at, &mut slot).expect("written");
    slot[7] ^= 1;
    file.write_at(at, &slot).expect("room");
    held.extend((1..12).flat_map(|i| spilled(store, &mut scratch, i * 16..i * 16 + 16)));
    let (damaged, page) = held.swap_remove(0);
    assert!(held.iter().any(|(handle, _)| kind(store, *handle) == Kind::Remote));
    assert_eq!(kind(store, damaged), Kind::File);
    let mut back = vec![0; page.len()];
    assert_eq!(store.get(damaged, 0, &mut back, &mut scratch), Err(GetError::Corrupt));
    assert_all(store, &mut scratch, &held);
    store.free(damaged);
    end(&tiers, &held);
}

#[test]
fn an_unreadable_object_in_the_file_stays_there_and_holds_up_no_other() {
    let Some(mut tiers) = open(BasePage::K64, Bytes::mib(4), Bytes::mib(4), Bytes::mib(64)) else { return };
    let (mut scratch, mut held, mut failed) = (Scratch::new(BasePage::K64), Held::new(), 0);
    for seed in 1..=16 {
        // Until something has to go from the file.
        while tiers.store.file.as_ref().expect("a file").has_room_for_copies() {
            let next = held.len() as u64;
            held.extend(spilled(&tiers.store, &mut scratch, next..next + 16));
        }
        let plan = Plan::new(seed, 1000);
        tiers.store.file.as_mut().expect("a file").faults = Faults(Some(Arc::clone(&plan)));
        let store = &tiers.store;
        let oldest = store.memory.lock().filed.oldest();
        store.make_room_in_file(&mut Batch::new(Bytes::gib(1)));
        plan.end();
        let [errors, short, delays, broken, spoilt] = plan.happened();
        failed += errors + short + broken;
        assert_ne!(store.memory.lock().filed.oldest(), oldest, "{errors} {short} {delays} {broken} {spoilt}");
        assert_all(store, &mut scratch, &held);
    }
    assert!(failed > 0, "a read has failed");
    assert!(held.iter().any(|(handle, _)| kind(&tiers.store, *handle) == Kind::Remote));
    end(&tiers, &held);
}

/// Lets a read go on that is held, and holds none from then on.
struct GoesOn<'a>(&'a AtomicU32);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A read that begins before a move and ends after it, when other bytes lie at the place: of a
/// page, of a part, and of one on its way into memory.
#[test]
fn a_reader_of_an_object_that_moves_on_never_gets_another() {
    let Some(tiers) = open(BasePage::K64, Bytes::mib(4), Bytes::mib(8), Bytes::mib(64)) else { return };
    let (store, mut scratch) = (&tiers.store, Scratch::new(BasePage::K64));
    let (file, remote) = (store.file.as_ref().expect("a file"), store.remote.as_ref().expect("a server"));
    for read in 0..3 {
        let held = spilled(store, &mut scratch, 3 * read..3 * read + 3);
        let (handle, page) = &held[1];
        file.held_read.store(HOLD_READ, Ordering::Release);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut scratch, mut part) = (Scratch::new(BasePage::K64), [0xee; 4096]);
                match read {
                    0 => assert_holds(store, &mut scratch, *handle, page),
                    1 => assert_eq!(store.read_block(*handle, 3, &mut part, &mut scratch), Ok(None)),
                    _ => assert_eq!(store.promote(*handle, &mut scratch), Ok(false)),
                }
            });
            // Whatever fails in the meantime: the reader goes on, and ends.
            let goes_on = GoesOn(&file.held_read);
            until("a read that is held", || file.held_read.load(Ordering::Acquire) == READ_IS_HELD);
            let mut batch = Batch::new(Bytes::gib(1));
            let run = store.gather_filed(&mut store.memory.lock(), &mut batch).expect("there are some");
            file.read_run(run, &mut batch.buffer).expect("a disk");
            assert!(store.split_off_damaged(file, run, &mut batch).is_empty());
            let number = remote.write(&mut batch).expect("it works");
            store.settle_filed(file, Some((remote, number)), run, &batch);
            let others = AlignedBuffer::new(run.slots as usize * 4096);
            file.raw_file().write_at(u64::from(run.first) * 4096, &others).expect("room");
            drop(goes_on);
            reader.join().expect("it got its page, or was told nothing");
        });
        assert_eq!(kind(store, *handle), Kind::Remote);
        assert_all(store, &mut scratch, &held);
        end(&tiers, &held);
    }
}

/// Readers that the mover does not wait for, while their objects move on and their places in the
/// file are used anew.
#[test]
fn readers_of_objects_that_move_on_get_the_stored_page() {
    for base in [BasePage::K4, BasePage::K64] {
        let Some(tiers) = open(base, Bytes::mib(1), Bytes::mib(1), Bytes::gib(1)) else { return };
        let store = &tiers.store;
        let over = AtomicBool::new(false);
        let mut scratch = Scratch::new(base);
        let mut all: Held = Vec::new();
        for round in 0..6 {
            let count = (2 << 20) / store.page_bytes() as u64;
            let held: Held = (0..count)
                .map(|i| page_of(store.page_bytes(), 43, round << 32 | i))
                .map(|page| (stored(store.put(&page, &mut scratch)), page))
                .collect();
            over.store(false, Ordering::Relaxed);
            std::thread::scope(|scope| {
                let ends = EndsWith(&over);
                for reader in 1..3 {
                    let (held, over) = (&held, &over);
                    scope.spawn(move || {
                        let (mut scratch, mut random) = (Scratch::new(base), Random(reader));
                        while !over.load(Ordering::Relaxed) {
                            let (handle, page) = &held[random.below(held.len() as u64) as usize];
                            assert_holds(store, &mut scratch, *handle, page);
                        }
                    });
                }
                for i in 0..2 * count {
                    let page = page_of(store.page_bytes(), 60, round << 32 | 1 << 31 | i);
                    let handle = stored(store.put(&page, &mut scratch));
                    if i % 3 == 0 {
                        assert_holds(store, &mut scratch, handle, &page);
                        store.free(handle);
                    } else {
                        all.push((handle, page));
                    }
                }
                drop(ends);
            });
            assert!(held.iter().any(|(handle, _)| kind(store, *handle) == Kind::Remote), "some moved");
            all.extend(held);
        }
        assert_all(store, &mut scratch, &all);
        end(&tiers, &all);
    }
}
