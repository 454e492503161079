//! The instructions that clear memory: one kernel for each way that our processors have.
//!
//! A kernel clears exactly its bytes, at any alignment. There must never be one on a processor that
//! does not have its instructions: the constructor asks the processor first.
//!
//! The loops are assembly, because a compiler turns a loop of stores of zero into a call of
//! `memset`, for any kind of store in it.

use std::fmt;

/// A way to clear memory that works on this processor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Kernel(Way);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    #[cfg(target_arch = "x86_64")]
    RepStosb,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx2Streaming,
    Portable,
}

impl Kernel {
    /// The compiler's or the C library's way: right everywhere.
    pub(super) const PORTABLE: Self = Self(Way::Portable);

    /// Every kernel that this processor can run.
    #[cfg(test)]
    fn all_here() -> impl Iterator<Item = Self> {
        [Self::rep_stosb(), Self::avx2(), Self::avx2_streaming(), Some(Self::PORTABLE)].into_iter().flatten()
    }

    /// One instruction for any length, where the processor says that it is a fast one (ERMS).
    pub(super) fn rep_stosb() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return has_fast_rep_stosb().then_some(Self(Way::RepStosb));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Stores of 32 bytes, into the cache.
    pub(super) fn avx2() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx2").then_some(Self(Way::Avx2));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Stores of 32 bytes, past the cache.
    pub(super) fn avx2_streaming() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx2").then_some(Self(Way::Avx2Streaming));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Makes every byte of `memory` zero. Other threads that are told of it by the usual means see
    /// that, also after stores past the cache.
    pub(super) fn clear(self, memory: &mut [u8]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Way::RepStosb => rep_stosb(memory),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value of this kind is made only where AVX2 was found.
            Way::Avx2 => unsafe { avx2(memory) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Way::Avx2Streaming => unsafe { avx2_streaming(memory) },
            Way::Portable => memory.fill(0),
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Makes every byte of `memory` zero, line by line from the end to the beginning.
pub(super) fn clear_backwards(memory: &mut [u8]) {
    const LINE: usize = 64;
    let (head, lines) = memory.as_rchunks_mut::<LINE>();
    for line in lines.iter_mut().rev() {
        *line = [0; LINE];
        // Else the compiler makes one `memset` of all of them, which goes upwards.
        std::hint::black_box(line);
    }
    head.fill(0);
}

/// ERMS: bit 9 of EBX of leaf 7.
#[cfg(target_arch = "x86_64")]
fn has_fast_rep_stosb() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 9 != 0
}

#[cfg(target_arch = "x86_64")]
fn rep_stosb(memory: &mut [u8]) {
    // SAFETY: it writes `len` bytes from the start of an exclusive borrow upwards: the direction
    // flag is clear between statements, by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") memory.len() => _,
            inout("rdi") memory.as_mut_ptr() => _,
            in("al") 0u8,
            options(nostack, preserves_flags)
        );
    }
}

/// One turn of a loop clears this: two lines, four stores.
#[cfg(target_arch = "x86_64")]
const TURN: usize = 128;

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Turn([u8; TURN]);

/// Splits memory into turns and the bytes before and behind them, and clears those bytes.
#[cfg(target_arch = "x86_64")]
fn turns(memory: &mut [u8]) -> &mut [Turn] {
    // SAFETY: a turn is bytes, of which all values are valid.
    let (head, turns, tail) = unsafe { memory.align_to_mut::<Turn>() };
    head.fill(0);
    tail.fill(0);
    turns
}

/// Some processors run everything that follows slower while upper halves of the wide registers may
/// be in use. The compiler does not see into assembly, and so does not do this by itself.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn forget_upper_halves() {
    std::arch::x86_64::_mm256_zeroupper();
}

/// Clears turns with four stores of 32 bytes each, and ends with the given instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! clear_turns {
    ($turns:expr, $store:literal $(, $end:literal)*) => {
        std::arch::asm!(
            "vpxor {zero}, {zero}, {zero}",
            "cmp {at}, {end}",
            "jae 3f",
            "2:",
            concat!($store, " ymmword ptr [{at}], {zero}"),
            concat!($store, " ymmword ptr [{at} + 32], {zero}"),
            concat!($store, " ymmword ptr [{at} + 64], {zero}"),
            concat!($store, " ymmword ptr [{at} + 96], {zero}"),
            "add {at}, 128",
            "cmp {at}, {end}",
            "jb 2b",
            "3:",
            $($end,)*
            at = inout(reg) $turns.start => _,
            end = in(reg) $turns.end,
            zero = out(ymm_reg) _,
            options(nostack)
        )
    };
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(memory: &mut [u8]) {
    let turns = turns(memory).as_mut_ptr_range();
    // SAFETY: each turn of the loop writes the 128 bytes of one `Turn` of an exclusive borrow,
    // which are aligned to more than the 32 that the stores need; with none it does not run. The
    // caller vouches for the instructions.
    unsafe { clear_turns!(turns, "vmovdqa") };
    forget_upper_halves();
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2_streaming(memory: &mut [u8]) {
    let turns = turns(memory).as_mut_ptr_range();
    // SAFETY: as for `avx2`. The fence at the end orders these stores, which are not ordered by
    // themselves, before everything that follows, as the compiler and other threads expect of any
    // store.
    unsafe { clear_turns!(turns, "vmovntdq", "sfence") };
    forget_upper_halves();
}

#[cfg(test)]
#[path = "kernel_test.rs"]
mod tests;
