//! Digests and ciphers with secret keys of one engine, so that no content can be planted.
//!
//! The kernel draws the keys. They stay in this process's memory, and go to a forked child alone,
//! which has a copy of that memory anyway. They protect against a program that chooses its content,
//! a disk and a server. The store's own memory is as safe as the program, which can write to it.
//! This module must never write a key to a file, a log or a server, nor draw one elsewhere.

pub(crate) mod digest;
pub(crate) mod file_cipher;
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "nothing leaves the machine"))]
pub(crate) mod sealing;
