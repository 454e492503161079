//! Every kernel against the portable one: the bytes it clears, and the bytes beside them, which
//! must stay.

use super::*;

const MARK: u8 = 0xa5;
/// The alignment of the memory that is tested: more than any kernel distinguishes.
const ALIGN: usize = 256;

/// Runs both over `len` marked bytes at `offset` from an aligned address, and compares also the
/// bytes around.
fn compare(name: &str, clear: impl Fn(&mut [u8]), offset: usize, len: usize) {
    let run = |clear: &dyn Fn(&mut [u8])| {
        let mut memory = vec![MARK; offset + len + 3 * ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN) + ALIGN / 2 + offset;
        clear(&mut memory[start..start + len]);
        let around = start - ALIGN / 2..start + len + ALIGN / 2;
        memory[around].to_vec()
    };
    let (got, expected) = (run(&clear), run(&|memory| Kernel::PORTABLE.clear(memory)));
    assert!(expected[ALIGN / 2..].iter().take(len).all(|byte| *byte == 0));
    assert!(got == expected, "{name}: {len} bytes, {offset} past an aligned address");
}

fn compare_all(offset: usize, len: usize) {
    for kernel in Kernel::all_here() {
        compare(&format!("{kernel:?}"), |memory| kernel.clear(memory), offset, len);
    }
    compare("backwards", clear_backwards, offset, len);
}

#[test]
fn every_short_length_at_every_alignment() {
    for offset in 0..128 {
        for len in 0..=300 {
            compare_all(offset, len);
        }
    }
}

#[test]
fn lengths_around_pages_and_huge_frames_at_every_alignment() {
    for offset in 0..128 {
        for len in [4096 - 1, 4096, 4096 + 1, 65536 - 127, 65536 + 129] {
            compare_all(offset, len);
        }
    }
    for offset in [0, 1, 64] {
        compare_all(offset, (2 << 20) + offset);
    }
}

#[test]
fn this_processor_has_the_kernels_that_it_says() {
    let here: Vec<_> = Kernel::all_here().collect();
    assert_eq!(here.last(), Some(&Kernel::PORTABLE));
    // By the kernel's own words, where it tells them.
    if let Ok(text) = std::fs::read_to_string("/proc/cpuinfo")
        && let Some(flags) = text.lines().find(|line| line.starts_with("flags"))
    {
        let has = |flag| flags.split_whitespace().any(|word| word == flag);
        assert_eq!(Kernel::rep_stosb().is_some(), has("erms"));
        assert_eq!(Kernel::avx2().is_some(), has("avx2"));
        assert_eq!(Kernel::avx2_streaming().is_some(), has("avx2"));
    }
}
