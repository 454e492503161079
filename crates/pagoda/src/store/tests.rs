//! The store as a whole, with and without a file: stored pages come back, and freed ones are gone.
//! And the helpers that all its tests share.

use std::path::Path;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::io::direct_file::DirectFileError;
use pagoda_linux::io::ring::{DEPTH, Ring};
use pagoda_linux::testing::directory::on_disk;
use pagoda_linux::testing::skip::skip;
use tempfile::TempDir;

use super::*;
use pagoda_linux::codec::pack::{is_dense, pack};

/// A small generator, seeded, so that a failure can be run again.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
    pub fn bytes(&mut self, into: &mut [u8]) {
        into.iter_mut().for_each(|byte| *byte = (self.next() >> 24) as u8);
    }
}

/// A page of which this share of chunks is new and the rest repeats one of the last 32: 43
/// compresses 2:1, 25 3:1.
pub(crate) fn page_of(len: usize, new_percent: u64, seed: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut page, mut recent) = (Vec::with_capacity(len + 64), Vec::<Vec<u8>>::new());
    while page.len() < len {
        if recent.is_empty() || random.below(100) < new_percent {
            let mut chunk = vec![0; 16 + random.below(33) as usize];
            random.bytes(&mut chunk);
            page.extend_from_slice(&chunk);
            recent.push(chunk);
            if recent.len() > 32 {
                recent.remove(0);
            }
        } else {
            page.extend_from_slice(&recent[random.below(recent.len() as u64) as usize]);
        }
    }
    page.truncate(len);
    page
}

/// A directory on a disk.
pub(super) fn disk() -> TempDir {
    tempfile::tempdir_in(on_disk()).expect("a directory")
}

/// A store with a file in a directory of its own, which lives as long as the first of these.
pub(super) fn with_file(base: BasePage, memory: Bytes, file: Bytes) -> (TempDir, TieredStore, Scratch) {
    let directory = disk();
    let file = Some((directory.path(), file));
    let store = TieredStore::open(config(base, memory, file)).expect("a disk");
    (directory, store, Scratch::new(base))
}

/// The same, which has several requests in flight at once. None where the kernel does not allow it,
/// which is said.
pub(super) fn with_ring(
    base: BasePage,
    memory: Bytes,
    file: Bytes,
) -> Option<(TempDir, TieredStore, Scratch)> {
    if let Err(refusal) = Ring::open() {
        skip("io_uring", refusal);
        return None;
    }
    let directory = disk();
    let mut config = config(base, memory, Some((directory.path(), file)));
    config.file.iter_mut().for_each(|file| file.io_uring = true);
    let store = TieredStore::open(config).expect("a disk");
    assert_eq!(store.usage().file_requests_at_once, DEPTH as u64);
    Some((directory, store, Scratch::new(base)))
}

pub(super) fn config(base: BasePage, memory: Bytes, file: Option<(&Path, Bytes)>) -> StoreConfig {
    let file =
        file.map(|(directory, limit)| FileConfig { directory: directory.to_owned(), limit, io_uring: false });
    StoreConfig { base, memory_limit: memory, file, remote: None }
}

pub(super) fn stored(put: Result<Put, PutError>) -> Handle {
    match put {
        Ok(Put::Stored(handle)) => handle,
        other => panic!("{other:?}"),
    }
}

pub(super) fn assert_holds(store: &TieredStore, scratch: &mut Scratch, handle: Handle, page: &[u8]) {
    let mut back = vec![0xee; page.len()];
    store.get(handle, 0, &mut back, scratch).expect("stored");
    assert!(back == page, "another page came back for {handle:?}");
    // It never claims to hold other content than it has.
    let part = page.len() / 4096 / 2 * 4096;
    // It knows the pages that it has in memory. Other threads may move this one at any moment.
    let mut knows = || store.holds(handle, part, &page[part..], scratch).expect("stored");
    assert!((0..100).any(|_| knows() || !store.is_in_memory(handle)));
    back[part] ^= 1;
    assert_eq!(store.holds(handle, 0, &back, scratch), Ok(false));
    assert_eq!(store.holds(handle, part, &back[part..], scratch), Ok(false));
}

