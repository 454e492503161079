//! A batch of handles to be freed: one word each, or two for a run of consecutive handles.
//!
//! ```text
//! word  0 | handle                       one entry
//! word  1 | handle | RUN, then a length  entries handle, handle + 1, …
//! ```
//!
//! A batch is filled, then emptied from the front, then filled anew. Both never overlap, so it
//! needs no memory beyond its buffer.

/// Words of a batch. With its header of two words it fills one OS page.
pub const BATCH_WORDS: usize = 510;

/// Marks that the next word is the length of the run that begins here.
const RUN: u64 = 1 << 63;

/// Entries with consecutive handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The lowest handle.
    pub first: u64,
    /// The number of entries.
    pub entries: u64,
}

/// Handles to be freed.
#[derive(Debug)]
pub struct Batch {
    words: Box<[u64]>,
    /// The number of filled words.
    len: usize,
    /// Where the last item begins, if there is one.
    last: Option<usize>,
    /// Where the next item to be taken begins.
    next: usize,
    entries: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self { words: vec![0; BATCH_WORDS].into(), len: 0, last: None, next: 0, entries: 0 }
    }
}

impl Batch {
    /// The number of entries left in the batch.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Adds a handle of at most 63 bits. Returns false, and changes nothing, if there is no room.
    ///
    /// # Panics
    /// If the handle is larger, or entries of the batch were already taken.
    #[must_use]
    pub fn push(&mut self, handle: u64) -> bool {
        assert!(handle < RUN && self.next == 0, "a batch is filled before it is emptied");
        if let Some(last) = self.last {
            let word = self.words[last];
            if word & RUN != 0 && (word & !RUN) + self.words[last + 1] == handle {
                self.words[last + 1] += 1;
                self.entries += 1;
                return true;
            }
            if word + 1 == handle && self.len < BATCH_WORDS {
                self.words[last] |= RUN;
                self.words[self.len] = 2;
                self.len += 1;
                self.entries += 1;
                return true;
            }
        }
        if self.len == BATCH_WORDS {
            return false;
        }
        self.words[self.len] = handle;
        self.last = Some(self.len);
        self.len += 1;
        self.entries += 1;
        true
    }

    /// Takes the next run, or its first `most` entries. None if the batch is empty, or `most` is 0.
    pub fn take(&mut self, most: u64) -> Option<Run> {
        if self.next == self.len || most == 0 {
            return None;
        }
        let word = self.words[self.next];
        let run = if word & RUN == 0 {
            self.next += 1;
            Run { first: word, entries: 1 }
        } else {
            let (first, entries) = (word & !RUN, self.words[self.next + 1]);
            let taken = entries.min(most);
            if taken == entries {
                self.next += 2;
            } else {
                self.words[self.next] = (first + taken) | RUN;
                self.words[self.next + 1] = entries - taken;
            }
            Run { first, entries: taken }
        };
        self.entries -= run.entries;
        if self.next == self.len {
            (self.len, self.last, self.next) = (0, None, 0);
        }
        Some(run)
    }
}

#[cfg(test)]
#[path = "batch_test.rs"]
mod tests;
