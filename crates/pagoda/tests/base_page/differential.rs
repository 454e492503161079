//! The same calls at 4 KiB boundaries on managed memory and on the kernel's: same contents, same
//! signals, same errors.

use std::io;
use std::ops::{Deref, Range};

use pagoda::{BasePage, Bytes, Managed, Manager, ManagerBuilder};
use pagoda_core::page::HUGE_FRAME;
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::testing::access::Access;
use pagoda_linux::testing::area::{Advice, Area, Rights};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGES: usize = 512;
const STEPS: usize = 300;
/// Three huge frames.
const HUGE_PAGES: usize = 3 * 512;

/// Both sides of one run.
struct Twins {
    managed: Area,
    plain: Area,
    region: Box<dyn Deref<Target = Managed>>,
    pages: usize,
}

impl Twins {
    /// The same on both: they answer alike.
    fn both(&self, what: &str, call: impl Fn(&Area) -> io::Result<()>) {
        let error = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error());
        assert_eq!(error(call(&self.managed)), error(call(&self.plain)), "{what}");
    }

    fn touch(&mut self, access: &Access, random: &mut Random, pages: Range<usize>) {
        for page in pages {
            let word = random.below(512);
            if random.one_in(2) {
                let value = random.next();
                let answers =
                    [&mut self.managed, &mut self.plain].map(|side| side.write(access, page, word, value));
                assert_eq!(answers[0], answers[1], "writing page {page}, {}", self.region.base_page());
            } else {
                let _ = self.compare(access, page, word);
            }
        }
    }

    /// Whether the word can be read, on both sides.
    fn compare(&self, access: &Access, page: usize, word: usize) -> bool {
        let answers = [&self.managed, &self.plain].map(|side| side.read(access, page, word));
        assert_eq!(answers[0], answers[1], "reading page {page}, word {word}, {}", self.region.base_page());
        answers[0].is_ok()
    }

    /// mremap of some pages at once to as many, or to more or less, from one half to the other; or
    /// to less where they are.
    fn remap(&self, random: &mut Random) {
        let half = self.pages / 2;
        let len = 2 + random.below(6);
        let new_len = if random.one_in(2) { len } else { 1 + random.below(8) };
        let room = half - len.max(new_len);
        let (low, high) = (random.below(room), half + random.below(room));
        let (from, to) = if random.one_in(2) { (low, high) } else { (high, low) };
        let source = from..from + len;
        // Of several mappings the kernel moves only unmanaged ones.
        if ![&self.managed, &self.plain].into_iter().all(|side| side.is_one(source.clone())) {
            return;
        }
        if random.one_in(4) {
            self.both("shrink", |side| side.shrink(source.clone(), len - 1));
        } else {
            self.both(&format!("remap {source:?} to {to}, {new_len}"), |side| {
                side.remap(source.clone(), to, new_len)
            });
        }
    }

    /// mremap of some pages to more, where they are.
    fn grow(&self, random: &mut Random) {
        let (from, len) = (random.below(self.pages - 16), 1 + random.below(6));
        let (source, new_len) = (from..from + len, len + 1 + random.below(8));
        // As for a remap.
        if [&self.managed, &self.plain].into_iter().all(|side| side.is_one(source.clone())) {
            self.both(&format!("grow {source:?} to {new_len}"), |side| side.grow(source.clone(), new_len));
        }
    }

    /// Advice by which no content changes; or after which there is none, once it is discarded for
    /// good.
    fn advise(&self, random: &mut Random, pages: &Range<usize>) {
        let advice = [Advice::Free, Advice::Cold, Advice::PageOut, Advice::WillNeed][random.below(4)];
        self.both(&format!("{advice:?} {pages:?}"), |side| side.advise(pages.clone(), advice));
        if advice == Advice::Free {
            // Until it is written it may be as it was or zero, on either side.
            self.both(&format!("discard {pages:?}"), |side| side.discard(pages.clone()));
        }
    }

    fn step(&mut self, access: &Access, random: &mut Random) {
        let pages = random.range(self.pages);
        if pages.is_empty() {
            return;
        }
        let name = format!("{pages:?}");
        // Fresh mappings are not managed any more, nor the remainder of a move: most of it has to
        // stay to the end.
        let few = pages.start..pages.end.min(pages.start + 1 + random.below(4));
        match random.below(20) {
            0 => self.both(&format!("unmap {name}"), |side| side.unmap(few.clone())),
            1 => self.both(&format!("map {name}"), |side| side.map(few.clone())),
            2 | 3 => self.both(&format!("discard {name}"), |side| side.discard(pages.clone())),
            4..=6 => {
                // Mostly back to usable rights.
                let rights = [Rights::None, Rights::Read, Rights::Write, Rights::Write][random.below(4)];
                self.both(&format!("protect {name}"), |side| side.protect(pages.clone(), rights));
            }
            7 => {
                let half = self.pages / 2;
                let len = 1 + random.below(6);
                let from = random.below(half - len);
                let to = half + random.below(half - len);
                let (from, to) = if random.one_in(2) { (from, to) } else { (to, from) };
                self.both("move", |side| side.move_pages(from..from + len, to));
            }
            8 | 9 => self.page_out(pages),
            10 => self.remap(random),
            11 => self.grow(random),
            12 | 13 => self.advise(random, &pages),
            _ => self.touch(access, random, pages),
        }
    }

    fn page_out(&self, pages: Range<usize>) {
        self.region.page_out(pages.start * 4096, pages.len() * 4096).expect("room to store");
    }

    /// A page whose first word can't be read can't be read at all, and each try is a signal.
    fn compare_all(&self, access: &Access) {
        for page in 0..self.pages {
            let _ = (0..512).all(|word| self.compare(access, page, word));
        }
    }
}