pub(super) fn assert_empty(store: &TieredStore) {
    let usage = store.usage();
    assert_eq!((usage.objects, usage.memory_used_bytes, usage.file_bytes), (0, Bytes::ZERO, Bytes::ZERO));
    store.trim();
    assert_eq!(store.memory.lock().pool.present_segments(), 0);
}

#[test]
fn zero_and_same_filled_pages_cost_nothing() {
    let store = TieredStore::open(config(BasePage::K4, Bytes::mib(1), None)).expect("small");
    let mut scratch = Scratch::new(BasePage::K4);
    assert_eq!(store.put(&[0; 4096], &mut scratch), Ok(Put::Zero));
    let page: Vec<u8> = [1, 2, 3, 0x84].repeat(1024);
    let handle = stored(store.put(&page, &mut scratch));
    assert!(handle.is_same_filled());
    assert!(handle.to_bits() < 1 << 36 && Handle::from_bits(handle.to_bits()) == handle);
    assert_holds(&store, &mut scratch, handle, &page);
    store.free(handle);
    assert_eq!((store.usage().objects, store.usage().memory_used_bytes), (0, Bytes::ZERO));
}

#[test]
fn pages_of_every_length_and_kind_come_back_from_memory_and_from_the_file() {
    for base in BasePage::ALL {
        let (_directory, store, mut scratch) = with_file(base, Bytes::mib(16), Bytes::mib(64));
        let kinds = [3, 25, 43, 90, 100];
        let pages: Vec<Vec<u8>> =
            (0..60).map(|i| page_of(store.page_bytes(), kinds[i % 5], i as u64)).collect();
        let handles: Vec<Handle> = pages.iter().map(|page| stored(store.put(page, &mut scratch))).collect();
        let check = |scratch: &mut Scratch| {
            handles
                .iter()
                .zip(&pages)
                .for_each(|(handle, page)| assert_holds(&store, scratch, *handle, page));
        };
        check(&mut scratch);
        assert_eq!(store.usage().raw_bytes, Bytes::new(60 * store.page_bytes() as u64));
        assert!(store.spill(Bytes::ZERO).expect("room").get() > 0);
        let usage = store.usage();
        assert_eq!((usage.memory_used_bytes, usage.objects), (Bytes::ZERO, 60));
        assert!(usage.file_bytes.get() > 0);
        check(&mut scratch);
        assert!(store.trim() > Bytes::ZERO);
        handles.iter().for_each(|handle| store.free(*handle));
        assert_eq!((store.usage().objects, store.usage().file_bytes), (0, Bytes::ZERO));
        let mut back = pages[0].clone();
        assert_eq!(store.get(handles[0], 0, &mut back, &mut scratch), Err(GetError::Corrupt), "it is free");
    }
}

#[test]
fn inner_waste_stays_below_15_percent() {
    for base in [BasePage::K4, BasePage::K16, BasePage::K64] {
        for percent in [43, 25] {
            let store = TieredStore::open(config(base, Bytes::mib(64), None)).expect("memory");
            let empty = store.table.bytes();
            let mut scratch = Scratch::new(base);
            let (mut packed, mut puts) = (0, 0);
            while packed < 6 << 20 {
                let page = page_of(store.page_bytes(), percent, puts);
                let mut into = vec![0; page.len()];
                packed += pack(&page, &mut into, &mut scratch.packer).expect("it shrinks") as u64;
                stored(store.put(&page, &mut scratch));
                puts += 1;
            }
            let usage = store.usage();
            // Leaves of the table are whole; a store of this size fills many.
            let tables = store.table.bytes() - empty;
            let links = usage.memory_used_bytes.get() / store.memory.block_bytes() as u64 * 4;
            let percent =
                (usage.memory_used_bytes.get() + tables + links) as f64 / packed as f64 * 100.0 - 100.0;
            println!("{base}: {packed} bytes of {puts} pages, waste with tables {percent:.1}%");
            assert_eq!(usage.memory_packed_bytes, Bytes::new(packed));
            assert!(usage.waste_percent() < percent, "{usage:?}");
            assert!(percent <= 15.0, "{base}: {percent}%");
        }
    }
}

