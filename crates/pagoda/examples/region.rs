//! A buffer of 256 MiB in 64 MiB of memory.
//!
//! Run it with `cargo run --release -p pagoda-vm --example region`. It writes and reads the buffer
//! twice over and checks every word, then shows what that took. What does not fit is compressed;
//! what does not fit compressed goes to an unlinked file in `/var/tmp`.

use std::error::Error;

use pagoda::{Bytes, Manager};

const BUDGET: Bytes = Bytes::mib(64);
const BUFFER: Bytes = Bytes::mib(256);
const RECORD_BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    // Faults of this program's own code are enough here, and need no privilege. A system call that
    // is handed an address in the region would fail on a page that is out: the region's `read_at`
    // and `write_at` don't.
    let manager =
        Manager::builder().budget(BUDGET).user_mode_only(true).spill_to("/var/tmp", Bytes::gib(1)).build()?;
    let mut region = manager.region(BUFFER).create()?;
    let records = region.len() / RECORD_BYTES;

    for round in 0..2 {
        for record in 0..records {
            region.write_at(record * RECORD_BYTES, &content(round, record)).expect("written");
        }
        let mut back = [0; RECORD_BYTES];
        for record in 0..records {
            region.read_at(record * RECORD_BYTES, &mut back).expect("read");
            assert!(back == content(round, record), "record {record} of round {round}");
        }
    }

    let stats = manager.stats();
    println!("{} written and read twice within {}", BUFFER, Bytes::new(stats.budget_bytes));
    println!("  held now    {}", Bytes::new(stats.anon_bytes));
    println!("  stored now  {} before compression", Bytes::new(stats.stored_bytes));
    println!("  compressed  {}", Bytes::new(stats.store_memory_bytes));
    println!("  spilled     {}", Bytes::new(stats.spilled_bytes));
    println!("  faults      {}, {} of them fetched from the store", stats.faults, stats.faults_stored);

    // Dropping it does the same.
    region.close();
    Ok(())
}

/// Half of a record repeats itself, half of it does not, as data often is.
fn content(round: usize, record: usize) -> [u8; RECORD_BYTES] {
    let mut state = (record * 2 + round + 1) as u64;
    std::array::from_fn(|i| {
        if i < RECORD_BYTES / 2 {
            return (record % 251) as u8;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
}
