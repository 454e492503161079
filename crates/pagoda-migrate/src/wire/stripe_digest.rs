//! The digest by which a stripe of an earlier transfer is known to be the sender's.

use pagoda_core::migrate::kept::KEPT_DIGEST_BYTES;

/// A digest of all bytes of a stripe that are in the image.
pub(crate) type StripeDigest = [u8; KEPT_DIGEST_BYTES];

const CONTEXT: &str = "pagoda 2026 kept stripe v1";

/// The digest of a stripe's `content`. Made with a key of its own, so that it equals no other
/// digest of the same bytes.
pub(crate) fn stripe_digest(content: &[u8]) -> StripeDigest {
    blake3::derive_key(CONTEXT, content)
}
