//! The policy over simulated pages, by a simulated clock: a local and a remote zone, pages that are
//! touched every so many ticks, and the engine's part as `crate::zone::tiering` describes it.

use super::*;

const LOCAL: u64 = 1024;

#[derive(Clone, Copy)]
struct Page {
    is_local: bool,
    /// It is touched in each tick that this divides; never if 0.
    every: u64,
    staged: Option<u16>,
    was_demoted: bool,
}

struct Simulation {
    policy: Tiering,
    pages: Vec<Page>,
    now: u64,
    seen: Seen,
    /// Frames that each zone can give.
    local_spare: u64,
    remote_spare: u64,
    hands: [usize; 2],
    sampled: u64,
    moved: u64,
    most_moved: u64,
}

impl Simulation {
    /// Local pages first, each list by how often a page is touched.
    fn new(local: &[u64], remote: &[u64], spare: [u64; 2]) -> Self {
        let page =
            |is_local| move |every: &u64| Page { is_local, every: *every, staged: None, was_demoted: false };
        Self {
            policy: Tiering::default(),
            pages: local.iter().map(page(true)).chain(remote.iter().map(page(false))).collect(),
            now: 1,
            seen: Seen::default(),
            local_spare: spare[0],
            remote_spare: spare[1],
            hands: [0; 2],
            sampled: 0,
            moved: 0,
            most_moved: 0,
        }
    }

    fn sample(&mut self, is_local: bool, most: u32) {
        let mut left = most;
        let count = self.pages.len();
        for _ in 0..count {
            if left == 0 {
                break;
            }
            let hand = &mut self.hands[usize::from(is_local)];
            let page = &mut self.pages[*hand];
            *hand = (*hand + 1) % count;
            self.seen.is_round_over |= *hand == 0 && !is_local;
            if page.is_local == is_local && page.staged.is_none() {
                (page.staged, page.was_demoted) = (Some(self.now as u16), false);
                left -= 1;
                self.sampled += 1;
            }
        }
    }

    fn tick(&mut self) {
        self.now += 1;
        let now = self.now as u16;
        let local = Local { frames: LOCAL, spare: self.local_spare };
        let plan = self.policy.look(self.now, &std::mem::take(&mut self.seen), &local);
        let before = self.moved;
        for page in &mut self.pages {
            let is_cold = page.staged.is_some_and(|since| is_cold(now, since));
            if page.is_local && is_cold && self.seen.demoted < plan.demote && self.remote_spare > 0 {
                (page.is_local, page.staged, page.was_demoted) = (false, Some(now), true);
                (self.local_spare, self.remote_spare) = (self.local_spare + 1, self.remote_spare - 1);
                self.seen.demoted += 1;
                self.moved += 1;
            }
        }
        self.sample(false, plan.sample_remote);
        self.sample(true, plan.sample_local);
        for (i, page) in self.pages.iter_mut().enumerate() {
            if page.every == 0 || !(self.now + i as u64).is_multiple_of(page.every) {
                continue;
            }
            let Some(since) = page.staged.take() else { continue };
            if page.is_local {
                continue;
            }
            if page.was_demoted {
                self.seen.regretted += u32::from(is_regretted(now, since));
            } else if is_hot(now, since) {
                self.seen.hot += 1;
                if self.seen.promoted < plan.promote && self.local_spare > 0 {
                    page.is_local = true;
                    (self.local_spare, self.remote_spare) = (self.local_spare - 1, self.remote_spare + 1);
                    self.seen.promoted += 1;
                    self.moved += 1;
                }
            }
        }
        self.most_moved = self.most_moved.max(self.moved - before);
    }

    fn ticks(&mut self, ticks: u64) {
        (0..ticks).for_each(|_| self.tick());
    }

    fn local_percent(&self, every: u64) -> usize {
        let hot = || self.pages.iter().filter(|page| page.every == every);
        100 * hot().filter(|page| page.is_local).count() / hot().count()
    }
}

/// Two seconds.
const SOON: u64 = 2000 / TICK_MS as u64;

#[test]
fn a_hot_set_in_the_remote_zone_changes_places_with_cold_pages_within_two_seconds() {
    // Nothing is hot at first, and then the last of the remote pages are.
    let mut zones = Simulation::new(&[0; 992], &[0; 3000], [0, 100]);
    zones.ticks(500);
    assert_eq!(zones.moved, 0);
    let hot = zones.pages.len() - 768..;
    zones.pages[hot].iter_mut().for_each(|page| page.every = 1);
    zones.ticks(SOON);
    assert!(zones.local_percent(1) >= 90, "{} % of the hot pages are local", zones.local_percent(1));
    zones.ticks(SOON);
    assert_eq!(zones.local_percent(1), 100);
    assert!(zones.most_moved <= 2 * LOCAL / MOVE_PART, "{} moved in one tick", zones.most_moved);
    // Then there is rest.
    let moved = zones.moved;
    zones.ticks(SOON);
    let sampled = zones.sampled;
    zones.ticks(10 * GAP_MOST);
    assert_eq!(zones.moved, moved);
    assert!(zones.sampled - sampled <= 11 * u64::from(SAMPLE_MOST), "{}", zones.sampled - sampled);
}

#[test]
fn nothing_moves_and_no_local_page_is_sampled_while_nothing_is_hot_in_the_remote_zone() {
    let mut zones = Simulation::new(&[1; 992], &[0; 3000], [30, 70]);
    zones.ticks(1000);
    assert_eq!((zones.moved, zones.hands[1]), (0, 0));
    assert!(zones.sampled <= 3000, "each remote page once: {}", zones.sampled);
}

#[test]
fn hot_pages_that_do_not_fit_stay_where_they_are_and_are_sampled_seldom() {
    let mut zones = Simulation::new(&[1; 1024], &[1; 1024], [0, 100]);
    zones.ticks(500);
    assert_eq!(zones.moved, 0);
    let sampled = zones.sampled;
    zones.ticks(10 * GAP_MOST);
    assert!(zones.sampled - sampled <= 11 * 2 * u64::from(SAMPLE_MOST), "{}", zones.sampled - sampled);
}

#[test]
fn pages_that_are_neither_hot_nor_cold_do_not_go_back_and_forth() {
    // Each is away long enough to look cold, and comes back soon after it.
    for every in [9, 12, 20, 30] {
        let mut zones = Simulation::new(&vec![every; 1024], &vec![every; 1024], [0, 100]);
        zones.ticks(20 * 60);
        let in_a_minute = zones.moved;
        zones.ticks(20 * 600);
        let later = (zones.moved - in_a_minute) / 10;
        assert!(later <= 2 * LOCAL, "{later} pages a minute move that are touched every {every} ticks");
    }
}
