//! Memory of which a part is to read zero in a child (madvise WIPEONFORK), as a guard against the
//! reuse of a random state does.

use pagoda_linux::testing::process::{fork, raw_fork};

use crate::filtered::{expect_right, status};
use crate::pressure::{Arena, check, fill};
use crate::rounds::each_round;
use crate::support::memory::Mapping;

const PAGES: usize = 96;
/// The pages that a child finds empty: they begin and end within base pages of 64 KiB.
const WIPED: std::ops::Range<usize> = 37..59;

/// Forks while all of the memory may be swapped out, by the C library and past it in turn; child
/// and parent check their pages, and each writes its own.
pub fn body(arena: &Arena, _: u64) -> Result<(), String> {
    each_round(arena, PAGES, |mapping, tag| {
        mapping.advise(WIPED, libc::MADV_WIPEONFORK).map_err(|error| format!("madvise: {error}"))?;
        let in_child = || in_child(mapping, tag);
        let child = if tag % 2 == 0 { fork(in_child) } else { raw_fork(in_child) };
        expect_right(child.map_err(|error| format!("fork: {error}"))?)?;
        check(mapping, 0..PAGES, tag)?;
        mapping.advise(WIPED, libc::MADV_KEEPONFORK).map_err(|error| format!("madvise: {error}"))
    })
}

/// Its status.
fn in_child(mapping: &mut Mapping, tag: u64) -> i32 {
    let right = check(mapping, 0..WIPED.start, tag)
        .and_then(|()| check(mapping, WIPED, 0))
        .and_then(|()| check(mapping, WIPED.end..PAGES, tag))
        .and_then(|()| {
            fill(mapping, 0..PAGES, tag + 1);
            check(mapping, 0..PAGES, tag + 1)
        });
    status(&right)
}
