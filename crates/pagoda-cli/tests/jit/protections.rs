//! Protections that change while content is out: it comes back into memory that may not be written, and what was
//! forbidden altogether is as it was when it is allowed again.
//!
//! The handler must never do more than atomics and system calls: it runs in the middle of anything.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagoda_linux::testing::process::end_at_once;

use crate::pressure::{Arena, check, fill};
use crate::signals::handle;
use crate::support::memory::{Mapping, PAGE};
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
            // What is read-only stays so for a while, under pressure.
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

static GUARD_START: AtomicUsize = AtomicUsize::new(0);
static GUARD_END: AtomicUsize = AtomicUsize::new(0);
static GUARD_HITS: AtomicU64 = AtomicU64::new(0);

/// As a collector's barrier: it allows what was touched.
extern "C" fn allow(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel calls this handler with its info, valid until it returns; it is installed for SIGSEGV only, whose
    // info has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let (start, end) = (GUARD_START.load(Ordering::Acquire), GUARD_END.load(Ordering::Acquire));
    if !(start..end).contains(&address) {
        // A fault that nobody expects ends the program.
        end_at_once(8);
    }
    GUARD_HITS.fetch_add(1, Ordering::Relaxed);
    let page: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(address & !(PAGE - 1));
    // SAFETY: the page lies in the guard, as was checked above, which is a part of a mapping that lives as long as what
    // touches it; to allow more than before changes no content.
    unsafe { libc::mprotect(page, PAGE, WRITE) };
}

/// Forbidden pages inside: each touch of one reaches the program's own handler, which allows it, and its content is as
/// it was; its neighbours come and go meanwhile.
pub fn guard_pages(arena: &Arena, seed: u64) -> Result<(), String> {
    handle(libc::SIGSEGV, allow, 0)?;
    let mut random = Random::new(seed, 1);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let mut tag = 1;
    fill(&mut mapping, 0..PAGES, tag);
    while arena.next_round() {
        arena.wait_until_managed(&mapping);
        let guard = random.range(PAGES);
        GUARD_START.store(mapping.start() + guard.start * PAGE, Ordering::Release);
        GUARD_END.store(mapping.start() + guard.end * PAGE, Ordering::Release);
        mapping.protect(guard.clone(), libc::PROT_NONE).map_err(|error| error.to_string())?;
        check(&mapping, 0..guard.start, tag)?;
        check(&mapping, guard.end..PAGES, tag)?;
        if random.one_in(2) {
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        let hits = GUARD_HITS.load(Ordering::Relaxed);
        check(&mapping, guard.clone(), tag).map_err(|wrong| format!("guard {guard:?}: {wrong}"))?;
        let hits = GUARD_HITS.load(Ordering::Relaxed) - hits;
        if hits != guard.len() as u64 {
            return Err(format!("{hits} faults in a guard of {} pages reached the program", guard.len()));
        }
        mapping.protect(0..PAGES, WRITE).map_err(|error| error.to_string())?;
        tag += 1;
        fill(&mut mapping, 0..PAGES, tag);
    }
    Ok(())
}
