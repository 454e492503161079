//! A parent's store and its children's over one file. Each reader gets its own page, whatever the
//! others store, free and release, and however they end. When they are gone nothing of them is left
//! in the file.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_core::space::extent_leases::BORROWERS_MAX;
use pagoda_linux::io::direct_file::DirectFile;
use pagoda_linux::io::holds::Holds;
use pagoda_linux::process::offer::{Lent, Stream};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::wait::{EndsWith, until};
use tempfile::TempDir;

use super::file::{self, FileTier};
use super::tests::{Random, assert_holds, config, disk, page_of, stored};
use super::*;

type Held = HashMap<u64, (Handle, Vec<u8>)>;

/// A child's store. Dropping it is as being killed: no bit is cleared, and the stream is over.
struct Child {
    store: TieredStore,
    held: Held,
}

fn open(base: BasePage, directory: &TempDir, memory: Bytes, file: Bytes) -> TieredStore {
    TieredStore::open(config(base, memory, Some((directory.path(), file)))).expect("a disk")
}

/// A child that has all pages of its parent: those in the file are lent, and the rest copied. None
/// if there is no loan.
fn fork(parent: &TieredStore, held: &Held, store: TieredStore, scratch: &mut Scratch) -> Option<Child> {
    let loan = parent.loan()?;
    let (mine, theirs) = Stream::pair(Duration::from_secs(5)).expect("a stream");
    parent.begin_loan(&loan, &Arc::new(mine));
    let (file, holds) = loan.descriptors();
    let number = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a number");
    let lent = Lent {
        file: DirectFile::from(number(file.as_fd())),
        holds: Holds::of(number(holds.as_fd())).expect("the same"),
    };
    assert!(store.borrow_from(lent, &parent.lent_keys(), &Arc::new(theirs)));
    let mut child = Child { store, held: Held::new() };
    for (key, (handle, page)) in held {
        let handle = match parent.lend(*handle, &loan) {
            Some(said) => child.store.borrow(&said).expect("it is as it was said"),
            None => match child.store.put(page, scratch) {
                Ok(put) => stored(Ok(put)),
                Err(_) => continue,
            },
        };
        child.held.insert(*key, (handle, page.clone()));
    }
    Some(child)
}

fn check(store: &TieredStore, held: &Held, scratch: &mut Scratch) {
    held.values().for_each(|(handle, page)| assert_holds(store, scratch, *handle, page));
}

/// Stores, frees, and moves pages between memory and file.
fn walk(store: &TieredStore, held: &mut Held, steps: u32, random: &mut Random, scratch: &mut Scratch) {
    for _ in 0..steps {
        let key = random.below(120);
        match (random.below(20), held.get(&key)) {
            (0, _) => drop(store.spill(Bytes::kib(random.below(600)))),
            (1, _) => {
                store.trim();
                let _ = store.file.as_ref().is_some_and(|file| file.discard_unused() | file.take_back());
            }
            (_, None) => {
                let percent = [2, 25, 43, 80, 100][random.below(5) as usize];
                let page = page_of(store.page_bytes(), percent, random.next());
                if let Ok(put) = store.put(&page, scratch) {
                    held.insert(key, (stored(Ok(put)), page));
                }
            }
            (2..8, Some((handle, page))) => assert_holds(store, scratch, *handle, page),
            (8..11, Some((handle, page))) => {
                let mut part = [0; 4096];
                let block = random.below(page.len() as u64 / 4096) as usize;
                let digest = store.read_block(*handle, block, &mut part, scratch).expect("a disk");
                assert!(digest.is_none_or(|_| part == page[block * 4096..][..4096]));
                assert!(digest.is_none_or(|digest| store.is_block(*handle, block, digest)));
            }
            (11..14, Some((handle, page))) => {
                store.promote(*handle, scratch).expect("a disk");
                assert_holds(store, scratch, *handle, page);
            }
            (14, Some((handle, _))) => store.demote(*handle),
            (_, Some((handle, _))) => {
                store.free(*handle);
                held.remove(&key);
            }
        }
    }
}

/// Nothing is left when all of this is freed. A process that another test is just starting has the
/// streams of children that are gone until its exec, so that their places come back a moment later.
fn assert_empties(store: &TieredStore, held: Held) {
    held.into_values().for_each(|(handle, _)| store.free(handle));
    until("all that was freed is free", || {
        let _ = store.file.as_ref().is_some_and(FileTier::take_back);
        let StoreUsage { memory_used_bytes, file_bytes, objects, .. } = store.usage();
        (memory_used_bytes, file_bytes, objects) == (Bytes::ZERO, Bytes::ZERO, 0)
    });
}

