//! The digests of what the blocks of stored pages hold: a block that leaves a region again with the
//! same digest was not written, and costs no unpacking.
//!
//! A digest is noted when a block is found to be as it was, or is stored anew by itself; a block
//! without one is unpacked and compared. It takes 8 bytes for each 4 KiB of the objects whose
//! blocks went out one by one. A program can't make two contents look equal
//! ([`crate::crypto::digest`]). This module must never tell the digests of an earlier object that
//! had the same number.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_linux::codec::pack::BLOCK;

use crate::crypto::digest::Digester;
use crate::store::slab_table::ByNumber;

/// By object, a digest for each block; 0 where none is known.
pub(super) struct ContentDigests {
    records: ByNumber<AtomicU64>,
}

impl ContentDigests {
    /// For pages of so many bytes.
    pub fn new(page: usize) -> Self {
        Self { records: ByNumber::new(page / BLOCK) }
    }

    /// Whether the blocks of an object from `offset` on have this content. None if one of them has
    /// no digest, or the content is not of whole blocks.
    pub fn are(&self, id: u32, offset: usize, content: &[u8], digester: &Digester) -> Option<bool> {
        let known = self.records.get(id)?.get(offset / BLOCK..)?;
        let blocks = content.chunks_exact(BLOCK);
        if !offset.is_multiple_of(BLOCK) || !blocks.remainder().is_empty() {
            return None;
        }
        let known = || known.iter().map(|digest| digest.load(Ordering::Relaxed)).take(blocks.len());
        if known().any(|digest| digest == 0) {
            return None;
        }
        Some(blocks.clone().zip(known()).all(|(block, digest)| digester.of(block) == digest))
    }

    /// The blocks of an object from `offset` on have this content. Blocks of which it is a part are
    /// left as they are.
    pub fn note(&self, id: u32, offset: usize, content: &[u8], digester: &Digester) {
        if !offset.is_multiple_of(BLOCK) {
            return;
        }
        let record = self.records.ensure(id).iter().skip(offset / BLOCK);
        for (digest, block) in record.zip(content.chunks_exact(BLOCK)) {
            digest.store(digester.of(block), Ordering::Relaxed);
        }
    }

    /// Object `anew` is object `id` with the `changed` bytes of `content`.
    pub fn carry(&self, id: u32, anew: u32, changed: &[Range<usize>], content: &[u8], digester: &Digester) {
        let record = self.records.ensure(anew);
        for (at, digest) in record.iter().enumerate() {
            let known = self.records.get(id).map_or(0, |old| old[at].load(Ordering::Relaxed));
            let touches = |run: &&Range<usize>| run.start < (at + 1) * BLOCK && run.end > at * BLOCK;
            let is_changed = changed.iter().any(|run| touches(&run));
            digest.store(if is_changed { 0 } else { known }, Ordering::Relaxed);
        }
        for run in changed {
            self.note(anew, run.start, &content[run.clone()], digester);
        }
    }

    /// Forgets the digests of an object.
    pub fn forget(&self, id: u32) {
        self.records.get(id).into_iter().flatten().for_each(|digest| digest.store(0, Ordering::Relaxed));
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.records.bytes()
    }
}
