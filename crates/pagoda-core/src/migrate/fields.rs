//! Fixed layouts of little-endian fields: one after the other, a checksum behind them, without a
//! gap.
//!
//! A message is decoded by taking its fields and encoding them again: only bytes that encode to
//! themselves were a message. That checks the checksum, reserved bits and ranges in one place.
//! Offsets depend on the layout alone and never on a message's content, so neither side can read
//! past the end.

use twox_hash::XxHash3_64;

/// Why bytes are not a message: they were damaged on the way, or no peer of this protocol wrote
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

const CHECKSUM_BYTES: usize = 8;

/// A message of `N` bytes being written.
pub(crate) struct Put<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Put<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    pub(crate) fn bytes<const M: usize>(mut self, value: [u8; M]) -> Self {
        self.bytes[self.at..self.at + M].copy_from_slice(&value);
        self.at += M;
        self
    }
    pub(crate) fn u8(self, value: u8) -> Self {
        self.bytes([value])
    }
    pub(crate) fn u16(self, value: u16) -> Self {
        self.bytes(value.to_le_bytes())
    }
    pub(crate) fn u32(self, value: u32) -> Self {
        self.bytes(value.to_le_bytes())
    }
    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(value.to_le_bytes())
    }

    /// The message with its checksum, which has to be all that is missing.
    pub(crate) fn seal(mut self) -> [u8; N] {
        assert!(self.at + CHECKSUM_BYTES == N, "a layout of {N} bytes ends with its checksum");
        let checksum = XxHash3_64::oneshot(&self.bytes[..self.at]);
        self.bytes[self.at..].copy_from_slice(&checksum.to_le_bytes());
        self.bytes
    }
}

/// A message of `N` bytes being read, field by field as it was put.
pub(crate) struct Take<'a, const N: usize> {
    bytes: &'a [u8; N],
    at: usize,
}

impl<'a, const N: usize> Take<'a, N> {
    pub(crate) fn new(bytes: &'a [u8; N]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn bytes<const M: usize>(&mut self) -> [u8; M] {
        let mut value = [0; M];
        value.copy_from_slice(&self.bytes[self.at..self.at + M]);
        self.at += M;
        value
    }
    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }
    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }
    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }
    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}
