//! Taking memory that the program mapped itself under management, and getting it back.
//!
//! Run it with `cargo run --release -p pagoda --example adopt`. It fills a mapping of 256 MiB, has a manager with a
//! budget of 64 MiB adopt it, waits until the manager is within its budget, changes a word of every page through the
//! mapping's own address, and ends the management, after which everything is in the mapping again.

use std::error::Error;
use std::time::{Duration, Instant};

use pagoda::{Bytes, ForeignMemory, Manager};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const LEN: usize = 256 << 20;
const BUDGET: Bytes = Bytes::mib(64);
const WORDS_PER_PAGE: usize = 4096 / 8;

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    let start = unsafe {
        mmap_anonymous(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
    };
    {
        // SAFETY: the mapping is LEN bytes, aligned to an OS page, zeroed, and nobody else knows of it.
        let words = unsafe { std::slice::from_raw_parts_mut(start.cast::<u64>(), LEN / 8) };
        for (i, word) in words.iter_mut().enumerate() {
            *word = (i / 7) as u64;
        }

        let manager = Manager::builder()
            .budget(BUDGET)
            .user_mode_only(true)
            .spill_to("/var/tmp", Bytes::gib(1))
            .build()?;
        // SAFETY: it is one private anonymous mapping, readable and writable, made above and unmapped below, after the
        // management has ended. Nothing but `words` lies in it: no stack, no heap, no control block. This program
        // never forks.
        let memory = unsafe { ForeignMemory::new(start.cast(), LEN) }.ok_or("whole OS pages")?;
        let region = manager.adopt(memory)?;
        println!("adopted   {}", Bytes::new(region.len() as u64));

        let begin = Instant::now();
        while manager.stats().anon_bytes > BUDGET.get() && begin.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("held      {} of a budget of {BUDGET}", Bytes::new(manager.stats().anon_bytes));

        for (page, words) in words.chunks_exact_mut(WORDS_PER_PAGE).enumerate() {
            assert_eq!(words[1], ((page * WORDS_PER_PAGE + 1) / 7) as u64, "page {page}");
            words[0] = !0;
        }
        println!("held      {} when every page was changed", Bytes::new(manager.stats().anon_bytes));

        // Brings everything back, and leaves the mapping to us.
        drop(region);
        let stats = manager.stats();
        println!("managed   {} after that", Bytes::new(stats.resident_bytes + stats.stored_bytes));
        drop(manager);
        for (page, words) in words.chunks_exact(WORDS_PER_PAGE).enumerate() {
            assert_eq!((words[0], words[1]), (!0, ((page * WORDS_PER_PAGE + 1) / 7) as u64), "page {page}");
        }
    }
    // SAFETY: the mapping is ours, and `words`, its only user, is gone.
    unsafe { munmap(start, LEN)? };
    Ok(())
}
