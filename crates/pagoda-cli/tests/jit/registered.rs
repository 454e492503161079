//! A program that serves faults itself: its memory is left alone, and its descriptor and ours don't
//! disturb each other.

use pagoda_linux::testing::userfault::SelfServed;

use crate::pressure::{Arena, check, fill, word};
use crate::support::managed::longer;
use crate::support::memory::Mapping;

const PAGES: usize = 256;

/// Reads all of it while another thread serves the faults: each with a page that tells its number.
fn check_served(memory: &SelfServed, tag: u64) -> Result<(), String> {
    let serve = || {
        let mut faults = 0..PAGES;
        faults
            .try_for_each(|_| memory.serve(|page| word(tag, page)))
            .map_err(|error| format!("serving: {error}"))
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(serve);
        let right = check(memory.mapping(), 0..PAGES, tag);
        right.and(server.join().expect("it does not panic"))
    })
}

pub fn body(arena: &Arena, _: u64) -> Result<(), String> {
    // Memory of the ordinary kind, which shows that others are evicted meanwhile.
    let mut other = Mapping::new(64).map_err(|error| error.to_string())?;
    fill(&mut other, 0..64, 1);
    let mut tag = 1;
    let mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let mut memory = SelfServed::new(mapping).map_err(|error| format!("userfaultfd: {error}"))?;
    while arena.next_round() {
        tag += 1;
        check_served(&memory, tag)?;
        arena.wait_until_managed(&other);
        if memory.mapping().is_any_out() {
            return Err("memory that the program registered was taken out".to_owned());
        }
        check(&other, 0..64, 1)?;
        check(memory.mapping(), 0..PAGES, tag)?;
        memory.discard().map_err(|error| error.to_string())?;
    }
    // It is there until the end, when it is counted: by the next look at the maps.
    check_served(&memory, tag)?;
    std::thread::sleep(std::time::Duration::from_secs(1) * longer());
    std::mem::forget(memory);
    Ok(())
}
