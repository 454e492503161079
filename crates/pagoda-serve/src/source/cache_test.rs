use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// Content that tells its offset, and counts its reads.
struct Counted(AtomicU64);

impl Source for Counted {
    fn len_bytes(&self) -> u64 {
        1 << 20
    }
    fn block_bytes(&self) -> usize {
        4096
    }
    fn is_zero(&self, offset: u64, len: u64) -> bool {
        offset + len <= 8192
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        if offset >= 64 * 4096 {
            return Err(SourceError("damaged".into()));
        }
        into.fill((offset / 4096) as u8);
        Ok(())
    }
    fn read_ahead(&self, each: &mut dyn FnMut(u64, &[u8]) -> bool) {
        let _ = (2..100).all(|number| each(number, &[200; 4096]));
    }
    fn identity(&self) -> String {
        String::new()
    }
    fn working_set(&self) -> Vec<Range<u64>> {
        Vec::new()
    }
    fn keep_working_set(&self, _: &[Touch]) -> Result<(), SourceError> {
        Ok(())
    }
}

#[test]
fn the_cache_gives_what_the_source_gives_and_keeps_its_bound() {
    let cached = Cached::new(Counted(AtomicU64::new(0)), Bytes::kib(64));
    let mut buffer = [1; 3 * 4096];
    cached.read_at(4096 + 100, &mut buffer).expect("read");
    assert!(buffer[..4096 - 100].iter().all(|&byte| byte == 0), "zero without a read");
    assert!(buffer[4096 - 100..2 * 4096 - 100].iter().all(|&byte| byte == 2));
    assert_eq!(cached.source.0.load(Ordering::Relaxed), 3);
    cached.read_at(3 * 4096, &mut buffer[..4096]).expect("read");
    assert_eq!(cached.source.0.load(Ordering::Relaxed), 3, "it was there");
    for block in 2..60 {
        cached.read_at(block * 4096, &mut buffer[..4096]).expect("read");
        assert_eq!(buffer[0], block as u8);
    }
    assert!(cached.blocks.weight() <= 64 << 10);
    assert!(cached.read_at(64 * 4096, &mut buffer[..4096]).is_err());
    assert!(cached.read_at(64 * 4096, &mut buffer[..4096]).is_err(), "an error is not kept as content");
}

#[test]
fn reading_ahead_fills_the_cache_and_no_more() {
    let cached = Cached::new(Counted(AtomicU64::new(0)), Bytes::kib(64));
    cached.read_ahead(&mut |_, _| true);
    assert!((32 << 10..=64 << 10).contains(&cached.blocks.weight()), "{}", cached.blocks.weight());
    let mut block = [0; 4096];
    cached.read_at(2 * 4096, &mut block).expect("read");
    assert_eq!((block[0], cached.source.0.load(Ordering::Relaxed)), (200, 0));
}
