//! The owner that starts while others close. It takes memory, writes a part of it, and then works
//! on more of it. The same work on every side; it must never touch memory before its time counts.

use std::time::Instant;

use anyhow::ensure;
use pagoda::Region;
use pagoda_core::size::Bytes;

use crate::load::data::PAGE_BYTES;
use crate::warm;

/// The part of its memory that it writes to start, and the part while it works: one in so many.
const START_SHARE: usize = 8;
const WORK_SHARE: usize = 4;

/// The memory that it works on.
pub trait Memory {
    fn write(&mut self, at: usize, word: [u8; 8]);
    fn read(&self, at: usize) -> [u8; 8];
}

impl Memory for Region {
    fn write(&mut self, at: usize, word: [u8; 8]) {
        self.write_at(at, &word).expect("written");
    }
    fn read(&self, at: usize) -> [u8; 8] {
        let mut word = [0; 8];
        self.read_at(at, &mut word).expect("read");
        word
    }
}

/// The kernel's memory: zeroed words, untouched.
impl Memory for Vec<u64> {
    fn write(&mut self, at: usize, word: [u8; 8]) {
        self[at / 8] = u64::from_ne_bytes(word);
    }
    fn read(&self, at: usize) -> [u8; 8] {
        self[at / 8].to_ne_bytes()
    }
}

/// Touches and frees as much memory as it will take.
pub fn warm_for(len: Bytes) {
    let len = len.as_usize();
    warm(Bytes::new((len / START_SHARE + len / WORK_SHARE) as u64));
}

/// Starts, and works. Returns the milliseconds of each.
pub fn start_and_work<M: Memory>(
    len: Bytes,
    take: impl FnOnce() -> anyhow::Result<M>,
) -> anyhow::Result<(f64, f64)> {
    let begin = Instant::now();
    let mut memory = take()?;
    let (start, work) = (len.as_usize() / START_SHARE, len.as_usize() / WORK_SHARE);
    (0..start).step_by(PAGE_BYTES).for_each(|at| memory.write(at, at.to_ne_bytes()));
    let started = begin.elapsed();
    (start..start + work).step_by(PAGE_BYTES).for_each(|at| memory.write(at, at.to_ne_bytes()));
    for at in (0..start + work).step_by(PAGE_BYTES) {
        ensure!(usize::from_ne_bytes(memory.read(at)) == at, "the starter's memory reads wrong at {at}");
    }
    let all = begin.elapsed();
    Ok((started.as_secs_f64() * 1e3, (all - started).as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_starter_writes_its_shares_and_no_more() {
        let len = Bytes::mib(1);
        let mut kept = Vec::new();
        struct Kept<'a>(&'a mut Vec<usize>);
        impl Memory for Kept<'_> {
            fn write(&mut self, at: usize, word: [u8; 8]) {
                assert_eq!(usize::from_ne_bytes(word), at);
                self.0.push(at);
            }
            fn read(&self, at: usize) -> [u8; 8] {
                at.to_ne_bytes()
            }
        }
        start_and_work(len, || Ok(Kept(&mut kept))).expect("right");
        assert_eq!(kept, (0..96).map(|page| page * PAGE_BYTES).collect::<Vec<_>>());
        struct Wrong;
        impl Memory for Wrong {
            fn write(&mut self, _: usize, _: [u8; 8]) {}
            fn read(&self, _: usize) -> [u8; 8] {
                [1; 8]
            }
        }
        assert!(start_and_work(len, || Ok(Wrong)).is_err());
        assert!(start_and_work(len, || Ok(vec![0u64; len.as_usize() / 8])).is_ok());
    }
}
