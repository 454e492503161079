//! A region that is used before all of it has arrived has the sent content, for every thread at
//! every moment.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagoda::migrate::{Arrival, Codec, Error, Event, Moved, ZeroPolicy};
use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::procfs::pagemap::{PagemapScanner, Presence};
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::program::{Idle, Memory, PAGE, Program};
use crate::migrate::support::{
    any_port, combinations, late_options, live_options, manager, migrate_idle, migrate_late, receive_options,
    slow_options,
};

const REGION: Bytes = Bytes::mib(6);

#[test]
fn a_region_that_is_used_at_once_is_as_it_was_when_its_writer_was_stopped() {
    if skip_without_moves("post-copy") {
        return;
    }
    let (mut owed, mut asked) = (0, 0);
    for seed in runs(1) {
        let mut case = 0;
        for (at, base) in BasePage::ALL.into_iter().enumerate() {
            for (codec_at, codec) in Codec::ALL.into_iter().enumerate() {
                for (zero, channels) in combinations(at, codec_at, &[1, 3]) {
                    case += 1;
                    let moved = one(seed * 1000 + case, base, codec, zero, channels);
                    owed += u64::from(moved.owed_for.is_some());
                    asked += moved.counts.asked;
                }
            }
        }
    }
    assert!(
        owed > length(2, 10) && asked > 10,
        "{owed} migrations owed something, {asked} pages were asked for"
    );
}

fn one(seed: u64, base: BasePage, codec: Codec, zero: ZeroPolicy, channels: u16) -> Moved {
    let context = format!("seed {seed}: {base:?}, {codec}, {zero}, {channels} channels");
    let budget = |base| Bytes::mib(if base == BasePage::M2 { 96 } else { 24 });
    let from = manager(budget(base), base);
    // Here and there, with the same base page or another, and served where the fault is or by
    // threads for that.
    let to_base = [base, BasePage::K64, BasePage::M2][seed as usize % 3];
    // Now and then more arrives than fits.
    let tight = seed % 6 == 1 && to_base != BasePage::M2;
    let (size, to_budget) = if tight { (Bytes::mib(24), Bytes::mib(16)) } else { (REGION, budget(to_base)) };
    let builder = Manager::builder().budget(to_budget).base_page(to_base).user_mode_only(true);
    let builder = builder.spill_to("/var/tmp", Bytes::gib(1));
    let to = builder.serve_in_thread(seed.is_multiple_of(4)).build().expect("a manager");
    let region = from.region(size).create().expect("a region");
    let mut program = Program::new(&region, seed);
    program.fill();
    region.page_out(0, region.len() / 3).expect("stored");
    let mut options = late_options(codec, channels, seed as u32 % 3);
    if seed.is_multiple_of(5) {
        // So slow that most is asked for.
        options.send.bandwidth = Some(Bytes::mib(32));
        options.rounds = 0;
    }
    migrate_late(&region, program, &to, &options, &receive_options(zero), |arrived, arrival, shadow| {
        use_at_once(&arrived, arrival, shadow, seed, &context);
    })
}

/// Continues a program's writes, its shadow, in a region that arrives, and checks every byte
/// meanwhile or in the end.
pub fn use_at_once(arrived: &dyn Memory, arrival: Arrival, shadow: &[u64], seed: u64, context: &str) {
    // One goes on with the program in a part of it while others only look at the rest.
    let len = shadow.len() * 8;
    let own = len / 4 * 3;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let program = scope.spawn(|| {
            let mut program = Program::go_on(arrived, shadow, own, seed);
            while !done.load(Ordering::Acquire) {
                program.step();
            }
            program
        });
        for reader in 0..2u64 {
            let done = &done;
            scope.spawn(move || {
                let mut random = Random::new(seed, 2 + reader);
                while !done.load(Ordering::Acquire) {
                    let word = own / 8 + random.below((len - own) / 8);
                    let mut found = [0; 8];
                    if reader == 0 {
                        found = load(arrived.at().wrapping_add(word * 8));
                    } else {
                        arrived.read(word * 8, &mut found);
                    }
                    assert_eq!(u64::from_ne_bytes(found), shadow[word], "{context}: word {word}");
                }
            });
        }
        let waited = arrival.wait();
        done.store(true, Ordering::Release);
        waited.unwrap_or_else(|error| panic!("{context}: {error}"));
        let program = program.join().expect("the program");
        assert_eq!(program.differs(arrived), None, "{context}: a page differs");
    });
    for (word, expected) in shadow.iter().enumerate().skip(own / 8) {
        let mut found = [0; 8];
        arrived.read(word * 8, &mut found);
        assert_eq!(u64::from_ne_bytes(found), *expected, "{context}: word {word}");
    }
}