/// After pages of all lengths were stored and freed, and every chain is of blocks that others have
/// left.
#[test]
fn waste_stays_below_15_percent_where_pages_come_and_go() {
    for base in [BasePage::K4, BasePage::K16, BasePage::K64] {
        let store = TieredStore::open(config(base, Bytes::mib(32), None)).expect("memory");
        let (mut scratch, mut random) = (Scratch::new(base), Random(7));
        let mut condenser = store.condenser();
        let count = (12 << 20) / store.page_bytes();
        let mut held: Vec<Handle> = Vec::new();
        for round in 0..6 * count as u64 {
            if held.len() >= count {
                store.free(held.swap_remove(random.below(count as u64) as usize));
            }
            let percent = [10, 25, 43, 60, 80][random.below(5) as usize];
            held.push(stored(store.put(&page_of(store.page_bytes(), percent, round), &mut scratch)));
            if random.below(20) == 0 {
                store.condense_oldest(&mut condenser, 0);
            }
        }
        store.trim();
        let usage = store.usage();
        println!("{base}: {usage:?} {:.1}%", usage.waste_percent());
        assert!(
            usage.memory_packed_bytes > Bytes::mib(2) && usage.waste_percent() < 15.0,
            "{base}: {usage:?}"
        );
    }
}

/// A page of words, as text is: better packed as a whole.
fn text_of(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut words = || format!("word{} ", random.below(300)).into_bytes();
    std::iter::repeat_with(&mut words).flatten().take(len).collect()
}

#[test]
fn cold_pages_become_smaller_and_come_back_from_every_tier() {
    for base in BasePage::ALL {
        let (_directory, store, mut scratch) = with_file(base, Bytes::mib(32), Bytes::mib(64));
        let mut condenser = store.condenser();
        let page = |i: u64| match i % 3 {
            0 => page_of(store.page_bytes(), 80, i),
            _ => text_of(store.page_bytes(), i),
        };
        let held: Vec<_> =
            (0..60).map(page).map(|page| (stored(store.put(&page, &mut scratch)), page)).collect();
        let before = store.usage();
        let mut saved = 0;
        // The last ten are too young.
        while let Some(bytes) = store.condense_oldest(&mut condenser, 10) {
            saved += bytes.get();
        }
        let usage = store.usage();
        assert!(saved > before.memory_packed_bytes.get() / 10, "{base}: {saved} of {before:?}");
        assert_eq!(usage.memory_packed_bytes.get() + saved, before.memory_packed_bytes.get());
        assert!(usage.memory_used_bytes < before.memory_used_bytes && usage.waste_percent() < 15.0);
        assert!(usage.memory_dense_bytes > Bytes::ZERO);
        let check = |scratch: &mut Scratch| {
            held.iter().for_each(|(handle, page)| assert_holds(&store, scratch, *handle, page));
        };
        check(&mut scratch);
        store.trim();
        check(&mut scratch);
        store.spill(Bytes::new(usage.memory_used_bytes.get() / 2)).expect("room");
        check(&mut scratch);
        store.spill(Bytes::ZERO).expect("room");
        check(&mut scratch);
        held.iter().for_each(|(handle, _)| store.free(*handle));
        assert_empty(&store);
    }
}

#[test]
fn a_full_store_says_so_and_loses_nothing() {
    let directory = disk();
    for file in [None, Some((directory.path(), Bytes::mib(1)))] {
        let store = TieredStore::open(config(BasePage::K64, Bytes::mib(1), file)).expect("small");
        let mut scratch = Scratch::new(BasePage::K64);
        let mut held = Vec::new();
        let error = loop {
            let page = page_of(64 << 10, 43 + 57 * (held.len() as u64 % 2), held.len() as u64);
            match store.put(&page, &mut scratch) {
                Ok(Put::Stored(handle)) => held.push((handle, page)),
                Ok(Put::Zero) => panic!("not zero"),
                Err(error) => break error,
            }
            assert!(held.len() < 1000, "two MiB don't hold 60");
        };
        assert_eq!(error, PutError::Full);
        assert_eq!(store.spill(Bytes::ZERO), Err(PutError::Full));
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
        for (handle, _) in held.drain(..4) {
            store.free(handle);
        }
        stored(store.put(&page_of(64 << 10, 25, 9), &mut scratch));
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
    }
}

