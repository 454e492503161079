//! Memory that processes share is sent while it is written through other mappings, and received
//! into other such memory.

mod support;

use std::fs::File;
use std::io;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_core::size::Bytes;
use pagoda_linux::io::shared_file::memory_file;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip;
use pagoda_migrate::{
    Counts, DirtyLog, DirtyPages, Error, Event, Listener, LiveOptions, Moved, Otherwise, OwnWrites,
    ReceiveOptions, SendOptions, SharedMemory, Writer,
};
use support::STALL;
use support::shared_file::{BESIDE, LEN, Looks, PAGE, Shared, unwritten};

const WORDS: usize = PAGE / 8;
const PAGES: usize = LEN / PAGE;

fn any_port() -> Listener {
    Listener::bind(&support::any_port()).expect("a listener")
}

fn live_options(codec: Codec, channels: u16) -> LiveOptions {
    LiveOptions {
        send: SendOptions { channels, codec, stall: STALL, ..SendOptions::default() },
        downtime: Duration::from_millis(5),
        rounds: 6,
        otherwise: Otherwise::StopForLonger,
        slow_most_percent: 0,
    }
}

fn receive_options(zero: ZeroPolicy) -> ReceiveOptions {
    ReceiveOptions { zero, wait: STALL, stall: STALL, ..ReceiveOptions::default() }
}

fn receive(to: &Shared, listener: Listener, zero: ZeroPolicy) -> Result<Counts, Error> {
    to.memory().receive(listener, &receive_options(zero), &mut |event| match event {
        Event::Turned(error) => panic!("turned away: {error}"),
        _ => Continue(()),
    })
}

/// A process that writes the memory in a thread until it is stopped, and its writes.
struct Scribbler<'a> {
    memory: &'a Shared,
    random: Random,
    shadow: Vec<u64>,
}

impl<'a> Scribbler<'a> {
    fn new(memory: &'a Shared, seed: u64) -> Self {
        Self { memory, random: Random::new(seed, 1), shadow: vec![0; LEN / 8] }
    }

    /// Zeroes, one word, or random words.
    fn write_page(&mut self, page: usize) {
        let (kind, word) = (self.random.below(4), self.random.next());
        let words: [u64; WORDS] = std::array::from_fn(|_| match kind {
            0 => 0,
            1 => word,
            _ => self.random.next(),
        });
        self.shadow[page * WORDS..][..WORDS].copy_from_slice(&words);
        self.memory.write(page * PAGE, words.map(u64::to_ne_bytes).as_flattened());
    }

    /// Writes most of it, and leaves the rest untouched.
    fn fill(&mut self) {
        for _ in 0..PAGES / 12 {
            let (page, len) = (self.random.below(PAGES), 1 + self.random.below(24));
            (page..(page + len).min(PAGES)).for_each(|page| self.write_page(page));
        }
    }

    /// Writes a word or a page, or makes holes.
    fn step(&mut self) {
        // Mostly in one part, so that rounds get somewhere.
        let among = if self.random.below(4) == 0 { PAGES } else { PAGES / 8 };
        let page = self.random.below(among);
        match self.random.below(16) {
            0..10 => {
                let (at, word) = (page * WORDS + self.random.below(WORDS), self.random.next());
                self.memory.write(at * 8, &word.to_ne_bytes());
                self.shadow[at] = word;
            }
            10..15 => self.write_page(page),
            _ => {
                let end = (page + 1 + self.random.below(40)).min(PAGES);
                self.memory.discard(page * PAGE, (end - page) * PAGE);
                self.shadow[page * WORDS..end * WORDS].fill(0);
            }
        }
        if self.random.below(64) == 0 {
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// The pages of `memory` that are not as they were written last.
    fn differs(&self, memory: &Shared) -> Vec<usize> {
        let mut found = [0; PAGE];
        let is_other = |page: &usize| {
            memory.read(page * PAGE, &mut found);
            self.shadow[page * WORDS..][..WORDS].iter().flat_map(|word| word.to_ne_bytes()).ne(found)
        };
        (0..PAGES).filter(is_other).collect()
    }
}

/// Stops the thread of a scribbler.
#[derive(Default)]
struct Brake {
    wanted: AtomicBool,
    stands: AtomicBool,
}

impl Brake {
    fn run(&self, scribbler: &mut Scribbler<'_>) {
        while !self.wanted.load(Ordering::Acquire) {
            scribbler.step();
        }
        self.stands.store(true, Ordering::Release);
    }
}

impl Writer for &Brake {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        self.wanted.store(true, Ordering::Release);
        while !self.stands.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

/// There is no writer.
struct Idle;

impl Writer for Idle {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}

/// Moves memory to anything that `receive` receives into, while the scribbler runs.
fn migrate<R: Send>(
    memory: &SharedMemory,
    dirty: &mut dyn DirtyLog,
    scribbler: Option<&mut Scribbler<'_>>,
    options: &LiveOptions,
    receive: impl FnOnce(Listener) -> R + Send,
) -> (Result<Moved, Error>, R) {
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    let brake = Brake::default();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(listener));
        let sent = match scribbler {
            None => memory.migrate_to(&at, options, dirty, &mut Idle, &mut |_, _| Continue(())),
            Some(scribbler) => {
                let writer = scope.spawn(|| brake.run(scribbler));
                let sent = memory.migrate_to(&at, options, dirty, &mut &brake, &mut |_, _| Continue(()));
                // A failure must not leave it running.
                brake.wanted.store(true, Ordering::Release);
                writer.join().expect("the scribbler");
                sent
            }
        };
        (sent, receiver.join().expect("the receiver"))
    })
}

