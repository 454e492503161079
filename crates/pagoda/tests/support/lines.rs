//! Pages of lines that differ, told apart by a number.

use pagoda::Region;

use super::PAGE;

/// Writes its content to each OS page of `len` bytes from `from` on.
pub fn fill(region: &mut Region, from: usize, len: usize) {
    for offset in (from..from + len).step_by(PAGE) {
        region.write_at(offset, &content(offset as u64)).expect("written");
    }
}

/// An OS page of which every line is another, and most of it compresses.
pub fn content(value: u64) -> [u8; PAGE] {
    let mut content = [0; PAGE];
    for (i, line) in content.chunks_exact_mut(64).enumerate() {
        line[..8]
            .copy_from_slice(&value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32).to_le_bytes());
    }
    content[..8].copy_from_slice(&value.to_le_bytes());
    content
}
