//! Seeded walks over the store, alone and from several threads at once: each page that comes back
//! is compared with a shadow of it.

use pagoda_linux::testing::length::length;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;

use super::tests::{Random, assert_empty, assert_holds, config, disk, page_of, stored};
use super::*;

/// Changes a bit of a page in its place, if it can be, and looks whether the store knows.
fn write_a_bit(
    store: &TieredStore,
    scratch: &mut Scratch,
    random: &mut Random,
    handle: Handle,
    page: &mut [u8],
) {
    let from = random.below(page.len() as u64 / 4096) as usize * 4096;
    let changed = from..from + 4096;
    let mut content = vec![0x5a; page.len()];
    content[changed.clone()].copy_from_slice(&page[changed.clone()]);
    content[from + random.below(4096) as usize] ^= 1 << random.below(8);
    if store.rewrite(handle, std::slice::from_ref(&changed), &content, scratch) {
        page[changed.clone()].copy_from_slice(&content[changed.clone()]);
        assert_eq!(store.holds(handle, from, &page[changed.clone()], scratch), Ok(true));
    }
    assert_holds(store, scratch, handle, page);
    let mut other = page[changed].to_vec();
    other[0] ^= 1;
    assert_eq!(store.holds(handle, from, &other, scratch), Ok(false));
}

/// A seeded walk over everything one can do, against a shadow map.
pub(super) fn walk(store: &TieredStore, seed: u64, steps: u32, movers: bool) {
    let base_len = store.page_bytes();
    let mut scratch = Scratch::new(match base_len {
        4096 => BasePage::K4,
        16384 => BasePage::K16,
        _ => BasePage::K64,
    });
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut shadow: HashMap<u64, (Handle, Vec<u8>)> = HashMap::new();
    let mut condenser = store.condenser();
    for step in 0..steps {
        let key = random.below(150);
        let beside: Vec<_> = (1..6).filter_map(|i| shadow.get(&(key + i)).cloned()).collect();
        match (random.below(100), shadow.get_mut(&key)) {
            (0..2, _) if movers => {
                let _ = store.spill(Bytes::kib(random.below(2000)));
                store.trim();
            }
            (2..5, _) if movers => {
                let some = random.below(40);
                for _ in 0..some {
                    store.condense_oldest(&mut condenser, 0);
                }
            }
            (_, None) => {
                let percent = [2, 25, 43, 80, 100][random.below(5) as usize];
                let page = page_of(base_len, percent, random.next());
                match store.put(&page, &mut scratch) {
                    Ok(Put::Stored(handle)) => drop(shadow.insert(key, (handle, page))),
                    Ok(Put::Zero) => panic!("not zero"),
                    Err(error) => assert_eq!(error, PutError::Full, "step {step}"),
                }
            }
            (0..50, Some((handle, page))) => assert_holds(store, &mut scratch, *handle, page),
            (50..70, Some((handle, page))) => {
                let other = page_of(base_len, 43, random.next());
                let from = random.below(base_len as u64 / 4096) as usize * 4096;
                let mut content = vec![0x5a; base_len];
                content[from..from + 4096].copy_from_slice(&other[from..from + 4096]);
                let changed = from..from + 4096;
                let changed = std::slice::from_ref(&changed);
                let anew = store.put_changed(*handle, changed, &content, &mut scratch).expect("stored");
                if let Some(anew) = anew {
                    store.free(*handle);
                    *handle = anew;
                    page[from..from + 4096].copy_from_slice(&other[from..from + 4096]);
                }
                assert_holds(store, &mut scratch, *handle, page);
            }
            (81..91, Some((handle, page))) => write_a_bit(store, &mut scratch, &mut random, *handle, page),
            (70..74, Some((handle, page))) => {
                store.promote(*handle, &mut scratch).expect("stored");
                assert_holds(store, &mut scratch, *handle, page);
            }
            (74..78, Some((handle, page))) => {
                let others: Vec<_> = beside.iter().map(|(handle, _)| *handle).collect();
                store.promote_together(*handle, &others);
                assert_holds(store, &mut scratch, *handle, page);
                beside.iter().for_each(|(handle, page)| assert_holds(store, &mut scratch, *handle, page));
            }
            (78..81, Some((handle, page))) => {
                store.demote(*handle);
                assert_holds(store, &mut scratch, *handle, page);
            }
            (_, Some((handle, _))) => {
                store.free(*handle);
                shadow.remove(&key);
            }
        }
    }
    for (handle, page) in shadow.into_values() {
        assert_holds(store, &mut scratch, handle, &page);
        store.free(handle);
    }
}

#[test]
fn a_seeded_walk_agrees_with_a_shadow_map() {
    let directory = disk();
    for (seed, base) in [(1, BasePage::K4), (2, BasePage::K16), (3, BasePage::K64)] {
        let file = Some((directory.path(), Bytes::mib(3)));
        let store = TieredStore::open(config(base, Bytes::kib(800), file)).expect("a disk");
        walk(&store, seed, 4000, true);
        assert_empty(&store);
    }
}

#[test]
fn threads_that_put_get_free_spill_and_trim_at_once_agree_with_their_shadows() {
    let directory = disk();
    for base in [BasePage::K4, BasePage::K64] {
        let file = Some((directory.path(), Bytes::mib(16)));
        let store = TieredStore::open(config(base, Bytes::mib(2), file)).expect("a disk");
        let mut scratch = Scratch::new(base);
        let shared: Vec<_> = (0..20).map(|i| page_of(store.page_bytes(), 43, 1000 + i)).collect();
        let handles: Vec<_> = shared.iter().map(|page| stored(store.put(page, &mut scratch))).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let movers = [(); 2].map(|()| {
                scope.spawn(|| {
                    let (mut random, mut condenser) = (Random(77), store.condenser());
                    while !over.load(Ordering::Relaxed) {
                        let _ = store.spill(Bytes::kib(random.below(1500)));
                        store.trim();
                        for _ in 0..20 {
                            store.condense_oldest(&mut condenser, 0);
                        }
                    }
                })
            });
            // Readers of the same handles, while these move.
            let readers = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut scratch = Scratch::new(base);
                    while !over.load(Ordering::Relaxed) {
                        for (handle, page) in handles.iter().zip(&shared) {
                            assert_holds(&store, &mut scratch, *handle, page);
                        }
                    }
                })
            });
            let store = &store;
            let walkers =
                [11, 12, 13].map(|seed| scope.spawn(move || walk(store, seed, length(1000, 2500), false)));
            let outcomes = walkers.map(std::thread::ScopedJoinHandle::join);
            over.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.expect("no walker failed"));
            readers
                .into_iter()
                .chain(movers)
                .for_each(|thread| thread.join().expect("it went on to the end"));
        });
        handles.iter().for_each(|handle| store.free(*handle));
        assert_empty(&store);
    }
}