#[test]
fn pages_in_the_parents_file_are_read_by_the_child_and_written_nowhere() {
    for base in [BasePage::K4, BasePage::K16, BasePage::K64] {
        let directory = disk();
        let parent = open(base, &directory, Bytes::mib(8), Bytes::mib(64));
        let mut scratch = Scratch::new(base);
        let kinds = [3, 25, 43, 90, 100];
        let held: Held = (0..100u64)
            .map(|i| {
                let page = page_of(parent.page_bytes(), kinds[i as usize % 5], i);
                (i, (stored(parent.put(&page, &mut scratch)), page))
            })
            .collect();
        parent.spill(Bytes::ZERO).expect("room");
        let before = parent.usage().file_bytes;
        let store = open(base, &directory, Bytes::mib(8), Bytes::mib(64));
        let child = fork(&parent, &held, store, &mut scratch).expect("a loan");
        let lent = child.held.values().filter(|(handle, _)| !child.store.is_in_memory(*handle)).count();
        assert!(lent >= 80, "{lent} of 100 at {base:?}");
        check(&child.store, &child.held, &mut scratch);
        for (handle, page) in child.held.values().filter(|(handle, _)| !handle.is_same_filled()) {
            // A page that was not written since is known to be clean without a read: the whole page
            // and each noted block.
            assert_eq!(child.store.holds(*handle, 0, page, &mut scratch), Ok(true));
            let was_there = child.store.is_in_memory(*handle);
            assert_eq!(child.store.promote(*handle, &mut scratch), Ok(true));
            assert_holds(&child.store, &mut scratch, *handle, page);
            assert_eq!(child.store.is_kept(*handle), !was_there);
            child.store.demote(*handle);
            assert_eq!(child.store.is_in_memory(*handle), was_there);
        }
        assert_eq!(child.store.usage().file_bytes, Bytes::ZERO, "it has written nothing");
        // The parent frees all of it, and stores other pages.
        held.into_values().for_each(|(handle, _)| parent.free(handle));
        assert!(parent.usage().file_bytes > Bytes::new(before.get() / 2), "it is held back");
        let mut others = Held::new();
        walk(&parent, &mut others, 600, &mut Random(77), &mut scratch);
        check(&child.store, &child.held, &mut scratch);
        assert_empties(&child.store, child.held);
        assert_empties(&parent, others);
    }
}

#[test]
fn parents_and_children_that_store_and_free_and_die_read_only_their_own_pages() {
    // Half of them with the parent ending first.
    for seed in 1..=length(2, 6) {
        let directory = disk();
        let (mut random, mut scratch) = (Random(seed * 0x9e37_79b9), Scratch::new(BasePage::K16));
        let new = || open(BasePage::K16, &directory, Bytes::kib(800), Bytes::mib(2));
        let (parent, mut held) = (new(), Held::new());
        let mut children: Vec<Child> = Vec::new();
        let mut lent = 0;
        for _ in 0..60 {
            walk(&parent, &mut held, 40, &mut random, &mut scratch);
            for child in &mut children {
                walk(&child.store, &mut child.held, 15, &mut random, &mut scratch);
            }
            match random.below(4) {
                0 if children.len() < 4 => {
                    let child = fork(&parent, &held, new(), &mut scratch);
                    lent += child.iter().filter(|child| child.store.usage().objects > 0).count();
                    children.extend(child);
                }
                1 if !children.is_empty() => {
                    let at = random.below(children.len() as u64) as usize;
                    let Child { store, held } = children.swap_remove(at);
                    if random.below(2) == 0 {
                        assert_empties(&store, held);
                    }
                }
                // A child of a child has all pages that the child has, and none that the parent
                // waits for.
                2 if !children.is_empty() => {
                    let child = &children[0];
                    if let Some(grandchild) = fork(&child.store, &child.held, new(), &mut scratch) {
                        check(&grandchild.store, &grandchild.held, &mut scratch);
                    }
                }
                _ => {}
            }
            check(&parent, &held, &mut scratch);
            children.iter().for_each(|child| check(&child.store, &child.held, &mut scratch));
        }
        assert!(lent > 0, "nothing was lent with seed {seed}");
        // The parent ends first where the seed is odd.
        if seed % 2 == 1 {
            drop(parent);
            for child in children {
                check(&child.store, &child.held, &mut scratch);
                assert_empties(&child.store, child.held);
            }
        } else {
            drop(children);
            assert_empties(&parent, held);
        }
    }
}

