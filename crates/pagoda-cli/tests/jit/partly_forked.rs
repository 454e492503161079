//! Memory of which a child gets only a part: the rest is not mapped there at all (madvise
//! DONTFORK).

use pagoda_linux::testing::process::fork;

use crate::filtered::{expect_right, status};
use crate::pressure::{Arena, check, fill};
use crate::rounds::each_round;
use crate::support::memory::Mapping;

const PAGES: usize = 96;
/// The pages that a child does not get: they begin and end within base pages of 64 KiB.
const KEPT: std::ops::Range<usize> = 37..59;

/// Forks while a part of the memory is swapped out; child and parent check their pages, and each
/// writes its own.
pub fn body(arena: &Arena, _: u64) -> Result<(), String> {
    each_round(arena, PAGES, |mapping, tag| {
        // Only now: before, the parts would have been mappings of their own when they were adopted.
        mapping.advise(KEPT, libc::MADV_DONTFORK).map_err(|error| format!("madvise: {error}"))?;
        let child = fork(|| in_child(mapping, tag)).map_err(|error| format!("fork: {error}"))?;
        fill(mapping, KEPT, tag + 1);
        expect_right(child)?;
        check(mapping, 0..KEPT.start, tag)?;
        check(mapping, KEPT, tag + 1)?;
        check(mapping, KEPT.end..PAGES, tag)?;
        mapping.advise(KEPT, libc::MADV_DOFORK).map_err(|error| format!("madvise: {error}"))
    })
}

/// Its status.
fn in_child(mapping: &mut Mapping, tag: u64) -> i32 {
    let right = [0..KEPT.start, KEPT.end..PAGES].into_iter().try_for_each(|part| {
        check(mapping, part.clone(), tag)?;
        fill(mapping, part.clone(), tag + 1);
        check(mapping, part, tag + 1)
    });
    status(&right)
}
