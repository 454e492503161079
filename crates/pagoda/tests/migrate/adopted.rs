//! Memory that its owner has mapped moves as a region does, and its neighbours stay: from
//! adopted memory to a region, from a region into adopted memory, and from one to the other.

use std::thread;

use pagoda::migrate::{Arrival, Codec, Error, Listener, ReceiveOptions, ZeroPolicy};
use pagoda::{AdoptedRegion, BasePage, Bytes, Managed, Manager, Region};
use pagoda_linux::mem::region_bytes::RegionBytes;
use pagoda_linux::testing::foreign::Foreign;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::process::{fork, wait};
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::migrate::late::use_at_once;
use crate::migrate::program::{Memory, PAGE, Program};
use crate::migrate::proxy::{FAULTS, Fault, Plan, line};
use crate::migrate::support::{
    combinations, late_options, live_options, manager, migrate, migrate_by, migrate_late, migrate_late_by,
    no_peer_is_refused, receive_options, slow_options, use_early_by,
};

/// Pages of the mapping on each side of the part that is adopted: no whole base page.
const BESIDE: usize = 5;
const MARK: u8 = 0xb5;

/// A mapping of which a part is adopted.
pub struct Mapped {
    memory: Foreign,
    pages: usize,
    pub bytes: RegionBytes,
}

impl Mapped {
    /// A part of these bytes, all zero.
    pub fn new(bytes: usize) -> Self {
        let pages = bytes / PAGE;
        let memory = Foreign::private(pages + 2 * BESIDE).expect("memory");
        let bytes = memory.bytes(BESIDE..BESIDE + pages);
        let mapped = Self { memory, pages, bytes };
        mapped.beside().for_each(|page| mapped.memory.write(page, MARK));
        mapped
    }

    /// The bytes of the adopted part, for another thread.
    pub fn other_bytes(&self) -> RegionBytes {
        self.memory.bytes(BESIDE..BESIDE + self.pages)
    }

    /// Puts fresh memory in the place of so many pages from `first`.
    pub fn renew(&self, first: usize, pages: usize) {
        self.memory.renew(BESIDE + first..BESIDE + first + pages).expect("fresh memory");
    }

    /// The same with content that is to be gone.
    pub fn used(bytes: usize) -> Self {
        let mapped = Self::new(bytes);
        (0..mapped.pages).for_each(|page| mapped.bytes.write(page * PAGE, &[0xe7; PAGE]));
        mapped
    }

    fn beside(&self) -> impl Iterator<Item = usize> + use<> {
        (0..BESIDE).chain(BESIDE + self.pages..self.pages + 2 * BESIDE)
    }

    pub fn adopt(&self, manager: &Manager) -> AdoptedRegion {
        manager.adopt(self.memory.give_movable(BESIDE..BESIDE + self.pages)).expect("adopted")
    }

    /// Whether the pages beside it are as they were.
    pub fn check_beside(&self, context: &str) {
        self.beside().for_each(|page| assert_eq!(self.memory.read(page), MARK, "{context}: page {page}"));
    }

    /// The pages whose every byte is `byte`.
    pub fn pages_of(&self, byte: u8) -> usize {
        let mut page = [0; PAGE];
        let is_it = |number: &usize| {
            self.bytes.read(number * PAGE, &mut page);
            page == [byte; PAGE]
        };
        (0..self.pages).filter(is_it).count()
    }

    /// Gives it back, a part of it swapped out before, and compares.
    fn give_back(&self, region: AdoptedRegion, program: &Program<'_>, context: &str) {
        assert_eq!(program.differs(&self.bytes), None, "{context}");
        region.page_out(0, region.len() / 2).expect("stored");
        drop(region);
        assert_eq!(program.differs(&self.bytes), None, "{context}, given back");
        self.check_beside(context);
    }
}

/// Whether the source is adopted memory, and the destination.
const WAYS: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

/// Which codec, zero policy and number of channels a case has.
fn wire(at: usize, way: usize) -> (Codec, ZeroPolicy, u16) {
    let codec = (at + way) % Codec::ALL.len();
    let (zero, channels) = combinations(at, codec, &[1, 3])[0];
    (Codec::ALL[codec], zero, channels)
}

