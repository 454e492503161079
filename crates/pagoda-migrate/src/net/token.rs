//! The token that both sides of a migration may share, and the proofs that they have it.
//!
//! It is never sent: each side sends a keyed hash over both sides' fresh numbers and all agreed
//! values. An eavesdropper learns nothing that opens another migration, but could try guesses, so
//! that a token has to be long. Without one the proofs are made with a public key, and prove
//! nothing.

use pagoda_core::migrate::handshake::{GREETING_BYTES, PROOF_BYTES, UNPROVEN_BYTES};

/// The shortest token: 128 bits, if each byte is random.
const TOKEN_BYTES_LEAST: usize = 16;

const CONTEXT: &str = "pagoda 2026 migration token v1";

/// A key made from a token.
#[derive(Clone)]
pub struct Token {
    key: [u8; blake3::KEY_LEN],
}

/// A token that is too short to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token has at least {TOKEN_BYTES_LEAST} bytes, and this has {0}; make one with `head -c 32 /dev/urandom | base64`"
)]
pub struct TokenTooShort(usize);

impl Token {
    /// The token with these bytes, without the blank space around them.
    ///
    /// # Errors
    /// If they are fewer than 16.
    pub fn new(bytes: &[u8]) -> Result<Self, TokenTooShort> {
        let bytes = bytes.trim_ascii();
        if bytes.len() < TOKEN_BYTES_LEAST {
            return Err(TokenTooShort(bytes.len()));
        }
        Ok(Self { key: blake3::derive_key(CONTEXT, bytes) })
    }

    /// The key in place of a token.
    pub(crate) fn none() -> Self {
        Self { key: blake3::derive_key(CONTEXT, b"") }
    }

    /// The proof of one side over both sides' messages.
    pub(crate) fn proof(
        &self,
        side: Side,
        greeting: &[u8; GREETING_BYTES],
        hello: &[u8; UNPROVEN_BYTES],
    ) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[side as u8]).update(greeting).update(hello);
        Proof(hasher.finalize())
    }
}

/// The side of a proof: else one side could answer with the other's own proof.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

/// A proof as it should be.
pub(crate) struct Proof(blake3::Hash);

impl Proof {
    pub(crate) fn bytes(&self) -> [u8; PROOF_BYTES] {
        *self.0.as_bytes()
    }
    /// Whether the other side has sent the same. Takes the same time for any difference.
    pub(crate) fn is(&self, sent: [u8; PROOF_BYTES]) -> bool {
        self.0 == sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_token_one_side_and_its_messages() {
        let token = Token::new(b"  0123456789abcdef\n").expect("long enough");
        let other = Token::new(b"0123456789abcdeg").expect("long enough");
        let (greeting, hello) = ([1; GREETING_BYTES], [2; UNPROVEN_BYTES]);
        let proof = token.proof(Side::Sender, &greeting, &hello);
        assert!(
            Token::new(b"0123456789abcdef")
                .is_ok_and(|same| proof.is(same.proof(Side::Sender, &greeting, &hello).bytes()))
        );
        assert!(!proof.is(other.proof(Side::Sender, &greeting, &hello).bytes()));
        assert!(!proof.is(Token::none().proof(Side::Sender, &greeting, &hello).bytes()));
        assert!(!proof.is(token.proof(Side::Receiver, &greeting, &hello).bytes()));
        assert!(!proof.is(token.proof(Side::Sender, &[3; GREETING_BYTES], &hello).bytes()));
        assert!(!proof.is(token.proof(Side::Sender, &greeting, &[3; UNPROVEN_BYTES]).bytes()));
    }

    #[test]
    fn a_short_token_says_how_to_make_one() {
        let error = Token::new(b"  short \n").map(drop).expect_err("too short");
        assert!(error == TokenTooShort(5) && error.to_string().contains("urandom"));
    }
}
