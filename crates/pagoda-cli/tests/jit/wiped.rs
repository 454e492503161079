//! Memory of which a part is to read zero in a child (madvise WIPEONFORK), as what guards against using one random state twice does.

use pagoda_linux::testing::process::{fork, raw_fork};

use crate::filtered::{expect_right, status};
use crate::pressure::{Arena, check, fill};
use crate::support::memory::Mapping;

const PAGES: usize = 96;
/// What a child finds empty: it begins and ends within base pages of 64 KiB.
const WIPED: std::ops::Range<usize> = 37..59;

/// Forks while all of the memory may be out, by the C library and past it in turn; child and parent check what they have, and each
/// writes its own.
pub fn body(arena: &Arena, _: u64) -> Result<(), String> {
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        fill(&mut mapping, 0..PAGES, tag);
        arena.wait_until_managed(&mapping);
        mapping.advise(WIPED, libc::MADV_WIPEONFORK).map_err(|error| format!("madvise: {error}"))?;
        let in_child = || in_child(&mut mapping, tag);
        let child = if tag % 2 == 0 { fork(in_child) } else { raw_fork(in_child) };
        expect_right(child.map_err(|error| format!("fork: {error}"))?)?;
        check(&mapping, 0..PAGES, tag)?;
        mapping.advise(WIPED, libc::MADV_KEEPONFORK).map_err(|error| format!("madvise: {error}"))?;
    }
    Ok(())
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
