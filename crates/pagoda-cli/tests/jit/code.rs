//! Code that is written, evicted and run, and written anew: executed and written in turn, or both
//! at once, as in the heaps of some collectors.

use pagoda_linux::testing::compiled::{Compiled, FUNCTIONS};

use crate::pressure::Arena;
use crate::support::random::{Random, mix};

const PAGES: usize = 64;

/// A heap with code in it: over a quarter of the budget, below which it is left alone.
const HEAP_PAGES: usize = (10 << 20) / 4096;

/// The number that function `i` of a page returns.
fn number(tag: u64, page: usize, i: usize) -> u32 {
    mix(tag << 32 ^ (page as u64) << 8 ^ i as u64) as u32
}

/// Runs some functions of every page.
fn execute(code: &Compiled, tag: u64, random: &mut Random) -> Result<(), String> {
    for page in 0..code.mapping().pages() {
        for i in [0, random.below(FUNCTIONS), FUNCTIONS - 1] {
            let (returned, expected) = (code.run(page, i), number(tag, page, i));
            if returned != expected {
                return Err(format!("function {i} of page {page} returned {returned:#x}, not {expected:#x}"));
            }
        }
    }
    Ok(())
}

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 1);
    let mut code = Compiled::new(PAGES).map_err(|error| error.to_string())?;
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        code.write(|page, i| number(tag, page, i));
        if !random.one_in(4) {
            arena.wait_until_managed(code.mapping());
        }
        code.allow_execution().map_err(|error| error.to_string())?;
        execute(&code, tag, &mut random)?;
        if random.one_in(4) {
            std::thread::sleep(std::time::Duration::from_millis(5));
            execute(&code, tag, &mut random)?;
        }
        code.allow_writing().map_err(|error| error.to_string())?;
        if random.one_in(2) {
            // Compiled code is moved by reading it, too.
            arena.wait_until_managed(code.mapping());
            code.allow_execution().map_err(|error| error.to_string())?;
            execute(&code, tag, &mut random)?;
            code.allow_writing().map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// The same where it is writable and executable all the time.
pub fn heap(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 1);
    let mut code = Compiled::new(HEAP_PAGES).map_err(|error| error.to_string())?;
    code.allow_both().map_err(|error| error.to_string())?;
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        code.write(|page, i| number(tag, page, i));
        arena.wait_until_managed(code.mapping());
        execute(&code, tag, &mut random)?;
        if random.one_in(4) {
            // What has become executable is as it was, and moves at the old price.
            code.allow_writing().map_err(|error| error.to_string())?;
            arena.wait_until_managed(code.mapping());
            code.allow_both().map_err(|error| error.to_string())?;
            execute(&code, tag, &mut random)?;
        }
    }
    Ok(())
}