/// Calls `case` for each base page and way, with a source of `bytes`, or somewhat less where no
/// region has to be as long: a program's memory that it has filled, a third of it swapped out.
fn each_case(
    bytes: usize,
    budget: impl Fn(BasePage) -> Bytes,
    case: impl Fn(&Managed, Program<'_>, &Manager, Option<&Mapped>, (Codec, ZeroPolicy, u16), &str),
) {
    for seed in runs(1) {
        for (at, base) in BasePage::ALL.into_iter().enumerate() {
            for (way_at, way) in WAYS.into_iter().enumerate() {
                let seed = seed * 1000 + (at * WAYS.len() + way_at) as u64;
                let to_base = [base, BasePage::K64, BasePage::M2, BasePage::K4][seed as usize % 4];
                let (from, to) = (manager(budget(base), base), manager(budget(to_base), to_base));
                let wire = wire(at, way_at);
                let context = format!("seed {seed}: {way:?}, {base:?} to {to_base:?}, {wire:?}");
                let len = if way.0 { bytes - 12 * PAGE } else { bytes };
                let target = way.1.then(|| Mapped::used(len));
                let target = target.as_ref();
                if way.0 {
                    let mapped = Mapped::new(len);
                    let region = mapped.adopt(&from);
                    let mut program = Program::new(&mapped.bytes, seed);
                    program.fill();
                    region.page_out(0, len / 3).expect("stored");
                    case(&region, program, &to, target, wire, &context);
                    drop(region);
                    mapped.check_beside(&context);
                } else {
                    let region = from.region(Bytes::new(len as u64)).create().expect("a region");
                    let mut program = Program::new(&region, seed);
                    program.fill();
                    region.page_out(0, len / 3).expect("stored");
                    case(&region, program, &to, target, wire, &context);
                }
            }
        }
    }
}

#[test]
fn adopted_memory_arrives_as_it_was_when_its_writer_was_stopped() {
    if skip_without_moves("migration of adopted memory") {
        return;
    }
    // More than fits, but with huge frames.
    let budget = |base| Bytes::mib(if base == BasePage::M2 { 64 } else { 16 });
    each_case(18 << 20, budget, |region, mut program, to, target, (codec, zero, channels), context| {
        let (options, receiving) = (live_options(codec, channels), receive_options(zero));
        let Some(target) = target else {
            let (sent, received) = migrate(region, &mut program, to, &options, &receiving, |to| to);
            sent.unwrap_or_else(|error| panic!("{context}: {error}"));
            let (arrived, _) = received.unwrap_or_else(|error| panic!("{context}: {error}"));
            return assert_eq!(program.differs(&arrived), None, "{context}");
        };
        let mut arrived = target.adopt(to);
        arrived.page_out(0, arrived.len() / 3).expect("stored");
        let receive = |listener| arrived.receive(listener, &receiving, &mut no_peer_is_refused);
        let (sent, received) = migrate_by(region, &mut program, &options, |to| to, receive);
        sent.unwrap_or_else(|error| panic!("{context}: {error}"));
        received.unwrap_or_else(|error| panic!("{context}: {error}"));
        target.give_back(arrived, &program, context);
    });
}

#[test]
fn adopted_memory_that_is_used_at_once_is_as_it_was_when_its_writer_was_stopped() {
    if skip_without_moves("post-copy of adopted memory") {
        return;
    }
    let budget = |base| Bytes::mib(if base == BasePage::M2 { 96 } else { 16 });
    each_case(6 << 20, budget, |region, program, to, target, (codec, zero, channels), context| {
        let seed = context.len() as u64;
        let (options, receiving) = (late_options(codec, channels, seed as u32 % 3), receive_options(zero));
        let Some(target) = target else {
            let use_it = |arrived: Region, arrival, shadow: &[u64]| {
                use_at_once(&arrived, arrival, shadow, seed, context);
            };
            migrate_late(region, program, to, &options, &receiving, use_it);
            return;
        };
        migrate_late_by(region, program, &options, |listener, shadow| {
            let mut arrived = target.adopt(to);
            let arrival = arrived.receive_late(listener, &receiving, &mut no_peer_is_refused);
            let arrival = arrival.unwrap_or_else(|error| panic!("{context}: {error}"));
            use_at_once(&target.bytes, arrival, &shadow(), seed, context);
            let mut wanted = vec![0; target.bytes.bytes()];
            target.bytes.read(0, &mut wanted);
            drop(arrived);
            let mut found = vec![0; wanted.len()];
            target.bytes.read(0, &mut found);
            assert!(found == wanted, "{context}: given back");
            target.check_beside(context);
        });
    });
}

/// Content of a page that no other has.
fn content(page: usize) -> [u8; PAGE] {
    let mut random = Random::new(page as u64, 9);
    std::array::from_fn(|_| random.next() as u8 | 1)
}

/// Sends pages of that content so slowly that most are owed for long, to where `use_it` receives.
fn arrive_slowly(pages: usize, use_it: impl FnOnce(Listener, &ReceiveOptions)) -> Result<(), Error> {
    let from = manager(Bytes::mib(32), BasePage::K64);
    let source = Mapped::new(pages * PAGE);
    (0..pages).for_each(|page| source.bytes.write(page * PAGE, &content(page)));
    let region = source.adopt(&from);
    let options = slow_options(2, Bytes::mib(4));
    let send = |at: &_| region.migrate_to(at, &options, &mut crate::migrate::program::Idle, &mut go_on);
    let sent = use_early_by(send, |listener| use_it(listener, &receive_options(ZeroPolicy::default())));
    (0..pages).for_each(|page| assert!(is_right(&source, page), "page {page} of the source"));
    sent.map(drop)
}

fn go_on(_: &pagoda::migrate::Progress, _: &pagoda::migrate::Pace) -> std::ops::ControlFlow<()> {
    std::ops::ControlFlow::Continue(())
}

/// Whether a page has its content. A part that can't be read is none.
fn is_right(mapped: &Mapped, page: usize) -> bool {
    let mut found = [0; PAGE];
    mapped.bytes.read_what_is_there(page * PAGE, &mut found) == PAGE && found == content(page)
}

const PAGES: usize = 1540;

#[test]
fn memory_that_is_given_back_while_it_arrives_is_right_or_can_not_be_read() {
    if skip_without_moves("giving back what arrives") {
        return;
    }
    // Where system calls wait for pages, too, one waits for a page that is lost.
    let waits = Manager::builder().budget(Bytes::mib(32)).build().ok();
    let to = waits.unwrap_or_else(|| manager(Bytes::mib(32), BasePage::K64));
    let mapped = Mapped::used(PAGES * PAGE);
    let sent = arrive_slowly(PAGES, |listener, receiving| {
        let mut region = mapped.adopt(&to);
        let arrival = region.receive_late(listener, receiving, &mut no_peer_is_refused).expect("received");
        let again = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a listener");
        let again = region.receive(again, receiving, &mut no_peer_is_refused);
        assert!(matches!(again, Err(Error::Destination(_))), "{again:?}");
        let (mut missing, mut random) = (0, Random::new(3, 3));
        thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| random.below(PAGES))
                .map(|page| {
                    let mapped = &mapped.bytes;
                    scope.spawn(move || {
                        let mut found = [0; PAGE];
                        let there = mapped.read_what_is_there(page * PAGE, &mut found);
                        assert!(there == 0 || found[..there] == content(page)[..there], "page {page}");
                    })
                })
                .collect();
            until("a page has come", || (0..PAGES).any(|page| is_right(&mapped, page)));
            drop(region);
            readers.into_iter().for_each(|reader| reader.join().expect("no page reads wrong"));
        });
        assert!(arrival.wait().is_err());
        for page in 0..PAGES {
            let mut found = [0; PAGE];
            match mapped.bytes.read_what_is_there(page * PAGE, &mut found) {
                PAGE => assert!(found == content(page), "page {page} is not the sent one"),
                0 => missing += 1,
                part => panic!("{part} bytes of page {page}"),
            }
        }
        assert!((1..PAGES).contains(&missing), "{missing} pages are missing");
    });
    assert!(matches!(sent, Err(Error::AfterSwitch(_))), "{sent:?}");
    mapped.check_beside("given back");
    // Discarded it is as any memory, and may be received into anew.
    mapped.bytes.discard(0, PAGES * PAGE).expect("discarded");
    assert_eq!(mapped.pages_of(0), PAGES);
    let mut region = Some(mapped.adopt(&to));
    let sent = arrive_slowly(PAGES, |listener, receiving| {
        let own = region.as_mut().expect("adopted");
        let arrival = own.receive_late(listener, receiving, &mut no_peer_is_refused).expect("received");
        // A child has the handle, and neither the thread that receives nor the memory.
        let child = fork(|| {
            drop(region.take());
            0
        });
        assert_eq!(wait(child.expect("forked")).expect("ended").exit_status(), Some(0));
        arrival.wait().expect("all of it");
    });
    sent.expect("sent");
    drop(region);
    assert_eq!((0..PAGES).filter(|page| !is_right(&mapped, *page)).count(), 0);
}