#[test]
fn every_reason_not_to_open_is_named() {
    let directory = disk();
    fn open(memory: Bytes, file: Option<(&Path, Bytes)>) -> OpenError {
        TieredStore::open(config(BasePage::K64, memory, file)).map(|_| ()).expect_err("refused")
    }
    let error = open(Bytes::kib(64), None);
    assert!(matches!(error, OpenError::MemoryLimit { .. }), "{error}");
    let error = open(Bytes::mib(1), Some((directory.path(), Bytes::kib(64))));
    assert!(matches!(error, OpenError::FileLimit { .. }), "{error}");
    for path in [directory.path().join("missing"), "/proc/self".into()] {
        let error = open(Bytes::mib(1), Some((&path, Bytes::mib(8))));
        assert!(matches!(error, OpenError::File(DirectFileError::Create { .. })), "{error}");
    }
    if Path::new("/dev/shm").is_dir() {
        let error = open(Bytes::mib(1), Some((Path::new("/dev/shm"), Bytes::mib(8))));
        assert!(matches!(error, OpenError::File(DirectFileError::InMemory { .. })), "{error}");
    }
}

/// A limit on address space holds for a whole process, so this test runs itself again in one of its
/// own.
#[test]
fn address_space_that_is_limited_is_named() {
    if std::env::var_os("PAGODA_TEST_LIMITED").is_some() {
        let error =
            TieredStore::open(config(BasePage::K64, Bytes::gib(64), None)).map(|_| ()).expect_err("limited");
        assert!(
            matches!(error, OpenError::Reserve { .. }) && error.to_string().contains("ulimit -v"),
            "{error}"
        );
        return;
    }
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -v 4000000 && exec \"$0\" --exact store::tests::address_space_that_is_limited_is_named",
        ])
        .arg(std::env::current_exe().expect("a path"))
        .env("PAGODA_TEST_LIMITED", "1")
        .status();
    assert!(status.expect("a shell").success());
}

#[test]
fn sparse_segments_are_emptied_and_given_back() {
    let store = TieredStore::open(config(BasePage::K16, Bytes::mib(24), None)).expect("memory");
    let mut scratch = Scratch::new(BasePage::K16);
    let mut random = Random(5);
    let mut held: Vec<_> = (0..1500)
        .map(|i| page_of(16 << 10, 43, i))
        .map(|page| (stored(store.put(&page, &mut scratch)), page))
        .collect();
    while held.len() > 300 {
        let (handle, _) = held.swap_remove(random.below(held.len() as u64) as usize);
        store.free(handle);
    }
    let before = store.usage();
    assert!(before.memory_is_sparse(), "{before:?}");
    assert!(store.trim() > Bytes::mib(7), "{before:?} {:?}", store.usage());
    assert!(!store.usage().memory_is_sparse(), "{:?}", store.usage());
    held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
    held.iter().for_each(|(handle, _)| store.free(*handle));
    store.trim();
    assert_eq!(store.memory.lock().pool.present_segments(), 0);
}

#[test]
fn a_page_packed_as_a_whole_goes_and_comes_unchanged() {
    for base in BasePage::ALL {
        let from = TieredStore::open(config(base, Bytes::mib(32), None)).expect("memory");
        let (_directory, to, mut scratch) = with_file(base, Bytes::mib(32), Bytes::mib(64));
        let pages: Vec<_> = (0..30).map(|i| text_of(from.page_bytes(), i)).collect();
        let held: Vec<_> = pages.iter().map(|page| stored(from.put(page, &mut scratch))).collect();
        from.condense_all();
        let mut other = Scratch::new(base);
        let (mut arrived, mut whole) = (Vec::new(), 0);
        for (handle, page) in held.iter().zip(&pages) {
            let packed = from.get_packed(*handle, &mut scratch).expect("stored").expect("packed");
            whole += usize::from(is_dense(packed));
            arrived.push(to.put_packed(packed, page).expect("room").expect("short enough"));
        }
        assert!(whole > 20, "{base}: {whole} of 30");
        assert_eq!(to.usage().memory_packed_bytes, from.usage().memory_packed_bytes, "{base}");
        let check = |other: &mut Scratch| {
            arrived.iter().zip(&pages).for_each(|(handle, page)| assert_holds(&to, other, *handle, page));
        };
        check(&mut other);
        // It can't become smaller, and is marked as tried from then on.
        to.condense_all();
        check(&mut other);
        assert_eq!(to.usage().memory_dense_bytes, to.usage().memory_packed_bytes, "{base}");
        to.spill(Bytes::ZERO).expect("room");
        check(&mut other);
        arrived.iter().for_each(|handle| to.free(*handle));
        assert_empty(&to);
    }
}

