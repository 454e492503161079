//! Protections that change while content is swapped out: it is swapped in to memory that may not be
//! written, and forbidden pages are as they were when they are allowed again.

use pagoda_linux::testing::signals::guarded;

use crate::pressure::{Arena, check, fill};
use crate::support::memory::Mapping;
use crate::support::random::Random;

const PAGES: usize = 96;
const READ: i32 = libc::PROT_READ;
const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Evicted, then read-only, then read; then writable again, and written.
pub fn read_only(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 1);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let mut tag = 1;
    fill(&mut mapping, 0..PAGES, tag);
    while arena.next_round() {
        arena.wait_until_managed(&mapping);
        let part = if random.one_in(3) { 0..PAGES } else { random.range(PAGES) };
        mapping.protect(part.clone(), READ).map_err(|error| error.to_string())?;
        if random.one_in(2) {
            // Read-only pages stay so for a while, under pressure.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        check(&mapping, 0..PAGES, tag).map_err(|wrong| format!("read-only {part:?}: {wrong}"))?;
        mapping.protect(part, WRITE).map_err(|error| error.to_string())?;
        check(&mapping, 0..PAGES, tag)?;
        tag += 1;
        fill(&mut mapping, 0..PAGES, tag);
    }
    Ok(())
}

/// Forbidden pages inside: each touch of one reaches the program's own handler, which allows it,
/// and its content is as it was; its neighbours are evicted and swapped in meanwhile.
pub fn guard_pages(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 1);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let mut tag = 1;
    fill(&mut mapping, 0..PAGES, tag);
    while arena.next_round() {
        arena.wait_until_managed(&mapping);
        let guard = random.range(PAGES);
        let slow = random.one_in(2);
        let read = |mapping: &Mapping| {
            check(mapping, 0..guard.start, tag)?;
            check(mapping, guard.end..PAGES, tag)?;
            if slow {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            check(mapping, guard.clone(), tag).map_err(|wrong| format!("guard {guard:?}: {wrong}"))
        };
        let (right, hits) = guarded(&mut mapping, guard.clone(), read).map_err(|error| error.to_string())?;
        right?;
        if hits != guard.len() as u64 {
            return Err(format!("{hits} faults in a guard of {} pages reached the program", guard.len()));
        }
        mapping.protect(0..PAGES, WRITE).map_err(|error| error.to_string())?;
        tag += 1;
        fill(&mut mapping, 0..PAGES, tag);
    }
    Ok(())
}
