//! Machine code for guests in tests: it fills the guest's memory, and reads it back.
//!
//! It is 32-bit code for flat segments without paging, at any address, without a stack. Nothing
//! here may ever run it: that is for a virtual machine.

/// The report of a guest, on its port, when it has filled its memory.
pub const FILLED: u8 = b'F';
/// The report when every word reads as it was written.
pub const RIGHT: u8 = b'R';
/// The report when a word does not; ECX has its address then.
pub const WRONG: u8 = b'W';

/// An odd number: no two addresses have the same word.
const FACTOR: u32 = 0x9E37_79B1;

/// The word that the guest writes at `address`.
#[must_use]
pub fn word_at(address: u32) -> u32 {
    address.wrapping_mul(FACTOR)
}

/// Code that writes a word each `step` bytes of ESI..EDI, reports [`FILLED`] on `port`, reads them
/// back, reports [`RIGHT`] or [`WRONG`], and ends with the code `end`, with the report in AL. ESI
/// and EDI stay as they are, EDX does not. Returns also where in the code reading back begins.
///
/// A processor runs a few hundred million of its instructions a second, an emulator in a kernel
/// less than one: give that one large steps.
#[must_use]
pub fn fill_and_read(port: u16, step: u32, end: &[u8]) -> (Vec<u8>, usize) {
    let word = |code: &mut Vec<u8>| {
        code.extend([0x69, 0xC1]); // imul eax, ecx, the factor
        code.extend(FACTOR.to_le_bytes());
    };
    let again = |code: &mut Vec<u8>, begin: usize| {
        code.extend([0x81, 0xC1]); // add ecx, the step
        code.extend(step.to_le_bytes());
        code.extend([0x39, 0xF9]); // cmp ecx, edi
        let back = code.len() + 2 - begin;
        code.extend([0x72, (back as u8).wrapping_neg()]); // jb begin
    };
    let [low, high] = port.to_le_bytes();
    // mov dx; mov al; out
    let report = |code: &mut Vec<u8>, byte| code.extend([0x66, 0xBA, low, high, 0xB0, byte, 0xEE]);
    let mut code = vec![0x89, 0xF1]; // mov ecx, esi
    let begin = code.len();
    word(&mut code);
    code.extend([0x89, 0x01]); // mov [ecx], eax
    again(&mut code, begin);
    report(&mut code, FILLED);
    let reads_from = code.len();
    code.extend([0x89, 0xF1]); // mov ecx, esi
    let begin = code.len();
    word(&mut code);
    code.extend([0x39, 0x01]); // cmp [ecx], eax
    code.extend([0x75, 0]); // jne wrong
    let jump = code.len();
    again(&mut code, begin);
    report(&mut code, RIGHT);
    code.extend(end);
    code[jump - 1] = (code.len() - jump) as u8;
    report(&mut code, WRONG);
    code.extend(end);
    (code, reads_from)
}