/// Figures, not a check:
/// `cargo test --release -p pagoda-vm store_figures -- --ignored --nocapture`.
#[test]
#[ignore = "prints timings"]
fn store_figures() {
    let directory = disk();
    for percent in [43, 25] {
        let file = Some((directory.path(), Bytes::gib(1)));
        let store = TieredStore::open(config(BasePage::K64, Bytes::mib(256), file)).expect("a disk");
        let mut scratch = Scratch::new(BasePage::K64);
        let pages: Vec<_> = (0..512).map(|i| page_of(64 << 10, percent, i)).collect();
        let mut into = vec![0; 64 << 10];
        for round in 0..3 {
            let us = |from: std::time::Instant| from.elapsed().as_secs_f64() * 1e6 / (4 * pages.len()) as f64;
            let start = std::time::Instant::now();
            let handles: Vec<_> =
                (0..4).flat_map(|_| &pages).map(|page| stored(store.put(page, &mut scratch))).collect();
            let put = us(start);
            let start = std::time::Instant::now();
            handles.iter().for_each(|handle| store.get(*handle, 0, &mut into, &mut scratch).expect("stored"));
            let get = us(start);
            let mut condenser = store.condenser();
            let (start, mut saved) = (std::time::Instant::now(), 0);
            while let Some(bytes) = store.condense_oldest(&mut condenser, 0) {
                saved += bytes.get();
            }
            let condense = us(start);
            let start = std::time::Instant::now();
            handles.iter().for_each(|handle| store.get(*handle, 0, &mut into, &mut scratch).expect("stored"));
            println!("condense {condense:.1} us, saves {}, then get {:.1} us", Bytes::new(saved), us(start));
            let usage = store.usage();
            // The first half to the file, then the other half while the first is fetched.
            store.spill(Bytes::new(usage.memory_used_bytes.get() / 2)).expect("room");
            let (store_ref, mut slow) = (&store, Vec::new());
            let mut other = Scratch::new(BasePage::K64);
            std::thread::scope(|scope| {
                let spiller = scope.spawn(move || store_ref.spill(Bytes::mib(8)));
                for handle in handles.iter().take(handles.len() / 2) {
                    if spiller.is_finished() {
                        break;
                    }
                    let start = std::time::Instant::now();
                    store.get(*handle, 0, &mut into, &mut other).expect("stored");
                    slow.push(start.elapsed().as_micros());
                }
            });
            slow.sort_unstable();
            println!(
                "fetch while spilling: {} times, p50 {} us, p90 {}, max {}",
                slow.len(),
                slow[slow.len() / 2],
                slow[slow.len() * 9 / 10],
                slow[slow.len() - 1]
            );
            let start = std::time::Instant::now();
            let freed = store.spill(Bytes::ZERO).expect("room").get() as f64;
            let spill = freed / start.elapsed().as_secs_f64() / 1e9;
            let start = std::time::Instant::now();
            handles.iter().for_each(|handle| store.get(*handle, 0, &mut into, &mut scratch).expect("stored"));
            let fetch = us(start);
            let file = store.usage().file_bytes;
            let start = std::time::Instant::now();
            handles.iter().for_each(|handle| store.free(*handle));
            let free = us(start);
            println!(
                "{percent}% new, round {round}: per 64 KiB put {put:.1} us, get {get:.1} us, get from file {fetch:.1} us, free {free:.2} us; \
                 spill {spill:.2} GB/s; raw {} memory {} committed {} file {file}",
                usage.raw_bytes, usage.memory_used_bytes, usage.memory_committed_bytes
            );
        }
    }
}