/// Moves used memory to used memory, with a log of the test's or the kernel's.
fn move_written(seed: u64, at: usize, by_kernel: bool) {
    let (codec, zero) = (Codec::ALL[at], ZeroPolicy::ALL[(at + seed as usize) % ZeroPolicy::ALL.len()]);
    let channels = [1, 3][seed as usize % 2];
    let context = format!("seed {seed}: {codec:?}, {zero:?}, {channels} channels, by kernel: {by_kernel}");
    let (from, to) = (Shared::new(LEN), Shared::used(LEN));
    let mut scribbler = Scribbler::new(&from, seed);
    scribbler.fill();
    let (memory, options) = (from.memory(), live_options(codec, channels));
    let receive = |listener| receive(&to, listener, zero);
    let (sent, received) = if by_kernel {
        let mut writes = match OwnWrites::new(&memory, from.mapping.as_ptr()) {
            Ok(writes) => writes,
            Err(error) => return skip("tracking writes to shared memory", error),
        };
        migrate(&memory, &mut writes, Some(&mut scribbler), &options, receive)
    } else {
        migrate(&memory, &mut &from, Some(&mut scribbler), &options, receive)
    };
    let moved = sent.unwrap_or_else(|error| panic!("{context}: {error}"));
    received.unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(moved.pace.rounds > 0, "{context}: {moved:?}");
    assert_eq!(scribbler.differs(&from), [0; 0], "{context}: at the source");
    assert_eq!(scribbler.differs(&to), [0; 0], "{context}");
    [&from, &to].iter().for_each(|shared| shared.check_beside(&context));
}

#[test]
fn shared_memory_arrives_as_it_was_when_its_writers_were_stopped() {
    for seed in runs(2) {
        (0..Codec::ALL.len()).for_each(|codec| move_written(seed, codec, false));
    }
}

#[test]
fn writes_of_one_mapping_alone_are_told_by_the_kernel() {
    for seed in runs(2) {
        (0..Codec::ALL.len()).for_each(|codec| move_written(seed, codec, true));
    }
}

#[test]
fn untouched_pages_are_not_sent_and_stay_holes() {
    const PAGES: usize = 16;
    let (from, to) = (Shared::new(1 << 30), Shared::new(1 << 30));
    let mut random = Random::new(1, 1);
    let numbers: Vec<usize> = (0..PAGES).map(|at| at * ((1 << 30) / PAGE / PAGES) + 5).collect();
    for page in &numbers {
        let words: Vec<u8> = (0..PAGE / 8).flat_map(|_| random.next().to_ne_bytes()).collect();
        from.mapping.write(page * PAGE, &words);
        to.mapping.write((page + 1) * PAGE, &words);
    }
    let options = live_options(Codec::None, 2);
    let receive = |listener| receive(&to, listener, ZeroPolicy::Drop);
    // The log of a guest tells all of its pages at first.
    let mut all_at_first = Looks::new(|look, dirty: &mut DirtyPages<'_>| {
        dirty.add(0..if look == 1 { dirty.pages() } else { 0 });
        Ok(())
    });
    let (sent, received) = migrate(&from.memory(), &mut all_at_first, None, &options, receive);
    let (counts, moved) = (received.expect("received"), sent.expect("sent"));
    assert_eq!((counts.data_pages, from.held(), to.held()), (PAGES as u64, PAGES as u64, PAGES as u64));
    assert!(moved.counts.wire_bytes < (PAGES * PAGE + 16 * 1024) as u64, "{:?}", moved.counts);
    let (mut here, mut there) = ([0; PAGE], [0; PAGE]);
    for page in numbers {
        from.read(page * PAGE, &mut here);
        to.read(page * PAGE, &mut there);
        assert!(here == there && here != [0; PAGE], "page {page}");
        to.read((page + 1) * PAGE, &mut there);
        assert_eq!(there, [0; PAGE], "after page {page}");
    }
}

