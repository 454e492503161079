//! The expected content of an OS page: derived from a stamp, so that a table of stamps is the
//! shadow of all memory.

use super::random::mix;

/// The words of an OS page.
pub const WORDS: usize = 512;

/// The expectation of one OS page: its first word, and the number that all the others are derived
/// from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Word 0: can be changed by a write of eight bytes.
    pub head: u64,
    /// 0: the others are zero too. Else its two low bits say how well they compress.
    pub body: u64,
}

impl Stamp {
    /// A page that was never written.
    pub const ZERO: Self = Self { head: 0, body: 0 };

    /// The content of word `i`.
    pub fn word(self, i: usize) -> u64 {
        if i == 0 {
            return self.head;
        }
        match (self.body, self.body & 3) {
            (0, _) => 0,
            (body, 0) => mix(body ^ i as u64),
            (body, 1) => body,
            (body, 2) if i.is_multiple_of(4) => mix(body ^ i as u64),
            (body, 2) => body ^ 0xff,
            (body, _) => mix(body ^ i as u64) & 0xff,
        }
    }

    /// Writes a page.
    pub fn fill(self, page: &mut [u64]) {
        for (i, word) in page.iter_mut().enumerate() {
            *word = self.word(i);
        }
    }

    /// The fault of a page, if it has one.
    pub fn wrong(self, page: &[u64]) -> Option<String> {
        let first = (0..page.len()).find(|&i| page[i] != self.word(i))?;
        let count = (0..page.len()).filter(|&i| page[i] != self.word(i)).count();
        let zeroes = page.iter().filter(|&&word| word == 0).count();
        Some(format!(
            "{count} of {} words differ, the first is word {first}: {:#x} instead of {:#x}; {zeroes} words are zero; \
             the last word is {:#x} instead of {:#x}",
            page.len(),
            page[first],
            self.word(first),
            page[page.len() - 1],
            self.word(page.len() - 1),
        ))
    }
}
