//! Code that is written, evicted, made executable and run, and written anew: never writable and executable at once.
//!
//! To run bytes that were just written is what this is about, and is unsafe wherever it is done.

use crate::pressure::Arena;
use crate::support::memory::{Mapping, PAGE};
use crate::support::random::{Random, mix};

const PAGES: usize = 64;
/// Bytes between two functions.
const STEP: usize = 256;

/// The number that function `i` of a page returns.
fn number(tag: u64, page: usize, i: usize) -> u32 {
    mix(tag << 32 ^ (page as u64) << 8 ^ i as u64) as u32
}

/// A function without arguments that returns a number.
#[cfg(target_arch = "x86_64")]
fn function(number: u32) -> Vec<u8> {
    // mov eax, imm32; ret
    [&[0xb8][..], &number.to_le_bytes(), &[0xc3]].concat()
}

#[cfg(target_arch = "aarch64")]
fn function(number: u32) -> Vec<u8> {
    // movz w0, low; movk w0, high, lsl 16; ret
    let movz = 0x5280_0000 | (number & 0xffff) << 5;
    let movk = 0x72a0_0000 | (number >> 16) << 5;
    [movz, movk, 0xd65f_03c0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

fn write(mapping: &mut Mapping, tag: u64) {
    for page in 0..PAGES {
        let bytes = mapping.bytes_mut(page..page + 1);
        for (i, place) in bytes.chunks_mut(STEP).enumerate() {
            let code = function(number(tag, page, i));
            place[..code.len()].copy_from_slice(&code);
        }
    }
}

/// Runs some functions of every page.
fn execute(mapping: &Mapping, tag: u64, random: &mut Random) -> Result<(), String> {
    for page in 0..PAGES {
        for i in [0, random.below(PAGE / STEP), PAGE / STEP - 1] {
            let at = std::ptr::with_exposed_provenance::<()>(mapping.start() + page * PAGE + i * STEP);
            // SAFETY: `write` put a function of this type at every STEP of the page: it takes nothing, returns a number and
            // touches no memory. The memory is executable now, stays mapped and is not written while `mapping` is borrowed, and
            // the processor's view of it was flushed since.
            let function = unsafe { std::mem::transmute::<*const (), extern "C" fn() -> u32>(at) };
            let (returned, expected) = (function(), number(tag, page, i));
            if returned != expected {
                return Err(format!("function {i} of page {page} returned {returned:#x}, not {expected:#x}"));
            }
        }
    }
    Ok(())
}

#[cfg(target_arch = "aarch64")]
fn flush(mapping: &Mapping) {
    unsafe extern "C" {
        fn __clear_cache(start: *mut libc::c_void, end: *mut libc::c_void);
    }
    let at = |address| std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: it is the compiler's own function of this name and type. It reads no more than the caches of the range, which
    // is all of a mapping that is borrowed.
    unsafe { __clear_cache(at(mapping.start()), at(mapping.start() + PAGES * PAGE)) };
}

#[cfg(target_arch = "x86_64")]
fn flush(_: &Mapping) {}

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 1);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let (run, change) = (libc::PROT_READ | libc::PROT_EXEC, libc::PROT_READ | libc::PROT_WRITE);
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        write(&mut mapping, tag);
        flush(&mapping);
        if !random.one_in(4) {
            arena.wait_until_managed(&mapping);
        }
        mapping.protect(0..PAGES, run).map_err(|error| error.to_string())?;
        execute(&mapping, tag, &mut random)?;
        if random.one_in(4) {
            std::thread::sleep(std::time::Duration::from_millis(5));
            execute(&mapping, tag, &mut random)?;
        }
        mapping.protect(0..PAGES, change).map_err(|error| error.to_string())?;
        if random.one_in(2) {
            // Compiled code is moved by reading it, too.
            arena.wait_until_managed(&mapping);
            mapping.protect(0..PAGES, run).map_err(|error| error.to_string())?;
            execute(&mapping, tag, &mut random)?;
            mapping.protect(0..PAGES, change).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
