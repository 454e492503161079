//! LZ4 blocks, by the C library.
//!
//! It decompresses and compresses faster than the checked Rust one. Nothing is allocated after
//! [`Lz4::new`]. Its input is not trusted: the bounds-checking decoder is the only one used.

use std::ffi::{c_char, c_int, c_void};

// Only linked for the library it carries.
use lz4_sys as _;

unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        destination: *mut c_char,
        source_len: c_int,
        destination_len: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe(
        source: *const c_char,
        destination: *mut c_char,
        source_len: c_int,
        destination_len: c_int,
    ) -> c_int;
}

/// The state of one compressor: 16 KiB. One for each thread that compresses.
pub struct Lz4 {
    state: Box<[u64]>,
}

impl Default for Lz4 {
    fn default() -> Self {
        Self::new()
    }
}

impl Lz4 {
    /// Allocates the state.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: a function without arguments that returns a constant.
        let bytes = unsafe { LZ4_sizeofState() };
        let bytes = usize::try_from(bytes).expect("a size is not negative");
        Self { state: vec![0; bytes.div_ceil(size_of::<u64>())].into_boxed_slice() }
    }

    /// Compresses `source`. `None` if the result does not fit in `into`, which ends the attempt
    /// early.
    ///
    /// # Panics
    /// If either is longer than 2 GiB.
    pub fn compress(&mut self, source: &[u8], into: &mut [u8]) -> Option<usize> {
        let (source_len, into_len) = (length(source), length(into));
        // SAFETY: the state is as large as the library asked for and 8-aligned, as it wants it, and
        // the library resets it; it reads source_len bytes of source and writes at most into_len
        // bytes of into, which don't overlap because one is borrowed mutably.
        let written = unsafe {
            LZ4_compress_fast_extState(
                self.state.as_mut_ptr().cast(),
                source.as_ptr().cast(),
                into.as_mut_ptr().cast(),
                source_len,
                into_len,
                1,
            )
        };
        usize::try_from(written).ok().filter(|written| *written > 0)
    }
}

/// Decompresses `source` into `into`. `None` if it is not a block that gives exactly `into.len()`
/// bytes; `into` may hold anything then.
///
/// # Panics
/// If either is longer than 2 GiB.
#[must_use]
pub fn decompress(source: &[u8], into: &mut [u8]) -> Option<()> {
    let (source_len, into_len) = (length(source), length(into));
    // SAFETY: this decoder reads at most source_len bytes of source and writes at most into_len
    // bytes of into for any content of the source; they don't overlap because one is borrowed
    // mutably.
    let written = unsafe {
        LZ4_decompress_safe(source.as_ptr().cast(), into.as_mut_ptr().cast(), source_len, into_len)
    };
    (written == into_len).then_some(())
}

fn length(bytes: &[u8]) -> c_int {
    c_int::try_from(bytes.len()).expect("pages are far shorter than 2 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_back_and_damage_or_a_wrong_length_is_noticed() {
        let page: Vec<u8> = (0..65536_u32).map(|i| (i.wrapping_mul(i >> 9) >> 3) as u8).collect();
        let (mut lz4, mut packed, mut back) = (Lz4::new(), vec![0; 65536], vec![0; 65536]);
        let len = lz4.compress(&page, &mut packed).expect("it fits");
        assert!(decompress(&packed[..len], &mut back).is_some() && back == page);
        assert!(decompress(&packed[..len - 1], &mut back).is_none());
        assert!(decompress(&packed[..len], &mut back[..65535]).is_none());
        assert!(decompress(&[0xff; 100], &mut back).is_none());
        assert_eq!(lz4.compress(&page, &mut packed[..len - 1]), None);
    }
}
