use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use proptest::prelude::*;

use super::*;

fn radix(len: usize) -> Radix {
    let words = Radix::words_for(len).expect("few");
    Radix::new((0..words).map(|_| AtomicU64::new(0)).collect(), len)
}

#[test]
fn the_array_has_a_word_for_each_and_the_nodes_above() {
    let cases = [(0, 0), (1, 1), (64, 64), (65, 3 * 64), (4096, 65 * 64), (4097, (65 + 2 + 1) * 64)];
    for (len, words) in cases {
        assert_eq!(Radix::words_for(len), Some(words), "{len}");
    }
    assert_eq!(Radix::words_for(1 << 18), Some((4096 + 64 + 1) * 64), "1 GiB in pages of 4 KiB");
    assert_eq!(Radix::words_for(usize::MAX), None);
    assert!(Radix::words_for(1 << 57).is_some_and(|words| words < (1 << 57) / 62 * 63));
}

#[test]
fn reading_takes_no_memory_and_one_word_takes_its_nodes() {
    let radix = radix(1 << 18);
    assert!((0..1 << 18).all(|index| radix.get(index) == 0));
    assert_eq!((radix.used_bytes(), radix.used(0..1 << 18).count()), (512, 0));
    radix.word(123_456).store(7, Ordering::Release);
    assert_eq!((radix.get(123_456), radix.used_bytes()), (7, 3 * 512));
    let first = 123_456 / 64 * 64;
    assert!(radix.used(0..1 << 18).eq(first..first + 64));
    assert!(radix.used(123_450..123_460).eq(first..123_460));
    // One page in each 2 MiB of 4 KiB takes an eighth of it, and a little.
    (0..1 << 18).step_by(512).for_each(|index| radix.word(index).store(1, Ordering::Release));
    assert_eq!(radix.used_bytes(), (512 + 64 + 1 + 1) * 512);
}

#[test]
#[should_panic(expected = "word 65 of 65")]
fn there_is_nothing_beyond_the_end() {
    let _ = radix(65).get(65);
}

#[test]
fn threads_that_ask_for_the_same_words_get_the_same_and_each_node_once() {
    let radix = radix(20_000);
    thread::scope(|scope| {
        for (thread, step) in [1, 3, 7, 9].into_iter().enumerate() {
            let radix = &radix;
            scope.spawn(move || {
                for i in 0..20_000 {
                    let index = (i * step + thread * 777) % 20_000;
                    radix.word(index).fetch_add(1, Ordering::AcqRel);
                }
            });
        }
    });
    assert!((0..20_000).all(|index| radix.get(index) == 4), "each thread passed each word once");
    assert_eq!(radix.used_bytes(), 8 * radix.words.len() as u64);
}

proptest! {
    #[test]
    fn it_is_as_a_map_of_words(
        len in prop::sample::select(vec![1usize, 63, 64, 65, 4096, 4097, 300_000]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 1u64..100), 1..60),
        from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>()
    ) {
        let (radix, mut map) = (radix(len), BTreeMap::new());
        for (index, value) in changes {
            let index = index.index(len);
            radix.word(index).store(value, Ordering::Release);
            map.insert(index, value);
            prop_assert_eq!(radix.get(index), value);
        }
        for (index, value) in &map {
            prop_assert_eq!(radix.get(*index), *value);
        }
        let range = from.index(len)..to.index(len);
        let leaves: BTreeSet<_> = map.keys().map(|index| index / NODE_WORDS).collect();
        let has_leaf = |index: &usize| len <= NODE_WORDS || leaves.contains(&(index / NODE_WORDS));
        prop_assert!(radix.used(range.clone()).eq(range.filter(has_leaf)));
        prop_assert!(radix.used_bytes() <= 8 * radix.words.len() as u64);
    }
}
