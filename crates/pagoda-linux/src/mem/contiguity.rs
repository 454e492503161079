//! Whether the frames behind a range are adjacent in physical memory, as a TLB that joins
//! translations needs them.
//!
//! Read from the entries of `/proc/self/pagemap`, whose frame numbers only root sees. This module
//! must never take a hidden frame number for a real one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pagoda_core::page::OS_PAGE;

use crate::mem::range::PageRange;

/// A present page's bit, and the frame number's.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// How many bytes of `range` are present, and how many of those lie in aligned blocks of
/// `block_bytes` whose frames are one aligned run. None if the kernel hides frame numbers, or if
/// nothing is present.
///
/// # Errors
/// Those of opening or reading `/proc/self/pagemap`.
///
/// # Panics
/// If `block_bytes` is no whole number of OS pages.
pub fn contiguous_bytes(range: PageRange, block_bytes: usize) -> io::Result<Option<(u64, u64)>> {
    assert!(block_bytes >= OS_PAGE && block_bytes.is_multiple_of(OS_PAGE), "a block is of OS pages");
    let file = File::open("/proc/thread-self/pagemap")?;
    let (mut present, mut contiguous, mut seen) = (0, 0, false);
    let mut entries = vec![0; block_bytes / OS_PAGE * size_of::<u64>()];
    let mut at = range.start().next_multiple_of(block_bytes);
    while at + block_bytes <= range.end() {
        file.read_exact_at(&mut entries, (at / OS_PAGE * size_of::<u64>()) as u64)?;
        let (words, _) = entries.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let here = words.clone().filter(|word| word & PRESENT != 0).count();
        seen |= words.clone().any(|word| word & PRESENT != 0 && word & FRAME != 0);
        present += (here * OS_PAGE) as u64;
        if is_aligned_run(words) {
            contiguous += block_bytes as u64;
        }
        at += block_bytes;
    }
    Ok(seen.then_some((present, contiguous)))
}

/// Whether all are present, each the frame after the one before, and the first at a multiple of
/// their number.
fn is_aligned_run(mut entries: impl ExactSizeIterator<Item = u64>) -> bool {
    let count = entries.len() as u64;
    let Some(first) = entries.next() else { return false };
    let aligned = first & PRESENT != 0 && (first & FRAME).is_multiple_of(count);
    aligned && entries.zip(1..).all(|(entry, i)| entry & PRESENT != 0 && entry & FRAME == (first & FRAME) + i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::plain_memory::{Pages, PlainMemory};

    #[test]
    fn a_run_is_present_in_order_and_aligned() {
        let run = |frames: [u64; 4]| is_aligned_run(frames.into_iter().map(|frame| frame | PRESENT));
        assert!(run([8, 9, 10, 11]));
        assert!(!run([9, 10, 11, 12]) && !run([8, 9, 11, 10]) && !run([8, 9, 10, 10]));
        assert!(!is_aligned_run([8 | PRESENT, 9, 10 | PRESENT, 11 | PRESENT].into_iter()));
    }

    #[test]
    fn present_pages_are_counted_and_huge_pages_are_contiguous() {
        let mut memory = PlainMemory::map(4 << 20, Pages::Huge).expect("memory");
        memory.words_mut()[..(2 << 20) / 8].fill(1);
        match contiguous_bytes(memory.range(), 64 << 10).expect("pagemap") {
            None => {
                crate::testing::skip::skip("contiguity", "frame numbers are hidden");
            }
            Some((present, contiguous)) => {
                assert!(present >= 2 << 20 && contiguous <= present, "{contiguous} of {present}");
                let huge = crate::procfs::pagemap::PagemapScanner::new()
                    .and_then(|mut scanner| scanner.huge_bytes(memory.range().start(), memory.range().end()));
                if huge.is_ok_and(|bytes| bytes == 2 << 20) {
                    assert_eq!((present, contiguous), (2 << 20, 2 << 20));
                }
            }
        }
    }
}
