//! What keeps content from being planted: digests and ciphers with secret keys of one engine.
//!
//! The keys are in this process's memory, drawn from the kernel's random numbers, and leave it to a forked child alone, which has
//! a copy of that memory anyway. They protect against all that is outside of it: a program that chooses its content, a disk,
//! a server. Memory that the program itself can write is as safe as the program. This module must never write a key to a
//! file, a log or a server, and never draw one from anything but the kernel.

pub(crate) mod digest;
pub(crate) mod sealing;
