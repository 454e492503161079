//! Working memory of readers: packed bytes, one block, a decompressor.
//!
//! There is as much of it as threads were reading at once, and each thread takes the one that was
//! used last.

use std::sync::{Mutex, PoisonError};

use pagoda_linux::codec::zstd::Decompressor;

#[derive(Default)]
pub(crate) struct Scratch {
    /// Packed bytes, as many as one read takes.
    pub(crate) packed: Vec<u8>,
    /// A block of which a part was asked for, and its number: the next read may ask for more of it.
    pub(crate) block: Vec<u8>,
    pub(crate) number: Option<u64>,
    pub(crate) zstd: Decompressor,
}

#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<Scratch>>);

impl Pool {
    pub(super) fn with<T>(&self, body: impl FnOnce(&mut Scratch) -> T) -> T {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = lock().pop();
        let mut scratch = spare.unwrap_or_default();
        let result = body(&mut scratch);
        lock().push(scratch);
        result
    }
}
