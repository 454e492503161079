//! Pages that are written while the process forks: each has its version, and a copy of one that was
//! being written has to be the new version up to some word and the old one from there on, as a copy
//! of one moment is.
//!
//! A version is odd while its page is being written: word 0 first, then all others in order, then
//! word 0 again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::content::WORDS;
use crate::support::memory::AtomicWords;
use crate::support::random::{Random, mix};

/// 4 MiB.
pub const PAGES: usize = 1024;

/// How long a child waits for its parent to say which versions it saw after the fork.
const TOLD_TIME_MAX: Duration = Duration::from_secs(60);

/// The pages, and the versions shared with children.
pub struct Racing {
    memory: AtomicWords,
    /// Shared memory: which versions the parent saw after the fork, and the number of that fork.
    after: AtomicWords,
}

/// Word `i` of a page in its version `version`, which is even.
fn word(page: usize, version: u64, i: usize) -> u64 {
    if version == 0 { 0 } else { mix(version << 32 ^ (page as u64) << 12 ^ i as u64) }
}

impl Racing {
    pub fn new() -> Self {
        let memory = AtomicWords::private(PAGES * WORDS).expect("memory");
        Self { memory, after: AtomicWords::shared(PAGES + 1).expect("shared memory") }
    }

    fn page(&self, page: usize) -> &[AtomicU64] {
        &self.memory.words()[page * WORDS..(page + 1) * WORDS]
    }

    /// Gives pages of one half their next version, again and again.
    pub fn write(&self, half: usize, random: &mut Random, goes_on: impl Fn() -> bool) {
        while goes_on() {
            let page = half * PAGES / 2 + random.below(PAGES / 2);
            let words = self.page(page);
            let version = words[0].load(Ordering::Relaxed) + 2;
            // In program order, on any processor: another thread copies the page at any moment.
            words[0].store(version - 1, Ordering::SeqCst);
            for (i, place) in words.iter().enumerate().skip(1) {
                place.store(word(page, version, i), Ordering::Release);
            }
            words[0].store(version, Ordering::Release);
        }
    }

    /// The version of every page, as this process sees it.
    pub fn versions(&self) -> Vec<u64> {
        (0..PAGES).map(|page| self.page(page)[0].load(Ordering::Acquire)).collect()
    }

    /// The parent's part after a fork: it publishes the versions that it has seen since.
    pub fn tell(&self, fork: u64) {
        let words = self.after.words();
        for (place, version) in words[1..].iter().zip(self.versions()) {
            place.store(version, Ordering::Relaxed);
        }
        words[0].store(fork, Ordering::Release);
    }

    /// The child's part: its copies are of one moment, no older than the parent's view `before` the
    /// fork, no younger than its view after it, and they stay as they are. Then they are its own.
    pub fn check(&self, fork: u64, before: &[u64], random: &mut Random) -> Result<(), String> {
        for (page, before) in before.iter().enumerate() {
            let version = self.check_page(page)?;
            if version < *before {
                return Err(format!("page {page} has version {version}, and had {before} before the fork"));
            }
        }
        let copied = self.versions();
        let begin = Instant::now();
        let after = self.after.words();
        while after[0].load(Ordering::Acquire) != fork {
            if begin.elapsed() > TOLD_TIME_MAX {
                return Err("the parent did not tell its versions".to_owned());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        for (page, after) in after[1..].iter().enumerate() {
            let (version, after) = (copied[page], after.load(Ordering::Relaxed));
            if version > after {
                return Err(format!(
                    "page {page} has version {version}, and its parent had {after} after the fork"
                ));
            }
        }
        // The parent has written since.
        for (page, copied) in copied.iter().enumerate() {
            if self.check_page(page)? != *copied {
                return Err(format!("page {page} changed in the child"));
            }
        }
        for _ in 0..PAGES / 4 {
            let page = random.below(PAGES);
            let version = (copied[page] | 1) + 1 + 2 * random.below(1000) as u64;
            let words = self.page(page);
            words[0].store(version, Ordering::Relaxed);
            (1..WORDS).for_each(|i| words[i].store(word(page, version, i), Ordering::Relaxed));
        }
        (0..PAGES).try_for_each(|page| self.check_page(page).map(drop))?;
        Ok(())
    }

    /// The version of a page, which has to be whole, or new up to some word.
    fn check_page(&self, page: usize) -> Result<u64, String> {
        let words = self.page(page);
        let version = words[0].load(Ordering::Acquire);
        let (new, old) = (version.next_multiple_of(2), version & !1);
        let is = |i: usize, version| words[i].load(Ordering::Relaxed) == word(page, version, i);
        let first_old = (1..WORDS).find(|&i| !is(i, new)).unwrap_or(WORDS);
        let Some(i) = (first_old..WORDS).find(|&i| !is(i, old)) else { return Ok(version) };
        let found = words[i].load(Ordering::Relaxed);
        Err(format!(
            "page {page} of version {version}: new up to word {first_old}, and word {i} is {found:#x}, old is {:#x}",
            word(page, old, i)
        ))
    }
}