#[test]
fn any_operation_at_4_kib_has_the_same_effect_as_in_the_kernel() {
    if skip_without_moves("base pages") {
        return;
    }
    let access = Access::begin().expect("signal handlers");
    // By density, if no base page is chosen; by handlers, and in the thread that touches.
    let bases = || BasePage::ALL.map(Some).into_iter().chain([None]);
    for (base, in_thread) in bases().flat_map(|base| [(base, false), (base, true)]) {
        for seed in runs(length(2, 4)) {
            let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true);
            let manager = manager.serve_in_thread(in_thread);
            let manager = base.into_iter().fold(manager, ManagerBuilder::base_page);
            let manager = manager.tune(|tuning| tuning.fault_around(seed % 2 == 0)).build().expect("manager");
            let random = &mut Random::new(seed, base.map_or(0, |base| base.bytes() as u64));
            // Some begin in the middle of a base page.
            let area = || Area::new(PAGES, seed as usize * 5 % 16).expect("memory");
            let (managed, plain) = (area(), area());
            let region = manager.adopt(managed.foreign()).expect("adopted");
            let mut twins = Twins { managed, plain, region: Box::new(region), pages: PAGES };
            for _ in 0..STEPS {
                twins.step(&access, random);
            }
            twins.compare_all(&access);
            let stats = manager.stats();
            let counts =
                [stats.faults, stats.evictions, stats.events_unmap, stats.events_remap, stats.events_remove];
            let which = format!("{base:?}, in thread {in_thread}, seed {seed}");
            assert!(counts.iter().all(|count| *count > 0), "{which}: {counts:?}");
            assert!(stats.stores > 0 && stats.faults_stored > 0, "{which}: nothing was stored");
        }
    }
}

