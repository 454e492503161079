//! Signal handlers on stacks that are swapped out, and programs that block or replace the handlers
//! of the signals that faults could have been served by.

use pagoda_linux::testing::signals;

use crate::pressure::{Arena, check, fill};
use crate::support::memory::{Mapping, PAGE};
use crate::support::random::Random;

const STACK_PAGES: usize = 32;

/// The kernel itself writes the frame of a signal to a stack that is swapped out.
pub fn alternate_stack(arena: &Arena, _: u64) -> Result<(), String> {
    let mut stack = Mapping::new(STACK_PAGES).map_err(|error| error.to_string())?;
    let range = stack.start()..stack.start() + STACK_PAGES * PAGE;
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        fill(&mut stack, 0..STACK_PAGES, tag);
        arena.wait_until_managed(&stack);
        let ran = signals::run_on(&mut stack).map_err(|error| format!("running on a stack: {error}"))?;
        if !range.contains(&ran.at) {
            return Err(format!("the handler ran at {:#x}, not on its stack", ran.at));
        }
        if !ran.right {
            return Err("the handler read something else than it had written".to_owned());
        }
        // Its unused part is as it was.
        check(&stack, 0..8, tag)?;
    }
    Ok(())
}

const PAGES: usize = 96;

/// With handlers of the program's own, ignored, and with every signal blocked: no fault of ours is
/// ever seen.
pub fn own_handlers(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 1);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let faults = [libc::SIGSEGV, libc::SIGBUS];
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        fill(&mut mapping, 0..PAGES, tag);
        arena.wait_until_managed(&mapping);
        let set = match random.below(3) {
            0 => faults.iter().try_for_each(|&signal| signals::count(signal)),
            1 => faults.iter().try_for_each(|&signal| signals::ignore(signal)),
            _ => Ok(()),
        };
        set.map_err(|error| format!("setting handlers: {error}"))?;
        let blocked = random.one_in(2).then(signals::block_all);
        let right = check(&mapping, 0..PAGES, tag);
        drop(blocked);
        right?;
        let seen = signals::counted();
        if seen > 0 {
            return Err(format!("{seen} faults reached the program's handlers"));
        }
    }
    Ok(())
}
