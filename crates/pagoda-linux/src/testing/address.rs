//! Loads by address, as of a program that has nothing but an address.
//!
//! This module must never store, and never show the memory at an address as a reference: it may be
//! moved out, or not be there.

/// The `N` bytes at `at`. Where nothing is, a signal comes, as to any program.
#[inline]
#[must_use]
pub fn load<const N: usize>(at: *const u8) -> [u8; N] {
    // SAFETY: a load changes nothing, bytes need no alignment, and every bit pattern is a value of
    // theirs. Being volatile, it tells the compiler nothing about the memory there, so that it
    // draws no conclusion for other code's memory; with a writer at the same time the bytes are
    // arbitrary. Where nothing is mapped the processor faults, and the kernel ends the process or
    // calls its handler.
    unsafe { at.cast::<[u8; N]>().read_volatile() }
}