#[test]
fn any_operation_on_huge_frames_at_4_kib_has_the_same_effect_as_in_the_kernel() {
    if skip_without_moves("huge frames") {
        return;
    }
    let access = Access::begin().expect("signal handlers");
    // By density, huge frames come to a stream that touches everything, also in memory that is
    // adopted.
    for (base, adopts) in [(Some(BasePage::M2), false), (None, false), (None, true)] {
        for seed in runs(length(2, 6)) {
            let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true);
            let manager = base.into_iter().fold(manager, ManagerBuilder::base_page);
            let manager = manager.build().expect("manager");
            let random = &mut Random::new(seed, base.map_or(1 << 22, |_| 1 << 21) + u64::from(adopts));
            let (managed, region): (_, Box<dyn Deref<Target = Managed>>) = if adopts {
                let area = Area::new(HUGE_PAGES, 0).expect("memory");
                let region = manager.adopt(area.foreign()).expect("adopted");
                (area, Box::new(region))
            } else {
                let region = manager.region(Bytes::new(HUGE_PAGES as u64 * 4096)).create().expect("region");
                (Area::of_region(region.as_ptr(), HUGE_PAGES), Box::new(region))
            };
            let plain = Area::new(HUGE_PAGES, 0).expect("memory");
            let mut twins = Twins { managed, plain, region, pages: HUGE_PAGES };
            for page in 0..HUGE_PAGES {
                let value = random.next();
                for side in [&mut twins.managed, &mut twins.plain] {
                    side.write(&access, page, 7, value).expect("nothing is forbidden yet");
                }
            }
            // By density the first place came in OS pages.
            let start = twins.region.as_ptr().addr();
            let mut scanner = PagemapScanner::new().expect("pagemap");
            let huge = scanner.huge_bytes(start, start + HUGE_PAGES * 4096).expect("PAGEMAP_SCAN");
            assert_eq!(huge / HUGE_FRAME, if base.is_some() { 3 } else { 2 }, "{base:?}, adopted {adopts}");
            for _ in 0..STEPS {
                twins.step(&access, random);
            }
            twins.compare_all(&access);
            // Whatever became of its frames, all that can be moved can leave.
            let all = 0..HUGE_PAGES;
            twins.both("allow everything", |side| side.protect(all.clone(), Rights::Write));
            until("everything is out", || {
                twins.page_out(all.clone());
                manager.stats().resident_bytes == 0
            });
            twins.compare_all(&access);
            let stats = manager.stats();
            let counts = [stats.stores, stats.faults_stored, stats.events_unmap, stats.events_remap];
            assert!(
                counts.iter().all(|count| *count > 0),
                "{base:?}, adopted {adopts}, seed {seed}: {counts:?}"
            );
        }
    }
}

#[test]
fn any_operation_on_regions_of_all_base_pages_has_the_same_effect_as_in_the_kernel() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let access = Access::begin().expect("signal handlers");
    for seed in runs(length(2, 4)) {
        let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true);
        let manager = manager.tune(|tuning| tuning.fault_around(seed % 2 == 0)).build().expect("manager");
        let random = &mut Random::new(seed, 1 << 23);
        // Some begin in the middle of a base page. The manager's own mappings come in huge frames.
        let mut all = BasePage::ALL.map(|base| {
            let is_huge = base == BasePage::M2;
            let pages = if is_huge { HUGE_PAGES } else { PAGES };
            let area = || Area::new(pages, if is_huge { 0 } else { seed as usize * 5 % 16 }).expect("memory");
            let (managed, region): (_, Box<dyn Deref<Target = Managed>>) = if is_huge {
                let builder = manager.region(Bytes::new(pages as u64 * 4096)).base_page(base);
                let region = builder.create().expect("region");
                (Area::of_region(region.as_ptr(), pages), Box::new(region))
            } else {
                let managed = area();
                let region = manager.adopt_with(managed.foreign(), base).expect("adopted");
                (managed, Box::new(region))
            };
            Twins { managed, plain: area(), region, pages }
        });
        // Before anything is forbidden: one touch for each huge frame.
        let [.., huge] = &mut all;
        for page in (0..HUGE_PAGES).step_by(HUGE_FRAME / 4096) {
            let value = random.next();
            for side in [&mut huge.managed, &mut huge.plain] {
                side.write(&access, page, 7, value).expect("nothing is forbidden yet");
            }
        }
        until("huge frames are counted", || manager.stats().faults_huge == 3);
        for _ in 0..STEPS {
            all.iter_mut().for_each(|twins| twins.step(&access, random));
        }
        all.iter().for_each(|twins| twins.compare_all(&access));
        let stats = manager.stats();
        let counts =
            [stats.stores, stats.faults_stored, stats.events_unmap, stats.events_remap, stats.events_remove];
        assert!(counts.iter().all(|count| *count > 0), "seed {seed}: {counts:?}");
    }
}