#[test]
fn memory_that_is_forgotten_while_it_arrives_is_zero() {
    if skip_without_moves("forgetting what arrives") {
        return;
    }
    let to = manager(Bytes::mib(32), BasePage::K64);
    let mapped = Mapped::used(PAGES * PAGE);
    let mut arrival: Option<Arrival> = None;
    let sent = arrive_slowly(PAGES, |listener, receiving| {
        let mut region = mapped.adopt(&to);
        arrival = Some(region.receive_late(listener, receiving, &mut no_peer_is_refused).expect("received"));
        assert!(is_right(&mapped, 0) || arrival.as_ref().is_some_and(|arrival| arrival.outcome().is_none()));
        region.forget().expect("forgotten");
        assert_eq!(mapped.pages_of(0), PAGES);
    });
    assert!(matches!(sent, Err(Error::AfterSwitch(_))), "{sent:?}");
    assert!(arrival.is_some_and(|arrival| arrival.wait().is_err()));
    assert_eq!(mapped.pages_of(0), PAGES);
    mapped.check_beside("forgotten");
}

#[test]
fn a_line_that_fails_leaves_adopted_memory_as_it_was_or_empty() {
    if skip_without_moves("adopted memory over bad lines") {
        return;
    }
    let mut failed = 0;
    for seed in runs(length(6, 14)) {
        let mut random = Random::new(seed, 0);
        let (from, to) = (manager(Bytes::mib(24), BasePage::K64), manager(Bytes::mib(24), BasePage::K64));
        let (source, target) = (Mapped::new(4 << 20), Mapped::used(4 << 20));
        let (region, mut arrived) = (source.adopt(&from), target.adopt(&to));
        let mut program = Program::new(&source.bytes, seed);
        program.fill();
        let fault = FAULTS.into_iter().filter(|fault| *fault != Fault::Silence).nth(random.below(5));
        let at = random.below([200, 300_000][seed as usize % 2]);
        let plan = Plan { fault: fault.expect("one"), channel: 0, at, is_of_the_receiver: false };
        let mut receiving = receive_options(ZeroPolicy::default());
        let mut options = live_options(Codec::None, 2);
        let short = std::time::Duration::from_secs(2);
        (receiving.wait, receiving.stall, options.send.stall) = (short, short, short);
        let receive =
            |listener| arrived.receive(listener, &receiving, &mut |_| std::ops::ControlFlow::Continue(()));
        let (sent, received) = migrate_by(&region, &mut program, &options, |to| line(&to, plan), receive);
        let context = format!("PAGODA_SEED={seed}, {plan:?}: {sent:?}, {received:?}");
        if received.is_ok() {
            assert_eq!(program.differs(&target.bytes), None, "{context}");
        } else {
            failed += 1;
            let as_it_was = [0, 0xe7].map(|byte| target.pages_of(byte));
            assert!(as_it_was.contains(&target.pages), "{context}: {as_it_was:?}");
        }
        (0..500).for_each(|_| program.step());
        // Once more into the same memory, with patience for a busy machine.
        let receiving = receive_options(ZeroPolicy::default());
        let receive = |listener| arrived.receive(listener, &receiving, &mut no_peer_is_refused);
        let (sent, received) =
            migrate_by(&region, &mut program, &live_options(Codec::Lz4, 2), |to| to, receive);
        sent.unwrap_or_else(|error| panic!("{context}, then {error}"));
        received.unwrap_or_else(|error| panic!("{context}, then {error}"));
        assert_eq!(program.differs(&source.bytes), None, "{context}: the source");
        target.give_back(arrived, &program, &context);
    }
    assert!(failed > 0 || std::env::var_os("PAGODA_SEED").is_some(), "no fault was one");
}
