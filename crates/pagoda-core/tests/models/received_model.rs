//! A model check of the received map: receivers that mark the same pages at once, and one reader
//! meanwhile.
//!
//! The threads are shuttle's, the real map is between them, over words whose every access is a
//! point at which shuttle may switch threads. A map that reads and then writes back is checked,
//! too, and must be caught.

use std::convert::Infallible;

use super::support::{fails, holds};
use pagoda_core::migrate::geometry::Extent;
use pagoda_core::migrate::received::{Bits, ReceivedMap, words_for};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use shuttle::thread;

/// Pages around the border of two words, so that an extent is marked in two steps.
const FIRST: u64 = 62;
const PAGES: u64 = 128;

struct Word(AtomicU64);

impl Bits for Word {
    fn set(&self, mask: u64) -> u64 {
        self.0.fetch_or(mask, Ordering::SeqCst)
    }
    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The wrong way: another's bits are lost between the load and the store.
struct Torn(AtomicU64);

impl Bits for Torn {
    fn set(&self, mask: u64) -> u64 {
        let before = self.0.load(Ordering::SeqCst);
        self.0.store(before | mask, Ordering::SeqCst);
        before
    }
    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn map<B: Bits>(word: fn(AtomicU64) -> B) -> ReceivedMap<B> {
    let words = (0..words_for(PAGES)).map(|_| word(AtomicU64::new(0)));
    ReceivedMap::new(words.collect(), PAGES)
}

/// Receivers mark overlapping extents: each page is new to exactly one of them, and set afterwards.
fn each_page_is_new_once<B: Bits + Send + Sync + 'static>(word: fn(AtomicU64) -> B) {
    let map = Arc::new(map(word));
    let news: Arc<Vec<AtomicUsize>> = Arc::new((0..PAGES).map(|_| AtomicUsize::new(0)).collect());
    let receivers: Vec<_> = [(FIRST, 4), (FIRST + 1, 3), (FIRST + 1, 2)]
        .into_iter()
        .map(|(first, count)| {
            let (map, news) = (Arc::clone(&map), Arc::clone(&news));
            thread::spawn(move || {
                let extent = Extent::new(first, count).expect("an extent");
                let Ok(()) = map.mark(extent, |pages, again| {
                    for page in pages.filter(|_| !again) {
                        news[page as usize].fetch_add(1, Ordering::SeqCst);
                    }
                    Ok::<_, Infallible>(())
                });
            })
        })
        .collect();
    receivers.into_iter().for_each(|receiver| receiver.join().expect("a receiver"));
    for page in 0..PAGES {
        let marked = (FIRST..FIRST + 4).contains(&page);
        assert_eq!(news[page as usize].load(Ordering::SeqCst), usize::from(marked), "page {page}");
        assert_eq!(map.has(page), marked, "page {page}");
    }
}

/// A reader that sees the bit sees everything done before it was set; and the map outlives the
/// thread that set it.
fn a_bit_is_seen_after_everything_before_it() {
    let map = Arc::new(map(Word));
    let written = Arc::new(AtomicBool::new(false));
    let receiver = {
        let (map, written) = (Arc::clone(&map), Arc::clone(&written));
        thread::spawn(move || {
            written.store(true, Ordering::SeqCst);
            let Ok(()) = map.mark(Extent::new(FIRST, 1).expect("a page"), |_, _| Ok::<_, Infallible>(()));
        })
    };
    let reader = {
        let map = Arc::clone(&map);
        thread::spawn(move || {
            if map.has(FIRST) {
                assert!(written.load(Ordering::SeqCst));
            }
        })
    };
    receiver.join().expect("the receiver");
    assert!(map.has(FIRST));
    reader.join().expect("the reader");
}

#[test]
fn a_page_is_new_to_exactly_one_receiver() {
    holds(|| each_page_is_new_once(Word));
}

#[test]
fn a_bit_that_is_seen_orders_earlier_writes() {
    holds(a_bit_is_seen_after_everything_before_it);
}

#[test]
fn a_map_that_is_not_atomic_is_caught() {
    fails(|| each_page_is_new_once(Torn));
}
