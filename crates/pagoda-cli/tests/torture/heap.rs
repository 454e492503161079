//! malloc, realloc and free, with what each block holds known.

use crate::support::random::{Random, mix};

/// A block of malloc's.
struct Block {
    at: *mut u8,
    len: usize,
    seed: u64,
}

/// Blocks of one thread.
#[derive(Default)]
pub struct Heap {
    blocks: Vec<Block>,
    bytes: usize,
}

fn byte(seed: u64, i: usize) -> u8 {
    mix(seed ^ (i as u64 / 64)).to_le_bytes()[i % 8]
}

impl Block {
    fn bytes(&self) -> &[u8] {
        // SAFETY: malloc gave `len` bytes, which `fill` has written since.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
    fn fill(&mut self, from: usize) {
        for i in from..self.len {
            // SAFETY: `i` lies within what malloc gave.
            unsafe { self.at.add(i).write(byte(self.seed, i)) };
        }
    }
    fn check(&self, len: usize) -> Result<(), String> {
        match self.bytes()[..len].iter().enumerate().find(|&(i, &is)| is != byte(self.seed, i)) {
            None => Ok(()),
            Some((i, is)) => Err(format!(
                "byte {i} of a malloc block of {} at {:?} is {is:#x} instead of {:#x}",
                self.len,
                self.at,
                byte(self.seed, i)
            )),
        }
    }
}

impl Heap {
    /// Makes, grows, shrinks, checks and frees blocks; holds `most` bytes at most.
    pub fn churn(&mut self, most: usize, random: &mut Random) -> Result<(), String> {
        for _ in 0..random.between(1, 12) {
            if self.bytes > most || !self.blocks.is_empty() && random.one_in(3) {
                let at = random.below(self.blocks.len());
                let block = self.blocks.swap_remove(at);
                block.check(block.len)?;
                self.bytes -= block.len;
                // SAFETY: malloc gave it, and nobody refers to it any more.
                unsafe { libc::free(block.at.cast()) };
            } else if !self.blocks.is_empty() && random.one_in(3) {
                let at = random.below(self.blocks.len());
                let len = size(random);
                let block = &mut self.blocks[at];
                let kept = block.len.min(len);
                // SAFETY: malloc gave it; the old address is forgotten at once.
                block.at = unsafe { libc::realloc(block.at.cast(), len) }.cast();
                assert!(!block.at.is_null(), "realloc");
                self.bytes = self.bytes - block.len + len;
                let old = std::mem::replace(&mut block.len, kept);
                block.check(kept).map_err(|error| format!("after realloc from {old} to {len}: {error}"))?;
                block.len = len;
                block.fill(kept);
            } else {
                let len = size(random);
                // SAFETY: it has no precondition.
                let at = unsafe { libc::malloc(len) }.cast::<u8>();
                assert!(!at.is_null(), "malloc");
                let mut block = Block { at, len, seed: random.next() };
                block.fill(0);
                self.bytes += len;
                self.blocks.push(block);
            }
        }
        Ok(())
    }

    /// Checks every byte.
    pub fn check(&self) -> Result<(), String> {
        self.blocks.iter().try_for_each(|block| block.check(block.len))
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        for block in &self.blocks {
            // SAFETY: malloc gave it, and nobody refers to it any more.
            unsafe { libc::free(block.at.cast()) };
        }
    }
}

fn size(random: &mut Random) -> usize {
    match random.below(8) {
        0 => random.between(128 << 10, 600 << 10),
        1 | 2 => random.between(4 << 10, 64 << 10),
        _ => random.between(1, 4 << 10),
    }
}