#[test]
fn threads_of_parent_and_children_at_the_same_time_read_only_their_own_pages() {
    let directory = disk();
    let new = || open(BasePage::K16, &directory, Bytes::kib(800), Bytes::mib(3));
    let (parent, mut held) = (new(), Held::new());
    let mut scratch = Scratch::new(BasePage::K16);
    for round in 0..length(3, 6) {
        walk(&parent, &mut held, 300, &mut Random(round + 1), &mut scratch);
        let children: Vec<_> = (0..3).filter_map(|_| fork(&parent, &held, new(), &mut scratch)).collect();
        assert!(!children.is_empty());
        let (parent, ended) = (&parent, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let ends = EndsWith(ended);
            for (number, mut child) in children.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut scratch = Scratch::new(BasePage::K16);
                    let mut random = Random(round * 10 + number as u64 + 1);
                    walk(&child.store, &mut child.held, 400, &mut random, &mut scratch);
                    check(&child.store, &child.held, &mut scratch);
                    if number > 0 {
                        assert_empties(&child.store, child.held);
                    }
                });
            }
            // A count of a store's pages takes its locks one after the other, beside threads that
            // free and take back.
            for _ in 0..2 {
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        assert!(parent.usage().memory_committed_bytes > Bytes::ZERO);
                        let _ = parent.file.as_ref().is_some_and(FileTier::take_back);
                    }
                });
            }
            walk(parent, &mut held, 800, &mut Random(round + 100), &mut scratch);
            drop(ends);
        });
        check(parent, &held, &mut scratch);
    }
    assert_empties(&parent, held);
}

#[test]
fn held_back_units_do_not_count_against_the_limit_and_come_back() {
    let directory = disk();
    let new = || open(BasePage::K64, &directory, Bytes::mib(2), Bytes::mib(4));
    let (parent, mut scratch) = (new(), Scratch::new(BasePage::K64));
    let mut fill = |from: u64| -> Held {
        (from..from + 56)
            .map(|i| {
                let page = page_of(64 << 10, 100, i);
                (i, (stored(parent.put(&page, &mut scratch)), page))
            })
            .collect()
    };
    let held = fill(0);
    parent.spill(Bytes::ZERO).expect("room for 64");
    let mut other = Scratch::new(BasePage::K64);
    let child = fork(&parent, &held, new(), &mut other).expect("a loan");
    held.into_values().for_each(|(handle, _)| parent.free(handle));
    let anew = fill(100);
    parent.spill(Bytes::ZERO).expect("the child's places are the child's");
    check(&child.store, &child.held, &mut other);
    check(&parent, &anew, &mut other);
    assert!(parent.usage().file_bytes > Bytes::mib(6), "{:?}", parent.usage());
    drop(child);
    let file = parent.file.as_ref().expect("a file");
    assert!(file.take_back() && !file.take_back());
    assert!(parent.usage().file_bytes <= Bytes::mib(4));
    assert_eq!(file.limit_slots(0), 1024);
    let mut batch = file::Batch::new(Bytes::gib(1));
    (0..16).for_each(|id| assert!(batch.add(id, 64 << 10)));
    assert!(file.write(&mut batch).is_ok_and(|count| count == 8), "the limit is as before");
    batch.items[..8].iter().for_each(|item| file.release(item.units));
    assert_empties(&parent, anew);
}

#[test]
fn a_page_that_is_handed_over_twice_is_lent_once_and_there_is_a_bound_on_borrowers() {
    let directory = disk();
    let new = || open(BasePage::K64, &directory, Bytes::mib(2), Bytes::mib(64));
    let (parent, mut scratch) = (new(), Scratch::new(BasePage::K64));
    assert!(parent.loan().is_none(), "there is nothing in the file");
    let page = page_of(64 << 10, 43, 1);
    let handle = stored(parent.put(&page, &mut scratch));
    parent.spill(Bytes::ZERO).expect("room");
    let loan = parent.loan().expect("a file");
    assert!(parent.lend(handle, &loan).is_some() && parent.lend(handle, &loan).is_none());
    let held = Held::from([(0, (handle, page))]);
    let mut streams: Vec<_> = (0..BORROWERS_MAX)
        .map(|_| {
            let loan = parent.loan().expect("one more");
            let (mine, theirs) = Stream::pair(Duration::from_secs(5)).expect("a stream");
            parent.begin_loan(&loan, &Arc::new(mine));
            theirs
        })
        .collect();
    assert!(fork(&parent, &held, new(), &mut scratch).is_none(), "one too many");
    streams.pop();
    let child = fork(&parent, &held, new(), &mut scratch).expect("one is gone");
    check(&child.store, &child.held, &mut scratch);
    // Words of a page that is not held are not believed, nor those of no page.
    let loan = parent.loan();
    assert!(loan.is_none());
    assert!(child.store.borrow(&[0xff; 8]).is_none());
    assert!(child.store.borrow(&vec![0xff; child.store.lent_bytes()]).is_none());
    drop(child);
    assert_empties(&parent, held);
}
