//! Shared by tests of huge frames: regions of so many frames, and the content of each OS page.

use pagoda::{Bytes, Manager, Region};
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_linux::procfs::pagemap::PagemapScanner;

pub const PAGES: usize = HUGE_FRAME / OS_PAGE;

/// How much of a region is mapped by huge pages.
pub fn huge_bytes(region: &Region) -> usize {
    let start = region.as_ptr().addr();
    let mut scanner = PagemapScanner::new().expect("pagemap");
    scanner.huge_bytes(start, start + region.len()).expect("PAGEMAP_SCAN")
}

pub fn region(manager: &Manager, frames: usize) -> Region {
    manager.region(Bytes::new((frames * HUGE_FRAME) as u64)).create().expect("a region")
}

/// The content of an OS page: a quarter of it random, so that it compresses, and never zero.
fn page(seed: usize, page: usize) -> [u8; OS_PAGE] {
    let mut state = (seed as u64) << 32 | page as u64 | 1 << 63;
    std::array::from_fn(|i| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if i < OS_PAGE / 4 { (state >> 33) as u8 | 1 } else { page as u8 | 1 }
    })
}

pub fn write(region: &mut Region, seed: usize, pages: impl Iterator<Item = usize>) {
    for at in pages {
        region.write_at(at * OS_PAGE, &page(seed, at)).expect("written");
    }
}

pub fn expect(region: &Region, seed: usize, pages: impl Iterator<Item = usize>) {
    let mut is = [0; OS_PAGE];
    for at in pages {
        region.read_at(at * OS_PAGE, &mut is).expect("read");
        assert!(is == page(seed, at), "page {at} of {seed}");
    }
}

pub fn expect_zero(region: &Region, pages: impl Iterator<Item = usize>) {
    let mut is = [1; OS_PAGE];
    for at in pages {
        region.read_at(at * OS_PAGE, &mut is).expect("read");
        assert!(is.iter().all(|&byte| byte == 0), "page {at}");
    }
}
