//! The copies, fills and comparisons of this library, under other names, against plain loops.

/// Defines a function under its name with `own_` before it. As in `c_library`, where the names are
/// the C library's.
macro_rules! hidden {
    ($($name:literal)+: $($line:expr),+) => {
        core::arch::global_asm!(
            ".pushsection .text.own_memory, \"ax\", @progbits",
            ".p2align 4",
            $(concat!(".globl own_", $name),)+
            $(concat!("own_", $name, ":"),)+
            $($line,)+
            ".popsection",
        );
    };
}

#[path = "../src/c_library/memory.rs"]
mod memory;

use std::ffi::{CStr, c_char, c_int};

unsafe extern "C" {
    fn own_memmove(into: *mut u8, from: *const u8, length: usize) -> *mut u8;
    fn own_memset(into: *mut u8, byte: c_int, length: usize) -> *mut u8;
    fn own_memcmp(left: *const u8, right: *const u8, length: usize) -> c_int;
    fn own_strlen(text: *const c_char) -> usize;
}

/// All lengths around each size at which the code takes another way, and some beyond.
fn lengths() -> impl Iterator<Item = usize> {
    (0..300).chain([511, 512, 513, 4095, 4096, 4097, 65_535, 65_536])
}

const MARGIN: usize = 80;

fn numbered(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn a_copy_is_whole_and_writes_nothing_else() {
    for length in lengths() {
        for (from_at, into_at) in [(0, 0), (1, 0), (0, 3), (5, 12), (15, 15), (16, 1)] {
            let from = numbered(length + MARGIN);
            let mut into = vec![0xee; length + MARGIN];
            // SAFETY: both ranges lie in their vectors.
            let result =
                unsafe { own_memmove(into[into_at..].as_mut_ptr(), from[from_at..].as_ptr(), length) };
            assert_eq!(result, into[into_at..].as_mut_ptr());
            let mut expected = vec![0xee; length + MARGIN];
            (0..length).for_each(|at| expected[into_at + at] = from[from_at + at]);
            assert!(into == expected, "{length} bytes from {from_at} to {into_at}");
        }
    }
}

#[test]
fn a_move_over_itself_goes_in_the_right_direction() {
    for length in lengths() {
        for distance in [0, 1, 2, 7, 8, 15, 16, 17, 31, 48, 63, 64, 65, 79] {
            for upwards in [false, true] {
                let before = numbered(length + MARGIN);
                let mut moved = before.clone();
                let (from, into) = if upwards { (0, distance) } else { (distance, 0) };
                // SAFETY: both ranges lie in the vector.
                unsafe { own_memmove(moved.as_mut_ptr().add(into), moved.as_ptr().add(from), length) };
                let mut expected = before.clone();
                (0..length).for_each(|at| expected[into + at] = before[from + at]);
                assert!(moved == expected, "{length} bytes by {distance}, upwards: {upwards}");
            }
        }
    }
}

#[test]
fn a_fill_is_whole_and_writes_nothing_else() {
    for length in lengths() {
        for at in [0, 1, 7, 15, 16, 33] {
            let mut filled = vec![0xee; length + MARGIN];
            // SAFETY: the range lies in the vector. Only the low byte counts.
            unsafe { own_memset(filled[at..].as_mut_ptr(), 0x1a5, length) };
            let is_right = |(place, &byte): (usize, &u8)| {
                byte == if (at..at + length).contains(&place) { 0xa5 } else { 0xee }
            };
            assert!(filled.iter().enumerate().all(is_right), "{length} bytes at {at}");
        }
    }
}

#[test]
fn a_comparison_tells_the_first_difference_and_looks_at_no_more() {
    for length in lengths().filter(|length| *length <= 4097) {
        let left = numbered(length + MARGIN);
        let mut right = left.clone();
        right[length] ^= 0xff;
        // SAFETY: both ranges lie in their vectors, here and below.
        let compare =
            |left: &[u8], right: &[u8]| unsafe { own_memcmp(left.as_ptr(), right.as_ptr(), length) };
        assert_eq!(compare(&left, &right), 0, "{length}");
        for different in [0, 1, length / 2, length.saturating_sub(2), length.saturating_sub(1)] {
            if different >= length {
                continue;
            }
            let mut other = left.clone();
            other[different] ^= 0x80;
            // The bytes behind the first difference say the opposite.
            if different + 1 < length {
                other[different + 1] = if other[different] > left[different] { 0 } else { 255 };
            }
            let expected = left[..length].cmp(&other[..length]) as c_int;
            assert_eq!(compare(&left, &other).signum(), expected, "{length} bytes, at {different}");
        }
    }
}

#[test]
fn a_text_ends_at_its_first_zero() {
    for length in 0..100 {
        for at in 0..17 {
            let mut text = vec![0; at];
            text.extend(std::iter::repeat_n(b'x', length));
            text.extend([0, b'y', 0]);
            let text = CStr::from_bytes_until_nul(&text[at..]).expect("it ends");
            // SAFETY: it is a C string.
            assert_eq!(unsafe { own_strlen(text.as_ptr()) }, length);
        }
    }
}

/// `cargo test --release -p pagoda-vm-preload --test memory -- --ignored --nocapture` prints how
/// long copies take.
#[test]
#[ignore = "prints times, and asserts nothing of them"]
fn times_of_copies() {
    for length in [64, 512, 4096, 65_536] {
        let (from, mut into) = (numbered(length), vec![0; length]);
        let time = |copy: &mut dyn FnMut()| {
            let rounds = (1 << 28) / length;
            let start = std::time::Instant::now();
            (0..rounds).for_each(|_| copy());
            start.elapsed().as_nanos() as f64 / rounds as f64
        };
        // SAFETY: both vectors have this length.
        let own = time(&mut || unsafe {
            own_memmove(std::hint::black_box(into.as_mut_ptr()), from.as_ptr(), length);
        });
        let theirs = time(&mut || std::hint::black_box(&mut into).copy_from_slice(&from));
        assert!(into == from);
        println!("{length} bytes: {own:.1} ns, the C library {theirs:.1} ns");
    }
}
