//! The same calls at 4 KiB boundaries on managed memory and on the kernel's: same contents, same signals, same errors.

use std::io;
use std::ops::Range;

use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::access::Access;
use pagoda_linux::testing::area::{Area, Rights};
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;

const PAGES: usize = 512;
const STEPS: usize = 300;

/// Both sides of one run.
struct Twins {
    managed: Area,
    plain: Area,
    region: Region,
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
                assert_eq!(answers[0], answers[1], "writing page {page}");
            } else {
                self.compare(access, page, word);
            }
        }
    }

    fn compare(&self, access: &Access, page: usize, word: usize) {
        let answers = [&self.managed, &self.plain].map(|side| side.read(access, page, word));
        assert_eq!(answers[0], answers[1], "reading page {page}, word {word}");
    }

    fn step(&mut self, access: &Access, random: &mut Random) {
        let pages = random.range(PAGES);
        if pages.is_empty() {
            return;
        }
        let name = format!("{pages:?}");
        // What is mapped anew is not managed any more, nor what a move left: most of it has to stay to the end.
        let few = pages.start..pages.end.min(pages.start + 1 + random.below(4));
        match random.below(16) {
            0 => self.both(&format!("unmap {name}"), |side| side.unmap(few.clone())),
            1 => self.both(&format!("map {name}"), |side| side.map(few.clone())),
            2 | 3 => self.both(&format!("discard {name}"), |side| side.discard(pages.clone())),
            4..=6 => {
                // Mostly back to what can be used.
                let rights = [Rights::None, Rights::Read, Rights::Write, Rights::Write][random.below(4)];
                self.both(&format!("protect {name}"), |side| side.protect(pages.clone(), rights));
            }
            7 => {
                let len = 1 + random.below(6);
                let from = random.below(PAGES / 2 - len);
                let to = PAGES / 2 + random.below(PAGES / 2 - len);
                let (from, to) = if random.one_in(2) { (from, to) } else { (to, from) };
                self.both("move", |side| side.move_pages(from..from + len, to));
            }
            8 | 9 => self.region.page_out(pages.start * 4096, pages.len() * 4096).expect("room to store"),
            _ => self.touch(access, random, pages),
        }
    }
}

#[test]
fn whatever_a_program_does_at_4_kib_it_sees_what_the_kernel_would_show() {
    if skip_without_moves("base pages") {
        return;
    }
    let access = Access::begin().expect("signal handlers");
    for base in BasePage::ALL {
        for seed in runs(4) {
            let manager = Manager::builder().budget(Bytes::mib(64)).base_page(base).user_mode_only(true);
            let manager = manager.fault_around(seed % 2 == 0).build().expect("manager");
            let random = &mut Random::new(seed, base.bytes() as u64);
            // Some begin in the middle of a base page.
            let area = || Area::new(PAGES, seed as usize * 5 % 16).expect("memory");
            let (managed, plain) = (area(), area());
            let region = manager.adopt(managed.foreign()).expect("adopted");
            let mut twins = Twins { managed, plain, region };
            for _ in 0..STEPS {
                twins.step(&access, random);
            }
            for page in 0..PAGES {
                (0..512).for_each(|word| twins.compare(&access, page, word));
            }
            let stats = manager.stats();
            let counts =
                [stats.faults, stats.evictions, stats.events_unmap, stats.events_remap, stats.events_remove];
            assert!(counts.iter().all(|count| *count > 0), "{base}, seed {seed}: {counts:?}");
            assert!(stats.stores > 0 && stats.faults_stored > 0, "{base}, seed {seed}: nothing was stored");
        }
    }
}