#[test]
fn zeroes_that_were_never_data_are_not_waited_for_and_those_that_became_so_are_zero() {
    if skip_without_moves("zero pages by post-copy") {
        return;
    }
    for zero in ZeroPolicy::ALL {
        // Pages that come with another's fault are there as zeroes, too, and would be sent.
        let builder = || {
            Manager::builder()
                .budget(Bytes::mib(64))
                .user_mode_only(true)
                .tune(|tuning| tuning.fault_around(false))
        };
        let [from, to] = [(); 2].map(|()| builder().build().expect("a manager"));
        let region = from.region(REGION).create().expect("a region");
        // Pages 0..64 become data, 64..128 are resident zeroes, 128..192 are zero, then data, then
        // discarded; others are untouched.
        (0..64).for_each(|page| region.write_words(page * PAGE, &[7; PAGE]).expect("written"));
        (64..128).for_each(|page| region.write_words(page * PAGE, &[0; PAGE]).expect("written"));
        (128..192).for_each(|page| region.write_words(page * PAGE, &[9; PAGE]).expect("written"));
        region.discard(128 * PAGE, 64 * PAGE).expect("discarded");
        let options = slow_options(1, Bytes::mib(1));
        let sent = migrate_idle(&region, &to, &options, zero, |arrived, arrival| {
            // Pages that the sender never had: zero at once, without a request.
            for page in (192..arrived.len() / PAGE).chain(128..192) {
                let word = load(arrived.as_ptr().wrapping_add(page * PAGE));
                assert_eq!(word, [0; 8], "{zero}: page {page}");
            }
            for page in [127, 64, 63, 0] {
                let word = load(arrived.as_ptr().wrapping_add(page * PAGE + 8));
                assert_eq!(word, if page < 64 { [7; 8] } else { [0; 8] }, "{zero}: page {page}");
            }
            let counts = arrival.wait().expect("all of it");
            assert!(counts.asked <= 4, "{zero}: {counts:?}");
            assert_eq!((counts.owed_pages, counts.zero_pages, counts.filled_pages), (128, 64, 64), "{zero}");
            // The zeroes of the source took nothing here, though they were read.
            let (from, mut held) = (arrived.as_ptr().addr(), 0);
            let count = |run: std::ops::Range<usize>, presence| {
                held += if presence == Presence::Memory { run.len() / PAGE } else { 0 };
            };
            let mut scanner = PagemapScanner::new().expect("pagemap");
            scanner.populated_runs(from, from + arrived.len(), count).expect("scanned");
            assert_eq!(held, 64, "{zero}");
        });
        sent.expect("sent");
    }
}