/// Of 64 pages that were sent 16 are written with zeroes and 16 become holes before the next look.
#[test]
fn zeroes_after_content_are_zero_there_and_take_nothing() {
    for zero in ZeroPolicy::ALL {
        let (from, to) = (Shared::new(LEN), Shared::used(LEN));
        (0..64).for_each(|page| from.mapping.write(page * PAGE, &[7; PAGE]));
        let mut options = live_options(Codec::None, 2);
        options.downtime = Duration::ZERO;
        let mut turns_zero = Looks::new(|look, dirty: &mut DirtyPages<'_>| {
            if look == 2 {
                (0..16).for_each(|page| from.mapping.write(page * PAGE, &[0; PAGE]));
                from.discard(16 * PAGE, 16 * PAGE);
                // Two of the holes are told, and two are written anew.
                (30..32).for_each(|page| from.mapping.write(page * PAGE, &[8; PAGE]));
                dirty.add(0..18);
                dirty.add(30..32);
            }
            Ok(())
        });
        let receive = |listener| receive(&to, listener, zero);
        let (sent, received) = migrate(&from.memory(), &mut turns_zero, None, &options, receive);
        sent.expect("sent");
        received.expect("received");
        if zero == ZeroPolicy::Drop {
            // Before the mapping is read: that gets pages.
            assert_eq!(to.held(), 34);
        }
        for page in 0..64 {
            let expected = match page {
                0..30 => 0,
                30..32 => 8,
                _ => 7,
            };
            let mut found = [0; PAGE];
            to.read(page * PAGE, &mut found);
            assert_eq!(found, [expected; PAGE], "{zero:?}: page {page}");
        }
        to.check_beside("zeroes");
    }
}

#[test]
fn a_log_that_fails_ends_it_and_the_other_side_reads_zero() {
    let (from, to) = (Shared::used(LEN), Shared::used(LEN));
    let mut fails = Looks::new(|look, _: &mut DirtyPages<'_>| match look {
        1 => Ok(()),
        _ => Err(io::Error::other("the log is gone")),
    });
    let receive = |listener| receive(&to, listener, ZeroPolicy::Drop);
    let (sent, received) = migrate(&from.memory(), &mut fails, None, &live_options(Codec::None, 2), receive);
    match sent.expect_err("it failed") {
        Error::Source(error) => assert_eq!(error.to_string(), "the log is gone"),
        other => panic!("{other}"),
    }
    received.expect_err("nothing to show");
    assert!(from.is_all(0xe7) && to.is_all(0));
    assert_eq!(to.held(), 0);
}

#[test]
fn a_source_that_is_cut_short_is_an_error() {
    // At the first look, before the first round; and after it.
    for at in [1, 2] {
        let (from, to) = (Shared::used(LEN), Shared::used(LEN));
        let mut cuts = Looks::new(|look, _: &mut DirtyPages<'_>| match look == at {
            true => from.file.set_len(from.offset(LEN / 2)),
            false => Ok(()),
        });
        let receive = |listener| receive(&to, listener, ZeroPolicy::Drop);
        let (sent, received) =
            migrate(&from.memory(), &mut cuts, None, &live_options(Codec::None, 2), receive);
        let sent = sent.expect_err("it was cut short");
        assert!(matches!(sent, Error::Source(_)) && sent.to_string().contains("cut it short"), "{sent}");
        received.expect_err("nothing to show");
        assert!(to.is_all(0), "look {at}");
    }
    // While it is read: no look is in between.
    let (from, to) = (Shared::noisy(LEN), Shared::used(LEN));
    let mut options = live_options(Codec::None, 1);
    options.send.bandwidth = Some(Bytes::mib(16));
    let listener = any_port();
    let endpoint = listener.endpoint().expect("an address");
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&to, listener, ZeroPolicy::Drop));
        let sent =
            from.memory().migrate_to(&endpoint, &options, &mut unwritten(), &mut Idle, &mut |progress, _| {
                if progress.counts().data_pages > 0 {
                    from.file.set_len(from.offset(0)).expect("shorter");
                }
                Continue(())
            });
        let sent = sent.expect_err("it was cut short");
        assert!(matches!(sent, Error::Source(_)) && sent.to_string().contains("cut it short"), "{sent}");
        receiver.join().expect("no panic").expect_err("nothing to show");
    });
    assert!(to.is_all(0));
}

