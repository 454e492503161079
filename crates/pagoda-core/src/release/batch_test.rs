use super::*;
use proptest::prelude::*;

/// Handles as owners have them: ascending and descending runs, and single ones.
fn handles() -> impl Strategy<Value = Vec<u64>> {
    let stretch = (0..1u64 << 40, 1..200u64, any::<bool>()).prop_map(|(first, len, up)| {
        let all = first..first + len;
        if up { all.collect::<Vec<_>>() } else { all.rev().collect() }
    });
    proptest::collection::vec(stretch, 0..20).prop_map(|stretches| stretches.concat())
}

proptest! {
    /// Every pushed handle is taken, in order, for any piece size. A rejected handle was the last
    /// one pushed.
    #[test]
    fn a_batch_gives_back_what_it_took(handles in handles(), pieces in proptest::collection::vec(1..100u64, 1..50)) {
        let mut batch = Batch::default();
        let taken = handles.iter().take_while(|handle| batch.push(**handle)).count();
        prop_assert_eq!(batch.entries(), taken as u64);
        if taken < handles.len() {
            prop_assert!(taken >= BATCH_WORDS, "a full batch has an entry for each word at least");
        }
        let mut back = Vec::new();
        let mut pieces = pieces.iter().cycle();
        while let Some(run) = batch.take(*pieces.next().expect("endless")) {
            prop_assert!(run.entries > 0);
            back.extend(run.first..run.first + run.entries);
            prop_assert_eq!(batch.entries() as usize, taken - back.len());
        }
        prop_assert_eq!(&back[..], &handles[..taken]);
        prop_assert!(batch.push(1), "an empty batch is filled anew");
    }
}

#[test]
fn a_run_of_any_length_takes_two_words() {
    let mut batch = Batch::default();
    assert!((0..1_000_000).all(|handle| batch.push(handle)));
    assert_eq!((batch.len, batch.entries()), (2, 1_000_000));
    assert!((0..508).all(|i| batch.push(2_000_000 + 2 * i)));
    assert!(!batch.push(5), "all words are used");
    assert!(!batch.push(2_000_000 + 2 * 507 + 1), "a single entry can't become a run without a word");
    assert_eq!(batch.take(u64::MAX), Some(Run { first: 0, entries: 1_000_000 }));
}
