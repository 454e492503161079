//! malloc, realloc and free, with the content of each block known.

use pagoda_linux::testing::heap;

use crate::support::random::{Random, mix};

/// A block of malloc's, and its content.
struct Block {
    memory: heap::Block,
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
    fn new(len: usize, seed: u64) -> Self {
        let mut block = Self { memory: heap::Block::new(len), seed };
        block.fill();
        block
    }
    /// Writes the rest of it.
    fn fill(&mut self) {
        let seed = self.seed;
        self.memory.write_rest(|i| byte(seed, i));
    }
    /// Checks every byte that was written.
    fn check(&self) -> Result<(), String> {
        match self.memory.bytes().iter().enumerate().find(|&(i, &is)| is != byte(self.seed, i)) {
            None => Ok(()),
            Some((i, is)) => Err(format!(
                "byte {i} of a malloc block of {} at {:#x} is {is:#x} instead of {:#x}",
                self.memory.len(),
                self.memory.address(),
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
                block.check()?;
                self.bytes -= block.memory.len();
            } else if !self.blocks.is_empty() && random.one_in(3) {
                let at = random.below(self.blocks.len());
                let len = size(random);
                let block = &mut self.blocks[at];
                let old = block.memory.len();
                block.memory.resize(len);
                self.bytes = self.bytes - old + len;
                // The kept part, before the rest is written.
                block.check().map_err(|error| format!("after realloc from {old} to {len}: {error}"))?;
                block.fill();
            } else {
                let len = size(random);
                self.blocks.push(Block::new(len, random.next()));
                self.bytes += len;
            }
        }
        Ok(())
    }

    /// Checks every byte.
    pub fn check(&self) -> Result<(), String> {
        self.blocks.iter().try_for_each(Block::check)
    }
}

fn size(random: &mut Random) -> usize {
    match random.below(8) {
        0 => random.between(128 << 10, 600 << 10),
        1 | 2 => random.between(4 << 10, 64 << 10),
        _ => random.between(1, 4 << 10),
    }
}
