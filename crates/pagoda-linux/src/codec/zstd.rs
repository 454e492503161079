//! Zstandard frames of pages, by the C library, in memory that is given to it once.
//!
//! The library's own contexts come from `malloc`, which in an unmodified program is that program's:
//! managed memory. So they are made in boxes here, and it allocates nothing. Its input is not
//! trusted: the library checks it, and a frame of another length is refused.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

// Only linked for the library it carries.
use zstd as _;

/// The library's parameters for a level and a source length.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    window_log: c_uint,
    chain_log: c_uint,
    hash_log: c_uint,
    search_log: c_uint,
    min_match: c_uint,
    target_length: c_uint,
    strategy: c_int,
}

unsafe extern "C" {
    fn ZSTD_getCParams(level: c_int, source_len: c_ulonglong, dictionary_len: usize) -> Parameters;
    fn ZSTD_estimateCCtxSize_usingCParams(parameters: Parameters) -> usize;
    fn ZSTD_initStaticCCtx(room: *mut c_void, len: usize) -> *mut c_void;
    fn ZSTD_compressCCtx(
        context: *mut c_void,
        destination: *mut c_void,
        destination_len: usize,
        source: *const c_void,
        source_len: usize,
        level: c_int,
    ) -> usize;
    fn ZSTD_estimateDCtxSize() -> usize;
    fn ZSTD_initStaticDCtx(room: *mut c_void, len: usize) -> *mut c_void;
    fn ZSTD_decompressDCtx(
        context: *mut c_void,
        destination: *mut c_void,
        destination_len: usize,
        source: *const c_void,
        source_len: usize,
    ) -> usize;
    fn ZSTD_isError(code: usize) -> c_uint;
}

/// The library's default level: higher ones take several times as long for some percent.
pub const DEFAULT_LEVEL: i32 = 3;

fn room(bytes: usize) -> Box<[u64]> {
    vec![0; bytes.div_ceil(size_of::<u64>())].into_boxed_slice()
}

/// `None` for the library's error codes.
fn length(code: usize) -> Option<usize> {
    // SAFETY: it looks at the number only.
    (unsafe { ZSTD_isError(code) } == 0).then_some(code)
}

/// A compressor of pages. One for each thread that compresses.
pub struct Compressor {
    room: Box<[u64]>,
    level: c_int,
}

impl Compressor {
    /// Allocates the memory to compress at most `source_len` bytes at once by this level of the
    /// library: about 600 KiB for a page of 64 KiB by its default.
    #[must_use]
    pub fn new(source_len: usize, level: i32) -> Self {
        // SAFETY: both compute sizes.
        let bytes = unsafe {
            ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level, source_len as c_ulonglong, 0))
        };
        Self { room: room(bytes), level }
    }

    /// Compresses `source`. `None` if the result does not fit in `into`.
    pub fn compress(&mut self, source: &[u8], into: &mut [u8]) -> Option<usize> {
        // SAFETY: the context lies in the room, which is 8-aligned as the library wants it, and is
        // made anew; null, which the next call is not given, if it does not fit. The library reads
        // source, writes at most into.len() bytes of into and otherwise its room only; none of them
        // overlap, because the others are borrowed mutably.
        unsafe {
            let context = ZSTD_initStaticCCtx(self.room.as_mut_ptr().cast(), size_of_val(&*self.room));
            if context.is_null() {
                return None;
            }
            length(ZSTD_compressCCtx(
                context,
                into.as_mut_ptr().cast(),
                into.len(),
                source.as_ptr().cast(),
                source.len(),
                self.level,
            ))
        }
    }
}

/// A decompressor of pages, about 100 KiB. One for each thread that decompresses.
pub struct Decompressor {
    room: Box<[u64]>,
}

impl Default for Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

impl Decompressor {
    /// Allocates it.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: it computes a size.
        Self { room: room(unsafe { ZSTD_estimateDCtxSize() }) }
    }

    /// Decompresses `source` into `into`. `None` if it is not a frame that gives exactly
    /// `into.len()` bytes; `into` may hold anything then.
    pub fn decompress(&mut self, source: &[u8], into: &mut [u8]) -> Option<()> {
        // SAFETY: as for compressing; the library checks every read and write against the lengths,
        // for any source.
        let written = unsafe {
            let context = ZSTD_initStaticDCtx(self.room.as_mut_ptr().cast(), size_of_val(&*self.room));
            if context.is_null() {
                return None;
            }
            length(ZSTD_decompressDCtx(
                context,
                into.as_mut_ptr().cast(),
                into.len(),
                source.as_ptr().cast(),
                source.len(),
            ))
        };
        (written == Some(into.len())).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_every_length_come_back_and_damage_or_a_wrong_length_is_noticed() {
        for len in [4096, 16384, 65536] {
            let page: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(i >> 9) >> 3) as u8).collect();
            let (mut compressor, mut decompressor) =
                (Compressor::new(len, DEFAULT_LEVEL), Decompressor::new());
            let (mut packed, mut back) = (vec![0; len], vec![0; len]);
            for _ in 0..3 {
                let short = compressor.compress(&page, &mut packed).expect("it fits");
                assert!(short < len / 2);
                assert!(decompressor.decompress(&packed[..short], &mut back).is_some() && back == page);
                assert!(decompressor.decompress(&packed[..short - 1], &mut back).is_none());
                assert!(decompressor.decompress(&packed[..short], &mut back[..len - 1]).is_none());
                assert!(decompressor.decompress(&[0xff; 100], &mut back).is_none());
                let few = &mut packed[..short / 2];
                assert_eq!(compressor.compress(&page, few), None);
            }
        }
    }
}
