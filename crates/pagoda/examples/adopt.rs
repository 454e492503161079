//! Taking memory that the program mapped itself under management, and getting it back.
//!
//! Run it with `cargo run --release -p pagoda --example adopt`. It fills a mapping of 256 MiB, has a manager with a
//! budget of 64 MiB adopt it, waits until the manager is within its budget, changes a byte of every page through the
//! mapping's own address, and ends the management, after which everything is in the mapping again.

use std::error::Error;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};
use pagoda::{Bytes, ForeignMemory, Manager};

const LEN: usize = 256 << 20;
const BUDGET: Bytes = Bytes::mib(64);
const PAGE: usize = 4096;

/// What the byte at an offset is.
fn filling(at: usize) -> u8 {
    (at / 7) as u8
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut mapping = MmapMut::map_anon(LEN)?;
    mapping.advise(Advice::NoHugePage)?;
    mapping.iter_mut().enumerate().for_each(|(at, byte)| *byte = filling(at));

    let manager =
        Manager::builder().budget(BUDGET).user_mode_only(true).spill_to("/var/tmp", Bytes::gib(1)).build()?;
    // SAFETY: it is one private anonymous mapping, readable and writable, without huge pages, which is unmapped when `main`
    // returns, after the management has ended. Nothing but its bytes lies in it: no stack, no heap, no control block. This
    // program never forks.
    let memory = unsafe { ForeignMemory::new(mapping.as_mut_ptr(), LEN) }.ok_or("whole OS pages")?;
    let region = manager.adopt(memory)?;
    println!("adopted   {}", Bytes::new(region.len() as u64));

    let begin = Instant::now();
    while manager.stats().anon_bytes > BUDGET.get() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("held      {} of a budget of {BUDGET}", Bytes::new(manager.stats().anon_bytes));

    for (page, bytes) in mapping.chunks_exact_mut(PAGE).enumerate() {
        assert_eq!(bytes[8], filling(page * PAGE + 8), "page {page}");
        bytes[0] = !0;
    }
    println!("held      {} when every page was changed", Bytes::new(manager.stats().anon_bytes));

    // Brings everything back, and leaves the mapping to us.
    drop(region);
    let stats = manager.stats();
    println!("managed   {} after that", Bytes::new(stats.resident_bytes + stats.stored_bytes));
    drop(manager);
    for (page, bytes) in mapping.chunks_exact(PAGE).enumerate() {
        assert_eq!((bytes[0], bytes[8]), (!0, filling(page * PAGE + 8)), "page {page}");
    }
    Ok(())
}
