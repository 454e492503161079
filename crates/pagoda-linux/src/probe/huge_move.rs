//! Whether a huge frame stays whole where a fault has made a table of OS pages.
//!
//! A fault in memory without huge pages leaves an empty table, and a move over it takes the frame
//! apart. Since Linux 6.14 a discard of the 2 MiB frees the table (`CONFIG_PT_RECLAIM`). It must
//! never say that this works without having seen it.

use linux_raw_sys::general::UFFDIO_REGISTER_MODE_MISSING;

use super::userfault::{handshake, move_once, register};
use super::{Feature, Way};
use crate::mem::huge_frames::HugeFrames;

/// How often it is tried: a fork of another thread may have shared the frame.
const TRIES: usize = 3;

/// Tries whether a huge frame that is moved to a place in which an OS page was touched and
/// discarded is one huge page there. About a millisecond; false also where huge pages can't be had.
#[must_use]
pub fn discard_frees_page_table() -> bool {
    (0..TRIES).any(|_| try_it().unwrap_or(false))
}

fn try_it() -> std::io::Result<bool> {
    let from = HugeFrames::new(1)?;
    let mut to = HugeFrames::untouched(1, false)?;
    if !from.are_huge()? {
        return Ok(false);
    }
    to.frame(0)[0] = 1;
    to.discard()?;
    // Declared after the mappings, so that it is closed before they are unmapped.
    let (fd, _) = handshake(Way::UserModeOnly, Feature::Move.into())?;
    // SAFETY: both mappings are ours, and nothing touches them before they have been moved.
    let moved = unsafe {
        register(&fd, to.start(), to.len(), UFFDIO_REGISTER_MODE_MISSING)?;
        move_once(&fd, from.start(), to.start(), to.len())
    };
    Ok(moved.is_ok() && to.are_huge()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::skip::skip_without_moves;

    /// Where it does not work, the other way is taken, which the tests of the engine see as well.
    #[test]
    fn it_works_where_the_kernel_frees_empty_tables() {
        if skip_without_moves("whole moves after a discard") {
            return;
        }
        let kernel = crate::probe::machine().kernel;
        let works = discard_frees_page_table();
        println!("{}: {works}", kernel.release);
        assert!(!works || kernel.number >= (6, 14), "{kernel:?} keeps empty tables");
    }
}
