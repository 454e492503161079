//! Programs without a loader, which no library can be put into; made without a compiler.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A program of this machine code, without a loader.
pub fn of(code: &[u8]) -> Vec<u8> {
    let mut own = [0; 64];
    File::open("/proc/self/exe").and_then(|file| file.read_exact_at(&mut own, 0)).expect("own header");
    let mut program = own.to_vec();
    let at = 0x40_0000_u64;
    let length = (64 + 56 + code.len()) as u64;
    let mut put = |offset: usize, bytes: &[u8]| program[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(16, &2u16.to_le_bytes()); // an executable at fixed addresses
    put(24, &(at + 64 + 56).to_le_bytes()); // its entry
    put(32, &64u64.to_le_bytes()); // its program headers
    put(40, &0u64.to_le_bytes()); // no sections
    put(56, &1u16.to_le_bytes()); // one program header
    put(58, &[0; 6]);
    let words: [u64; 7] = [5 << 32 | 1, 0, at, at, length, length, 4096];
    program.extend(words.into_iter().flat_map(u64::to_le_bytes));
    program.extend_from_slice(code);
    program
}
