//! Arbitrary bytes as a peer's messages: for fuzzers, and for tests that replay their findings.
//!
//! Each function takes one input and panics on a wrong outcome. Its result says how far the input
//! got, so that a test can tell whether a corpus is worth something. For `fuzz/` and the tests
//! alone, behind a feature.

mod receive;
mod unpack;
mod wire;

use twox_hash::XxHash3_64;

pub use receive::receive;
pub use unpack::unpack;
pub use wire::wire;

/// How far an input got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Got {
    /// Nothing of it was taken.
    Nowhere,
    /// Something was taken before the rest was refused.
    Somewhere,
    /// All of it was taken.
    ToTheEnd,
}

/// The first bytes of the input as a message with a right checksum: hardly any input would be
/// accepted otherwise.
fn message<const N: usize>(input: &[u8]) -> Option<[u8; N]> {
    let mut bytes = *input.first_chunk::<N>()?;
    let checksum = XxHash3_64::oneshot(&bytes[..N - 8]);
    bytes[N - 8..].copy_from_slice(&checksum.to_le_bytes());
    Some(bytes)
}

#[cfg(test)]
mod tests;
