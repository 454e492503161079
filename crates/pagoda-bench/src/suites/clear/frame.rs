//! The program's use of a frame: it reads the page that faulted, and writes all of the frame. The
//! same on every side. Never timed here: the caller holds the clock.

use std::hint::black_box;

use pagoda_core::page::OS_PAGE;

/// The length of a cache line on every processor that Pagoda runs on.
const LINE: usize = 64;

/// Reads each line of an OS page once. Returns the sum of their first bytes: zero for a cleared
/// page.
pub fn touch(frame: &[u8], page: usize) -> u64 {
    // Opaque once and not line by line: the cost of the loop would hide the effect.
    let page = black_box(&frame[page * OS_PAGE..][..OS_PAGE]);
    page.chunks_exact(LINE).map(|line| u64::from(line[0])).sum()
}

/// Writes every word from the beginning to the end, none of them zero.
pub fn write_all(frame: &mut [u8]) {
    let (words, _) = frame.as_chunks_mut::<8>();
    for (word, value) in words.iter_mut().zip(0x0101_0101_0101_0101_u64..) {
        *word = value.to_ne_bytes();
    }
    black_box(frame);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_written_is_not_taken_for_a_cleared_one() {
        let mut frame = vec![0; 4 * OS_PAGE];
        assert_eq!(touch(&frame, 3), 0);
        write_all(&mut frame);
        assert!((0..4).all(|page| touch(&frame, page) != 0));
        assert!(frame.as_chunks::<8>().0.iter().all(|word| *word != [0; 8]));
    }
}
