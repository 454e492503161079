//! The benchmark's data: OS pages that LZ4 compresses by a fixed ratio, made and checked from their
//! number alone.
//!
//! A page is one of a few templates, every word of it combined with a mask of its own. The mask
//! repeats every eight bytes, and every repetition in a template lies on eight bytes. So the ratio
//! survives while no two pages are alike: neither side gains from equal pages, nor from compressing
//! several at once. Writing and checking run at memory speed, so that they don't hide the
//! measurement. This module must never look at a clock.

use pagoda_linux::codec::lz4::Lz4;

/// Words of eight bytes in an OS page.
pub const PAGE_WORDS: usize = 512;
/// Bytes of an OS page.
pub const PAGE_BYTES: usize = PAGE_WORDS * 8;
/// One touch in so many compares the whole page.
pub const FULL_CHECK_EVERY: u64 = 16;
/// Few enough to stay in the second-level cache, and enough that the branch patterns of a codec
/// don't repeat.
const TEMPLATES: usize = 32;
const LINE_WORDS: usize = 8;

/// One OS page of data.
pub type Page = [u64; PAGE_WORDS];

/// A small seeded generator (SplitMix64): every bit pattern of this crate is a function of a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
    /// A number below `end`, which is not zero. The bias is below 2⁻³² for the ranges used here.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
    /// A number in 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Spreads every bit of `x` over the result.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// All pages of a seed and a ratio.
pub struct Pages {
    seed: u64,
    templates: Vec<Page>,
}

impl Pages {
    /// Pages that LZ4 compresses to one `ratio`-th, each on its own.
    pub fn new(seed: u64, ratio: f64) -> Self {
        let target_bytes = PAGE_BYTES as f64 / ratio;
        let template = |i| tuned_template(mix(seed ^ mix(i as u64)), target_bytes);
        Self { seed, templates: (0..TEMPLATES).map(template).collect() }
    }

    fn parts(&self, page: u64, version: u8) -> (&Page, u64) {
        let hash = mix(self.seed ^ mix(page.wrapping_mul(256) + u64::from(version)));
        (&self.templates[(mix(page ^ self.seed) % TEMPLATES as u64) as usize], hash | 1)
    }

    /// Writes the given version of a page.
    pub fn write(&self, page: u64, version: u8, out: &mut Page) {
        let (template, mask) = self.parts(page, version);
        for (word, from) in out.iter_mut().zip(template) {
            *word = from ^ mask;
        }
    }

