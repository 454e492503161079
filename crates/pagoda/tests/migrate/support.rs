//! What the tests share: a writer with a shadow of what it wrote, and both ends of a migration in one process.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pagoda::migrate::{
    Codec, Counts, Endpoint, Error, Event, Listener, LiveOptions, Moved, Otherwise, ReceiveOptions,
    SendOptions, Writer, ZeroPolicy,
};
use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::random::Random;

pub const PAGE: usize = 4096;

/// Long enough for a busy machine where nothing should stall.
pub const STALL: Duration = Duration::from_secs(20);

/// Whether this machine can't do it.
pub fn skip(what: &str) -> bool {
    let skip = !pagoda::userfaultfd_allows_managers();
    if skip {
        assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here");
        eprintln!("SKIPPED {what}: this machine offers no userfaultfd with UFFDIO_MOVE");
    }
    skip
}

pub fn manager(budget: Bytes, base: BasePage) -> Manager {
    let builder = Manager::builder().budget(budget).base_page(base).user_mode_only(true);
    builder.spill_to("/var/tmp", Bytes::gib(1)).build().expect("a manager")
}

/// A program that writes to a region, and what it has written.
pub struct Program<'a> {
    region: &'a Region,
    random: Random,
    pub shadow: Vec<u64>,
}

const WORDS: usize = PAGE / 8;

impl<'a> Program<'a> {
    pub fn new(region: &'a Region, seed: u64) -> Self {
        Self::of_part(region, region.len(), seed)
    }

    /// A program that leaves what is beyond the first `len` bytes, whole pages, to others.
    pub fn of_part(region: &'a Region, len: usize, seed: u64) -> Self {
        assert!(len <= region.len());
        Self { region, random: Random::new(seed, 1), shadow: vec![0; len / 8] }
    }

    /// A program that goes on in `region`, in its first `len` bytes, which hold `shadow`.
    pub fn go_on(region: &'a Region, shadow: &[u64], len: usize, seed: u64) -> Self {
        Self { shadow: shadow[..len / 8].to_vec(), ..Self::of_part(region, len, seed) }
    }

    fn write(&mut self, index: usize, word: u64) {
        self.region.write_words(index * 8, &word.to_ne_bytes());
        self.shadow[index] = word;
    }

    fn pages(&self) -> usize {
        self.shadow.len() / WORDS
    }

    /// Writes a page of a random kind: zeroes, one word, what packs and what does not.
    fn write_page(&mut self, page: usize) {
        let kind = self.random.below(8);
        let word = self.random.next();
        for index in page * WORDS..(page + 1) * WORDS {
            let word = match kind {
                0 => 0,
                1 => word,
                2..5 => word ^ (index as u64 / 32),
                _ => self.random.next(),
            };
            self.write(index, word);
        }
    }

    fn discard(&mut self, page: usize, pages: usize) {
        let pages = pages.min(self.pages() - page);
        self.region.discard(page * PAGE, pages * PAGE).expect("discarded");
        self.shadow[page * WORDS..(page + pages) * WORDS].fill(0);
    }

    /// Writes runs of pages until most of the region was written, and leaves the rest untouched.
    pub fn fill(&mut self) {
        for _ in 0..self.pages() / 12 {
            let (page, len) = (self.random.below(self.pages()), 1 + self.random.below(24));
            for page in page..(page + len).min(self.pages()) {
                self.write_page(page);
            }
        }
    }

    /// Does one thing: writes a word or a page, reads, or discards.
    pub fn step(&mut self) {
        // Mostly in one part, so that rounds get somewhere.
        let page = match self.random.below(4) {
            0 => self.random.below(self.pages()),
            _ => self.random.below(self.pages() / 8),
        };
        match self.random.below(16) {
            0..8 => {
                let (index, word) = (page * WORDS + self.random.below(WORDS), self.random.next());
                self.write(index, word);
            }
            8..12 => self.write_page(page),
            12..15 => {
                let index = page * WORDS + self.random.below(WORDS);
                let mut found = [0; 8];
                self.region.read_at(index * 8, &mut found);
                assert_eq!(u64::from_ne_bytes(found), self.shadow[index], "word {index} at the source");
            }
            _ => {
                let pages = 1 + self.random.below(40);
                self.discard(page, pages);
            }
        }
    }

    /// The first page of `region` that is not what was written, if there is one.
    pub fn differs(&self, region: &Region) -> Option<usize> {
        let mut page = [0; PAGE];
        (0..self.pages()).find(|number| {
            region.read_at(number * PAGE, &mut page);
            let (words, _) = page.as_chunks::<8>();
            let shadow = &self.shadow[number * WORDS..(number + 1) * WORDS];
            words.iter().zip(shadow).any(|(word, shadow)| u64::from_ne_bytes(*word) != *shadow)
        })
    }
}

/// What a region holds, in a word.
pub fn digest(region: &Region) -> u64 {
    let mut page = [0; PAGE];
    (0..region.len()).step_by(PAGE).fold(0, |digest, offset| {
        region.read_at(offset, &mut page);
        xxhash_rust::xxh3::xxh3_64_with_seed(&page, digest)
    })
}

/// Stops a program that runs in another thread.
#[derive(Default)]
pub struct Brake {
    wanted: AtomicBool,
    pub stands: AtomicBool,
}

impl Brake {
    /// Runs `program` until it is stopped.
    pub fn run(&self, program: &mut Program<'_>) {
        while !self.wanted.load(Ordering::Acquire) {
            program.step();
            if program.random.below(64) == 0 {
                thread::sleep(Duration::from_micros(100));
            }
        }
        self.stands.store(true, Ordering::Release);
    }
    pub fn stop(&self) {
        self.wanted.store(true, Ordering::Release);
    }
}

impl Writer for &Brake {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        Brake::stop(self);
        while !self.stands.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

pub fn live_options(codec: Codec, channels: u16) -> LiveOptions {
    LiveOptions {
        send: SendOptions { channels, codec, token: None, tls: None, bandwidth: None, stall: STALL },
        downtime: Duration::from_millis(5),
        rounds: 6,
        otherwise: Otherwise::StopForLonger,
    }
}

pub fn receive_options(zero: ZeroPolicy) -> ReceiveOptions {
    ReceiveOptions { token: None, tls: None, zero, image_most: Bytes::gib(4), wait: STALL, stall: STALL }
}

pub fn any_port() -> Listener {
    Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a listener")
}

/// What came of a migration.
pub type Outcome = (Result<Moved, Error>, Result<(Region, Counts), Error>);

/// Moves a region from `program`, which goes on until it is stopped, to a manager of this process, over whatever `route`
/// makes of the listener's address.
pub fn migrate(
    region: &Region,
    program: &mut Program<'_>,
    to: &Manager,
    options: &LiveOptions,
    receiving: &ReceiveOptions,
    route: impl FnOnce(Endpoint) -> Endpoint,
) -> Outcome {
    let listener = any_port();
    let at = route(listener.endpoint().expect("an address"));
    let brake = Brake::default();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            Region::receive(to, listener, receiving, &mut |event| match event {
                Event::Turned(error) => panic!("turned away: {error}"),
                _ => ControlFlow::Continue(()),
            })
        });
        let writer = scope.spawn(|| brake.run(program));
        let sent = region.migrate_to(&at, options, &mut &brake, &mut |_, _| ControlFlow::Continue(()));
        brake.stop();
        writer.join().expect("the program");
        (sent, receiver.join().expect("the receiver"))
    })
}
