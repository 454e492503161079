//! Loads by address, as of a program that has nothing but an address.
//!
//! This module must never store, and never show what lies at an address as a reference: it may be moved out, or not be there.

/// The `N` bytes at `at`. Where nothing is, a signal comes, as to any program.
#[inline]
#[must_use]
pub fn load<const N: usize>(at: *const u8) -> [u8; N] {
    // SAFETY: a load changes nothing, bytes need no alignment, and every bit pattern is one of theirs. Being volatile, it is not
    // taken to tell anything of what lies there, so that the compiler draws no conclusion for anybody else's memory; who writes
    // there at the same time makes the bytes told any. Where nothing is mapped the processor faults, and the kernel ends the
    // process or calls the handler that it was given.
    unsafe { at.cast::<[u8; N]>().read_volatile() }
}
