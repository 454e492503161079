//! The pressure that keeps memory short while a race is run, and the end of the race.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::memory::Mapping;
use crate::support::random::Random;

/// Pages of the ballast: twice the budget. Its pages repeat one word, so that the store takes them
/// at no cost and the hand of reclaim comes round quickly.
const BALLAST_PAGES: usize = (64 << 20) / 4096;

/// How long a racer waits for a page of its to be taken out before it goes on without.
const PATIENCE: Duration = Duration::from_millis(400);

/// How much longer a race goes on until it has seen something out.
const OVERTIME: Duration = Duration::from_secs(20);

/// When a race is over.
pub struct Rounds {
    /// 0: when the time is up.
    most: u64,
    end: Instant,
}

impl Rounds {
    /// After `most` rounds, or if that is 0 after `time`.
    pub fn new(most: u64, time: Duration) -> Self {
        Self { most, end: Instant::now() + time }
    }
}

/// The state that the threads of a race share.
pub struct Arena {
    rounds: Rounds,
    done: AtomicU64,
    out: AtomicU64,
    laps: AtomicU64,
    ended: AtomicBool,
}

impl Arena {
    pub fn new(rounds: Rounds) -> Self {
        let [done, out, laps] = [const { AtomicU64::new(0) }; 3];
        Self { rounds, done, out, laps, ended: AtomicBool::new(false) }
    }
    /// Counts a round. False if it was the last.
    pub fn next_round(&self) -> bool {
        let done = self.done.fetch_add(1, Ordering::Relaxed);
        let over =
            if self.rounds.most > 0 { done >= self.rounds.most } else { Instant::now() >= self.rounds.end };
        // A race in which nothing was ever swapped out has shown nothing: on a busy machine it goes
        // on, for a while.
        let over = over && (self.seen_out() > 0 || Instant::now() >= self.rounds.end + OVERTIME);
        !over && !self.ended.load(Ordering::Relaxed)
    }
    /// Ends the race for all.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
    /// Times that a racer saw memory of its own taken out.
    pub fn seen_out(&self) -> u64 {
        self.out.load(Ordering::Relaxed)
    }
    pub fn told(&self) -> String {
        let [rounds, out, laps] =
            [&self.done, &self.out, &self.laps].map(|count| count.load(Ordering::Relaxed));
        format!("{rounds} rounds, {out} times seen out, {laps} laps of ballast")
    }

    /// Counts whether a part of `mapping`, all written, is swapped out.
    pub fn look(&self, mapping: &Mapping) -> bool {
        self.saw(mapping.is_any_out())
    }
    /// Counts it if memory of a racer was swapped out.
    pub fn saw(&self, out: bool) -> bool {
        self.out.fetch_add(u64::from(out), Ordering::Relaxed);
        out
    }
    /// Waits until a part of `mapping`, all written, is swapped out: then it is managed.
    pub fn wait_until_managed(&self, mapping: &Mapping) {
        let begin = Instant::now();
        while !self.look(mapping) && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Goes round the ballast, checking and writing, until the race is over.
    pub fn press(&self, seed: u64) -> Result<(), String> {
        let mut ballast = Mapping::new(BALLAST_PAGES).map_err(|error| error.to_string())?;
        let mut random = Random::new(seed, u64::MAX);
        let mut words: Vec<u64> = vec![0; BALLAST_PAGES];
        while !self.ended.load(Ordering::Relaxed) {
            let word = random.stamp();
            for (page, expected) in words.iter_mut().enumerate() {
                if self.ended.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let content = ballast.page_mut(page);
                if let Some(i) = (0..content.len()).find(|&i| content[i] != *expected) {
                    self.end();
                    let (is, wrong) = (content[i], content.iter().filter(|&word| word != expected).count());
                    // Lost, or only seen wrongly for a moment: that tells one cause from another.
                    std::thread::sleep(Duration::from_millis(20));
                    let later = std::hint::black_box(&mut *content)[i];
                    return Err(format!(
                        "ballast page {page}: word {i} is {is:#x} instead of {expected:#x}, as are {wrong} words of the page; \
                         a moment later it is {later:#x}"
                    ));
                }
                content.fill(word);
                *expected = word;
            }
            self.laps.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Fills pages with words that tell which page of which round they are.
pub fn fill(mapping: &mut Mapping, pages: std::ops::Range<usize>, tag: u64) {
    for page in pages {
        mapping.page_mut(page).fill(word(tag, page));
    }
}

/// Checks the content of [`fill`], the first and the last word of each page and one between.
pub fn check(mapping: &Mapping, pages: std::ops::Range<usize>, tag: u64) -> Result<(), String> {
    for page in pages {
        expect(mapping, page, if tag == 0 { 0 } else { word(tag, page) })?;
    }
    Ok(())
}

/// Checks that a page repeats `word`.
pub fn expect(mapping: &Mapping, page: usize, word: u64) -> Result<(), String> {
    let content = mapping.page(page);
    for i in [0, content.len() / 2, content.len() - 1] {
        if content[i] != word {
            let at = &raw const content[i];
            return Err(format!(
                "page {page} of {}, at {at:?}: {:#x} instead of {word:#x}",
                mapping.pages(),
                content[i]
            ));
        }
    }
    Ok(())
}

/// The word that [`fill`] writes.
pub fn word(tag: u64, page: usize) -> u64 {
    (tag << 16) | (page as u64 + 1)
}
