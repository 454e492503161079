//! Taking memory that the program mapped itself under management, and getting it back.
//!
//! Run it with `cargo run --release -p pagoda-vm --example adopt`. It fills a mapping of 256 MiB,
//! has a manager with a budget of 64 MiB adopt it, waits until the manager is within its budget,
//! changes a word of every page through the mapping's own address, and ends the management, after
//! which everything is in the mapping again.
//!
//! [`PlainMemory`] vouches for its mapping itself. For any other its owner does, by the unsafe
//! [`ForeignMemory::new`](pagoda::ForeignMemory::new), which has an example of its own.

use std::error::Error;
use std::time::{Duration, Instant};

use pagoda::{Bytes, Manager};
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};

const LEN: usize = 256 << 20;
const BUDGET: Bytes = Bytes::mib(64);
const PAGE_WORDS: usize = 4096 / size_of::<u64>();

/// The value of the word of this number.
fn filling(at: usize) -> u64 {
    (at / 7) as u64
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut mapping = PlainMemory::map(LEN, Pages::Small)?;
    mapping.words_mut().iter_mut().enumerate().for_each(|(at, word)| *word = filling(at));

    let manager =
        Manager::builder().budget(BUDGET).user_mode_only(true).spill_to("/var/tmp", Bytes::gib(1)).build()?;
    let region = manager.adopt(mapping.foreign())?;
    println!("adopted   {}", Bytes::new(region.len() as u64));

    let begin = Instant::now();
    while manager.stats().anon_bytes > BUDGET.get() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("held      {} of a budget of {BUDGET}", Bytes::new(manager.stats().anon_bytes));

    for (page, words) in mapping.words_mut().chunks_exact_mut(PAGE_WORDS).enumerate() {
        assert_eq!(words[1], filling(page * PAGE_WORDS + 1), "page {page}");
        words[0] = !0;
    }
    println!("held      {} when every page was changed", Bytes::new(manager.stats().anon_bytes));

    // Brings everything back, and leaves the mapping to us.
    drop(region);
    let stats = manager.stats();
    println!("managed   {} after that", Bytes::new(stats.resident_bytes + stats.stored_bytes));
    drop(manager);
    for (page, words) in mapping.words_mut().chunks_exact(PAGE_WORDS).enumerate() {
        assert_eq!((words[0], words[1]), (!0, filling(page * PAGE_WORDS + 1)), "page {page}");
    }
    Ok(())
}