#[test]
fn a_destination_that_is_cut_short_is_an_error() {
    let (from, to) = (Shared::noisy(LEN), Shared::used(LEN));
    let mut options = live_options(Codec::None, 2);
    options.send.bandwidth = Some(Bytes::mib(16));
    let receive = |listener| {
        to.memory().receive(listener, &receive_options(ZeroPolicy::Drop), &mut |event| {
            match event {
                Event::Moving(progress) if progress.counts().data_pages > 0 => {
                    to.file.set_len(to.offset(0)).expect("shorter");
                }
                _ => {}
            }
            Continue(())
        })
    };
    let (sent, received) = migrate(&from.memory(), &mut unwritten(), None, &options, receive);
    sent.expect_err("the receiver gave up");
    let received = received.expect_err("it was cut short");
    assert!(matches!(received, Error::Destination(_)), "{received}");
    // A write that came after the cut may have made it longer again, by zeroes in the end.
    let mut left = Vec::new();
    io::Read::read_to_end(&mut &to.file, &mut left).expect("read");
    assert!(left.iter().skip(BESIDE * PAGE).all(|byte| *byte == 0), "{} bytes", left.len());
}

#[test]
fn memory_that_does_not_fit_keeps_its_content() {
    let to = Shared::used(LEN);
    // Another length.
    let from = Shared::used(LEN - PAGE);
    let receive = |listener| receive(&to, listener, ZeroPolicy::Drop);
    let (sent, received) =
        migrate(&from.memory(), &mut unwritten(), None, &live_options(Codec::None, 1), receive);
    sent.expect_err("refused");
    let refused = received.expect_err("another length").to_string();
    assert!(refused.contains("give as much as is sent"), "{refused}");
    // A sender that wants this side to go on before all is there.
    let from = Shared::used(LEN);
    let receive = |listener| {
        to.memory().receive(listener, &receive_options(ZeroPolicy::Drop), &mut |event| match event {
            Event::Turned(_) => Break(()),
            _ => Continue(()),
        })
    };
    let (sent, received) = migrate(
        &from.memory(),
        &mut unwritten(),
        None,
        &LiveOptions { otherwise: Otherwise::PostCopy, ..live_options(Codec::None, 1) },
        receive,
    );
    let refused = sent.expect_err("refused").to_string();
    assert!(refused.contains("send without post-copy"), "{refused}");
    assert!(matches!(received, Err(Error::Cancelled)), "{received:?}");
    // A descriptor that can't write; it is asked before a sender is waited for.
    let path = format!("/proc/self/fd/{}", to.file.as_raw_fd());
    let read_only = File::open(path).expect("opened");
    let mut read_only =
        SharedMemory::new(read_only, to.offset(0), Bytes::new(LEN as u64)).expect("it can be sent");
    let refused = read_only.receive(any_port(), &receive_options(ZeroPolicy::Drop), &mut |_| Continue(()));
    let refused = refused.expect_err("read only").to_string();
    assert!(refused.contains("read only"), "{refused}");
    assert!(to.is_all(0xe7));
}

#[test]
fn other_files_and_mappings_are_refused() {
    let file = || memory_file(c"guest", 4 * PAGE as u64).expect("a memfd");
    let memory = |file: File, at, len| SharedMemory::new(file, at, Bytes::new(len));
    let page = PAGE as u64;
    assert_eq!(memory(file(), page, 2 * page).expect("a part").size(), Bytes::new(2 * page));
    for (at, len) in [(1, page), (0, page - 1), (0, 0), (page, 4 * page), (u64::MAX - page + 1, page)] {
        let refused = memory(file(), at, len).expect_err("no part");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{at} and {len}: {refused}");
    }
    let on_disk = tempfile::tempfile_in("/var/tmp").expect("a file");
    assert!(memory(on_disk, 0, page).expect_err("on a disk").to_string().contains("no shared memory"));

    let shared = Shared::new(16 * PAGE);
    let own =
        |address| OwnWrites::new(&shared.memory(), address).map(drop).map_err(|error| error.to_string());
    own(shared.mapping.as_ptr()).expect("a shared mapping");
    assert!(own(shared.mapping.as_ptr().wrapping_add(1)).expect_err("no page").contains("whole page"));
    let elsewhere = own(shared.mapping.as_ptr().wrapping_add(PAGE)).expect_err("elsewhere in the file");
    assert!(elsewhere.contains("no shared mapping of this memory"), "{elsewhere}");
    let first = OwnWrites::new(&shared.memory(), shared.mapping.as_ptr()).expect("a shared mapping");
    assert!(own(shared.mapping.as_ptr()).expect_err("a second").contains("tracked already"));
    drop(first);
    own(shared.mapping.as_ptr()).expect("again");
}
