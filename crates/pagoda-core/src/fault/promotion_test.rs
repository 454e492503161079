use std::collections::{HashMap, HashSet, VecDeque};

use super::*;

const GRANULES: usize = 16;
/// What the model's memory holds: single granules, and pages that are compressed.
const RESIDENT: usize = 2000;
const COMPRESSED: usize = 1000;
const HIT_US: u64 = 15;
const READ_US: u64 = 75;
const PROMOTION_US: u64 = 120;

enum Rule {
    Always,
    Never,
    Learned,
}

/// Pages that are in the file, and leave memory without a write.
struct Model {
    rule: Rule,
    resident: (HashSet<usize>, VecDeque<usize>),
    /// With the number of displaced pages when they were promoted, if they were, or displaced.
    compressed: (HashMap<usize, Option<usize>>, VecDeque<usize>),
    displaced: HashMap<usize, usize>,
    displacements: usize,
    looked_at: usize,
    seen: Seen,
    does_pay: bool,
    faults: u64,
    took_us: u64,
}

impl Model {
    /// With these pages in memory at first.
    fn new(rule: Rule, pages: std::ops::Range<usize>) -> Self {
        Self {
            rule,
            resident: Default::default(),
            compressed: (pages.clone().map(|page| (page, None)).collect(), pages.collect()),
            displaced: HashMap::new(),
            displacements: 0,
            looked_at: 0,
            seen: Seen::default(),
            does_pay: true,
            faults: 0,
            took_us: 0,
        }
    }

    fn touch(&mut self, granule: usize) {
        let span = span_bytes(COMPRESSED as u64) as usize;
        if !self.resident.0.insert(granule) {
            return;
        }
        self.resident.1.push_back(granule);
        if self.resident.1.len() > RESIDENT {
            self.resident.0.remove(&self.resident.1.pop_front().expect("there are"));
        }
        let page = granule / GRANULES;
        if let Some(since) = self.compressed.0.get(&page) {
            let lately = since.is_some_and(|since| self.displacements - since <= span);
            self.seen.hits += u64::from(lately);
            self.took_us += HIT_US;
            return;
        }
        let lately = self.displaced.get(&page).is_some_and(|at| self.displacements - at <= span);
        self.seen.displaced += u64::from(lately);
        self.faults += 1;
        let promotes = match self.rule {
            Rule::Always => true,
            Rule::Never => false,
            Rule::Learned => self.does_pay || self.faults.is_multiple_of(TRIES),
        };
        self.took_us += if promotes { PROMOTION_US } else { READ_US };
        if promotes {
            self.seen.promoted += 1;
            let gone = self.compressed.1.pop_front().expect("there are");
            self.compressed.0.remove(&gone);
            self.displacements += 1;
            self.displaced.insert(gone, self.displacements);
            self.compressed.0.insert(page, Some(self.displacements));
            self.compressed.1.push_back(page);
            if self.displacements - self.looked_at >= span
                && let Some(does_pay) = pays(&self.seen)
            {
                (self.does_pay, self.seen, self.looked_at) = (does_pay, Seen::default(), self.displacements);
            }
        }
    }
}

/// The time of as many touches under each rule: always, never and as learned. Memory is full of
/// the pages from the first one on.
fn times(first: usize, touches: usize, granule: impl Fn(usize, usize) -> usize) -> [u64; 3] {
    [Rule::Always, Rule::Never, Rule::Learned].map(|rule| {
        let mut model = Model::new(rule, first..first + COMPRESSED);
        let mut state = 7usize;
        for touch in 0..touches {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            model.touch(granule(touch, state >> 33));
        }
        model.took_us
    })
}

/// Pages that are used no more.
const COLD: usize = 1 << 40;

#[test]
fn random_access_over_much_more_than_memory_promotes_little() {
    for times_memory in [2, 3, 8] {
        let [always, never, learned] =
            times(0, 300_000, |_, random| random % (times_memory * COMPRESSED * GRANULES));
        assert!(never < always, "{times_memory}: {never} {always}");
        assert!(learned * 100 <= never * 115, "{times_memory}: {learned} of {never}");
    }
}

#[test]
fn a_working_set_in_the_file_comes_to_memory() {
    for pages in [COMPRESSED / 4, COMPRESSED / 2, COMPRESSED * 9 / 10] {
        let [always, never, learned] = times(COLD, 300_000, |_, random| random % (pages * GRANULES));
        assert!(2 * always < never, "{always} {never}");
        assert!(learned * 100 <= always * 115, "{pages}: {learned} of {always}");
    }
}

#[test]
fn a_change_from_one_to_the_other_is_learned() {
    let pages = COMPRESSED / 2;
    let [always, never, learned] = times(COLD, 600_000, |touch, random| {
        random % (GRANULES * if touch / 200_000 == 1 { 8 * COMPRESSED } else { pages })
    });
    assert!(learned < always && learned < never, "{always} {never} {learned}");
}

#[test]
fn too_little_tells_nothing() {
    let seen = Seen { promoted: LEAST - 1, hits: 1000, displaced: 0 };
    assert_eq!(pays(&seen), None);
    assert_eq!(pays(&Seen { promoted: LEAST, ..seen }), Some(true));
    assert_eq!(span_bytes(u64::MAX), SPAN_MOST);
}
