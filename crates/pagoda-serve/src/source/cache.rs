//! The cache that all guests of a handler share: blocks of the source, within a bound.
//!
//! A block that several guests want is read and unpacked once. This module must never keep an error
//! as content.

use std::ops::Range;
use std::sync::Arc;

use pagoda_core::size::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::source::{Source, SourceError};
use crate::working_set::Touch;

/// A source behind a cache of its blocks, for all guests together.
pub struct Cached<S> {
    source: S,
    blocks: Cache<u64, Arc<[u8]>, Weights>,
}

#[derive(Clone)]
struct Weights;

impl Weighter<u64, Arc<[u8]>> for Weights {
    fn weight(&self, _: &u64, block: &Arc<[u8]>) -> u64 {
        block.len() as u64
    }
}

impl<S: Source> Cached<S> {
    /// Keeps at most `most` of the source's blocks.
    pub fn new(source: S, most: Bytes) -> Self {
        let blocks = (most.get() / source.block_bytes() as u64).max(1);
        let items = usize::try_from(blocks).unwrap_or(usize::MAX);
        let blocks = Cache::with_weighter(items, blocks * source.block_bytes() as u64, Weights);
        Self { source, blocks }
    }

    /// The block at this number. Several threads that want one read it once.
    fn block(&self, number: u64) -> Result<Arc<[u8]>, SourceError> {
        self.blocks.get_or_insert_with(&number, || {
            let mut block = vec![0; self.source.block_bytes()];
            self.source.read_at(number * block.len() as u64, &mut block)?;
            Ok(block.into())
        })
    }
}

impl<S: Source> Source for Cached<S> {
    fn len_bytes(&self) -> u64 {
        self.source.len_bytes()
    }

    fn block_bytes(&self) -> usize {
        self.source.block_bytes()
    }

    fn is_zero(&self, offset: u64, len_bytes: u64) -> bool {
        self.source.is_zero(offset, len_bytes)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let block_bytes = self.block_bytes() as u64;
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let from = (at % block_bytes) as usize;
            let (part, more) = rest.split_at_mut((block_bytes as usize - from).min(rest.len()));
            if self.is_zero(at, part.len() as u64) {
                part.fill(0);
            } else {
                part.copy_from_slice(&self.block(at / block_bytes)?[from..from + part.len()]);
            }
            at += part.len() as u64;
            rest = more;
        }
        Ok(())
    }

    fn read_ahead(&self, each: &mut dyn FnMut(u64, &[u8]) -> bool) {
        let most = self.blocks.capacity();
        self.source.read_ahead(&mut |number, block| {
            self.blocks.insert(number, block.into());
            // More would push out the first ones.
            self.blocks.weight() + block.len() as u64 <= most && each(number, block)
        });
    }

    fn announce(&self, offset: u64, len_bytes: u64) {
        let block_bytes = self.block_bytes() as u64;
        for block in offset / block_bytes..offset.saturating_add(len_bytes).div_ceil(block_bytes) {
            if self.blocks.peek(&block).is_none() {
                self.source.announce(block * block_bytes, block_bytes);
            }
        }
    }

    fn identity(&self) -> String {
        self.source.identity()
    }

    fn working_set(&self) -> Vec<Range<u64>> {
        self.source.working_set()
    }

    fn keep_working_set(&self, touches: &[Touch]) -> Result<(), SourceError> {
        self.source.keep_working_set(touches)
    }
}

#[cfg(test)]
#[path = "cache_test.rs"]
mod tests;
