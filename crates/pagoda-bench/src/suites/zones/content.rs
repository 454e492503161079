//! The content of the streamed file: pages made and checked from their number and their count of
//! writes.
//!
//! No two pages are alike, nor two writes of one. Making and checking run at memory speed. This
//! module must never accept a page with one wrong word.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, ensure};

use crate::load::data::{PAGE_BYTES, mix};

/// The step from one word of a page to the next: odd, so that no word of a page repeats.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Pages of one read or write where its size affects only its time.
const CHUNK_PAGES: usize = 256;

/// The pages of a file, and the count of writes of each. At most one thread at a time may write a
/// page.
pub struct Content {
    writes: Box<[AtomicU32]>,
}

impl Content {
    /// The content of a file of so many pages, each written once.
    pub fn new(pages: usize) -> Self {
        Self { writes: (0..pages).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.writes.len()
    }

    /// Makes the file in its current state, and syncs it to its disk.
    pub fn make(&self, path: &Path) -> anyhow::Result<()> {
        let making = || format!("making {}", path.display());
        let mut file =
            BufWriter::with_capacity(CHUNK_PAGES * PAGE_BYTES, File::create(path).with_context(making)?);
        let mut page = [0; PAGE_BYTES];
        for number in 0..self.pages() {
            fill(number, self.writes[number].load(Ordering::Relaxed), &mut page);
            file.write_all(&page).with_context(making)?;
        }
        file.into_inner().context("writing the last of it")?.sync_all().with_context(making)
    }

    /// The content of the pages from `first` on after one more write.
    pub fn write(&self, first: usize, into: &mut [u8]) {
        for (number, page) in (first..).zip(into.chunks_exact_mut(PAGE_BYTES)) {
            fill(number, self.writes[number].fetch_add(1, Ordering::Relaxed) + 1, page);
        }
    }

    /// Fails if `found`, read from page `first` on, is not the last write.
    pub fn check(&self, first: usize, found: &[u8]) -> anyhow::Result<()> {
        for (number, page) in (first..).zip(found.chunks_exact(PAGE_BYTES)) {
            let writes = self.writes[number].load(Ordering::Relaxed);
            ensure!(
                is_right(number, writes, page),
                "page {number} of the file came back other than it was written"
            );
        }
        Ok(())
    }

    /// Checks the whole file, as any other program sees it.
    pub fn check_file(&self, path: &Path) -> anyhow::Result<()> {
        let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let mut chunk = vec![0; CHUNK_PAGES * PAGE_BYTES];
        for first in (0..self.pages()).step_by(CHUNK_PAGES) {
            let chunk = &mut chunk[..CHUNK_PAGES.min(self.pages() - first) * PAGE_BYTES];
            file.read_exact(chunk).with_context(|| format!("reading {}", path.display()))?;
            self.check(first, chunk)?;
        }
        Ok(())
    }
}

fn fill(page: usize, writes: u32, into: &mut [u8]) {
    let mut word = mix((page as u64) << 32 | u64::from(writes));
    for bytes in into.as_chunks_mut::<8>().0 {
        *bytes = word.to_le_bytes();
        word = word.wrapping_add(STEP);
    }
}

/// Compares all of it, without a branch for each word.
fn is_right(page: usize, writes: u32, found: &[u8]) -> bool {
    let mut word = mix((page as u64) << 32 | u64::from(writes));
    let mut differs = 0;
    for bytes in found.as_chunks::<8>().0 {
        differs |= u64::from_le_bytes(*bytes) ^ word;
        word = word.wrapping_add(STEP);
    }
    differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_one_page_off_and_one_write_behind_are_all_found() {
        let content = Content::new(4);
        let mut pages = vec![0; 2 * PAGE_BYTES];
        content.write(1, &mut pages);
        content.check(1, &pages).expect("as it was written");
        assert!(content.check(0, &pages).is_err(), "another page");
        for at in [0, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES - 1] {
            let mut wrong = pages.clone();
            wrong[at] ^= 0x10;
            assert!(content.check(1, &wrong).is_err(), "byte {at}");
        }
        content.write(1, &mut vec![0; PAGE_BYTES]);
        assert!(content.check(1, &pages).is_err(), "the write before");
    }

    #[test]
    fn a_file_is_checked_to_its_last_page() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let content = Content::new(CHUNK_PAGES + 3);
        content.make(file.path()).expect("room");
        content.check_file(file.path()).expect("as it was made");
        content.write(CHUNK_PAGES + 2, &mut vec![0; PAGE_BYTES]);
        assert!(content.check_file(file.path()).is_err(), "the last page was not written");
    }
}