#[test]
fn a_side_that_is_asked_for_less_than_it_wants_says_so() {
    if skip_without_moves("refusals of post-copy") {
        return;
    }
    let (from, to) = (manager(Bytes::mib(32), BasePage::K64), manager(Bytes::mib(32), BasePage::K64));
    let region = from.region(Bytes::mib(4)).create().expect("a region");
    region.write_words(0, &[5; PAGE]).expect("written");
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    let cancelled = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let receiving = receive_options(ZeroPolicy::default());
            Region::receive(&to, listener, &receiving, &mut |event| {
                if let Event::Turned(error) = event {
                    assert!(error.to_string().contains("without post-copy"), "{error}");
                    cancelled.store(true, Ordering::Release);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })
            .map(drop)
        });
        let options = late_options(Codec::Lz4, 2, 0);
        let sent = region.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(()));
        assert!(matches!(sent, Err(Error::Refused(_))), "{sent:?}");
        assert!(matches!(receiver.join().expect("the receiver"), Err(Error::Cancelled)));
        assert!(cancelled.load(Ordering::Acquire));
    });
    // And one that could switch and need not: there are no writes, so that all has arrived when it
    // is shown.
    let options = late_options(Codec::Lz4, 2, 2);
    let sent = migrate_idle(&region, &to, &options, ZeroPolicy::default(), |arrived, arrival| {
        assert!(arrival.outcome().is_some_and(|outcome| outcome.is_ok()));
        let mut word = [0; 8];
        arrived.read_at(PAGE - 8, &mut word).expect("nothing is lost");
        assert_eq!(word, [5; 8]);
    });
    assert_eq!(sent.expect("sent").owed_for, None);
}

#[test]
fn a_region_that_is_closed_while_it_arrives_leaves_nothing_to_the_next() {
    if skip_without_moves("closing a region that arrives") {
        return;
    }
    let (from, to) = (manager(Bytes::mib(32), BasePage::K64), manager(Bytes::mib(32), BasePage::K64));
    let region = from.region(REGION).create().expect("a region");
    let mut random = Random::new(1, 0);
    for offset in (0..REGION.as_usize()).step_by(8) {
        region.write_words(offset, &random.next().to_ne_bytes()).expect("written");
    }
    let options = slow_options(2, Bytes::mib(4));
    let sent = migrate_idle(&region, &to, &options, ZeroPolicy::default(), |arrived, arrival| {
        let elsewhere = any_port().endpoint().expect("an address");
        assert!(matches!(
            arrived.migrate_to(&elsewhere, &live_options(Codec::None, 1), &mut Idle, &mut |_, _| {
                ControlFlow::Continue(())
            }),
            Err(Error::Source(_))
        ));
        let place = arrived.as_ptr().addr();
        arrived.close();
        assert!(arrival.wait().is_err());
        // Most likely at the same place.
        let next = to.region(REGION).create().expect("a region");
        let mut page = [1; PAGE];
        for offset in (0..next.len()).step_by(PAGE) {
            next.read_at(offset, &mut page).expect("read");
            assert_eq!(page, [0; PAGE], "at {place:#x}, {:#x}", next.as_ptr().addr());
        }
    });
    assert!(matches!(sent, Err(Error::AfterSwitch(_))), "{sent:?}");
}

/// Sequential access gets the next pages with the same fault, where they are worth zero: owed ones
/// are not.
#[test]
fn a_window_of_first_touches_never_covers_owed_pages() {
    if skip_without_moves("reading upwards by post-copy") {
        return;
    }
    let [from, to] = [(); 2].map(|()| manager(Bytes::mib(256), BasePage::K64));
    let region = from.region(Bytes::mib(16)).create().expect("a region");
    // Between two pages of data there is always one that is not owed.
    let content = |page: usize| [(page % 251 + 1) as u8; PAGE];
    (0..region.len() / PAGE)
        .step_by(2)
        .for_each(|page| region.write_words(page * PAGE, &content(page)).expect("written"));
    let options = slow_options(1, Bytes::mib(4));
    let sent = migrate_idle(&region, &to, &options, ZeroPolicy::Drop, |arrived, arrival| {
        let mut back = [0; PAGE];
        for page in 0..arrived.len() / PAGE {
            arrived.read_at(page * PAGE, &mut back).expect("read");
            assert!(back == if page % 2 == 0 { content(page) } else { [0; PAGE] }, "page {page}");
        }
        arrival.wait().expect("all of it");
    });
    sent.expect("sent");
}