    /// Writes the pages from `first` on, as bytes, as many as fit.
    pub fn fill(&self, first: u64, into: &mut [u8]) {
        let mut words = [0; PAGE_WORDS];
        for (page, bytes) in (first..).zip(into.chunks_exact_mut(PAGE_BYTES)) {
            self.write(page, 0, &mut words);
            for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// The first word of the given version of a page.
    pub fn first_word(&self, page: u64, version: u8) -> u64 {
        let (template, mask) = self.parts(page, version);
        template[0] ^ mask
    }

    /// Whether one word in eight of the page's 64 cache lines is as written: a different word and
    /// different lines for different pages.
    pub fn lines_match(&self, page: u64, version: u8, data: &Page) -> bool {
        let (template, mask) = self.parts(page, version);
        let first = (page as usize % 8) * LINE_WORDS + (page as usize / 8) % LINE_WORDS;
        let mut difference = 0;
        for at in (first..PAGE_WORDS).step_by(8 * LINE_WORDS) {
            difference |= data[at] ^ template[at] ^ mask;
        }
        difference == 0
    }

    /// Whether the whole page is as written.
    pub fn all_match(&self, page: u64, version: u8, data: &Page) -> bool {
        let (template, mask) = self.parts(page, version);
        data.iter().zip(template).fold(0, |difference, (word, from)| difference | (word ^ from ^ mask)) == 0
    }

    /// The ratio of the LZ4 block format, `pages` at a time, over a sample of 4 MiB.
    pub fn lz4_ratio(&self, pages: usize) -> f64 {
        let mut bytes_compressed = 0;
        let sample = 1024 / pages;
        for group in 0..sample {
            let mut bytes = Vec::with_capacity(pages * PAGE_BYTES);
            for page in 0..pages {
                let mut words = [0; PAGE_WORDS];
                // Numbers far apart, so that the sample stands for the whole.
                self.write((group * pages * 37 + page) as u64, 0, &mut words);
                bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            }
            bytes_compressed += compressed_bytes(&bytes);
        }
        (sample * pages * PAGE_BYTES) as f64 / bytes_compressed as f64
    }
}

/// The length of `bytes` once compressed by LZ4, in bytes.
fn compressed_bytes(bytes: &[u8]) -> usize {
    // The most that LZ4 needs: random data grows by a 255th.
    let mut out = vec![0; bytes.len() + bytes.len() / 255 + 16];
    Lz4::new().compress(bytes, &mut out).expect("the output is as long as LZ4 can ever need")
}

/// The template of a seed whose share of fresh words makes it compress to the target: found by
/// bisection.
fn tuned_template(seed: u64, target_bytes: f64) -> Page {
    let (mut low, mut high) = (0.0, 1.0);
    let mut best = (f64::INFINITY, [0; PAGE_WORDS]);
    for _ in 0..16 {
        let fresh_share = (low + high) / 2.0;
        let page = template(seed, fresh_share);
        let bytes: Vec<u8> = page.iter().flat_map(|word| (word ^ mix(seed)).to_le_bytes()).collect();
        let now_bytes = compressed_bytes(&bytes) as f64;
        let miss = (now_bytes - target_bytes).abs();
        if miss < best.0 {
            best = (miss, page);
        }
        if now_bytes > target_bytes { high = fresh_share } else { low = fresh_share }
    }
    best.1
}

/// A mixture as in heaps: fresh words, words that share their upper bytes with a neighbour
/// (pointers, counters), and short copies of earlier words, mostly from nearby.
fn template(seed: u64, fresh_share: f64) -> Page {
    let mut random = Random::new(seed);
    let mut page = [0u64; PAGE_WORDS];
    let mut at = 0;
    while at < PAGE_WORDS {
        let words = (1 + random.below(6) as usize).min(PAGE_WORDS - at);
        if at == 0 || random.unit() < fresh_share {
            for word in &mut page[at..at + words] {
                *word = random.next();
            }
        } else if random.below(4) == 0 {
            let like = page[at - 1 - random.below(at.min(8) as u64) as usize];
            for word in &mut page[at..at + words] {
                *word = (like & !0xff_ffff) | (random.next() & 0xff_ffff);
            }
        } else {
            let reach = if random.below(8) == 0 { at } else { at.min(64) };
            let back = 1 + random.below(reach as u64) as usize;
            for i in at..at + words {
                page[i] = page[i - back];
            }
        }
        at += words;
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_what_was_asked_for_by_page_and_by_sixteen() {
        for ratio in [2.0, 3.0] {
            let pages = Pages::new(1, ratio);
            let (one, sixteen) = (pages.lz4_ratio(1), pages.lz4_ratio(16));
            assert!((one / ratio - 1.0).abs() < 0.03, "{ratio}: {one}");
            assert!((sixteen / one - 1.0).abs() < 0.08, "{ratio}: {one} by page, {sixteen} by sixteen");
        }
    }

    #[test]
    fn a_page_is_a_function_of_seed_number_and_version() {
        let page_of = |seed, page, version| {
            let mut data = [0; PAGE_WORDS];
            Pages::new(seed, 3.0).write(page, version, &mut data);
            data
        };
        assert_eq!(page_of(1, 2, 3), page_of(1, 2, 3));
        let mut bytes = [0; 2 * PAGE_BYTES];
        Pages::new(1, 3.0).fill(2, &mut bytes);
        let words: Vec<u8> = [page_of(1, 2, 0), page_of(1, 3, 0)]
            .as_flattened()
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        assert!(bytes == *words, "page 2 and page 3 follow each other");
        for other in [page_of(2, 2, 3), page_of(1, 3, 3), page_of(1, 2, 4), [0; PAGE_WORDS]] {
            assert_ne!(page_of(1, 2, 3), other);
        }
    }

    #[test]
    fn checks_find_another_page_another_version_and_one_wrong_word() {
        let pages = Pages::new(5, 2.0);
        let mut data = [0; PAGE_WORDS];
        pages.write(9, 1, &mut data);
        assert!(pages.lines_match(9, 1, &data) && pages.all_match(9, 1, &data));
        assert_eq!(pages.first_word(9, 1), data[0]);
        for (page, version) in [(9, 0), (8, 1), (9 + 32, 1)] {
            assert!(!pages.lines_match(page, version, &data) && !pages.all_match(page, version, &data));
        }
        data[511] ^= 1 << 63;
        assert!(!pages.all_match(9, 1, &data));
    }
}
