//! A thread that waits to be slowed down, whose page or itself is gone before its time has come.

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use pagoda::migrate::{Error, Pace};
use pagoda::{Bytes, Manager};
use pagoda_linux::testing::doomed::Doomed;
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::adopted::Mapped;
use crate::migrate::program::{Memory, PAGE};
use crate::migrate::slowed::{Deaf, PAGES, options, send, waits};

/// Pages that are unmapped at once.
const PIECE: usize = 16;

/// Threads that are ended while they wait.
const ENDED: usize = 3;

fn manager(in_thread: bool) -> Manager {
    let builder = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true);
    builder.serve_in_thread(in_thread).build().expect("a manager")
}

#[test]
fn a_page_that_is_unmapped_while_its_writer_waits_ends_the_migration_and_nothing_else() {
    if skip_without_moves("memory that is unmapped while its writer is slowed down") {
        return;
    }
    for in_thread in [false, true] {
        let context = if in_thread { "in thread" } else { "by a handler" };
        let mapped = Mapped::new(PAGES * PAGE);
        let region = mapped.adopt(&manager(in_thread));
        let mut deaf = Deaf::new(&mapped.bytes);
        // It would find zeroes.
        deaf.looks = false;
        let mut gone = None;
        let sent = thread::scope(|scope| {
            let writer = scope.spawn(|| deaf.run());
            let watch = |pace: &Pace| {
                if pace.rounds < 2 {
                    deaf.goes_round();
                }
                if pace.delayed_faults > 0 && gone.is_none() {
                    gone = deaf.waits_at().map(|page| page / PIECE * PIECE);
                    // There is fresh memory in its place at once: else its writer had to die.
                    gone.inspect(|first| mapped.renew(*first, PIECE));
                }
                ControlFlow::Continue(())
            };
            let sent = send(&region, &deaf, &options(Duration::ZERO), watch, context);
            // It runs on, through what there is now.
            deaf.goes_round();
            deaf.halt();
            writer.join().expect("the writer");
            sent
        });
        let first = gone.unwrap_or_else(|| panic!("{context}: no write waited; {sent:?}"));
        let is_told = matches!(&sent, Err(Error::Source(error)) if error.to_string().contains("unmapped"));
        assert!(is_told, "{context}: {sent:?}");
        let check = |when: &str| {
            let mut found = [0; PAGE];
            for page in 0..PAGES {
                mapped.bytes.read(page * PAGE, &mut found);
                let is_fresh = (first..first + PIECE).contains(&page);
                for (at, word) in found.as_chunks().0.iter().enumerate() {
                    let wanted = if is_fresh && at > 0 { 0 } else { deaf.word(page, at) };
                    assert_eq!(u64::from_ne_bytes(*word), wanted, "{context}, {when}: {at} of {page}");
                }
            }
            mapped.check_beside(when);
        };
        check("managed");
        drop(region);
        check("given back");
    }
}

#[test]
fn a_thread_that_ends_while_it_waits_is_waited_for_by_nothing() {
    if skip_without_moves("threads that end while they are slowed down") {
        return;
    }
    let mapped = Mapped::new(PAGES * PAGE);
    let region = mapped.adopt(&manager(false));
    let deaf = Deaf::new(&mapped.bytes);
    let mut ended = 0;
    let sent = thread::scope(|scope| {
        let writer = scope.spawn(|| deaf.run());
        let watch = |pace: &Pace| {
            if pace.rounds < 2 {
                deaf.goes_round();
            }
            if pace.delayed_faults > 0 && ended < ENDED {
                let doomed = Doomed::start(mapped.other_bytes()).expect("started");
                ended += usize::from(waits(|| Some(doomed.is_at())).is_some());
            }
            ControlFlow::Continue(())
        };
        let sent = send(&region, &deaf, &options(Duration::from_millis(100)), watch, "ended");
        deaf.halt();
        writer.join().expect("the writer");
        sent
    });
    sent.unwrap_or_else(|error| panic!("{ended} ended: {error}"));
    assert!(ended > 0, "none waited");
    deaf.check(&mapped.bytes, "at the source");
    drop(region);
    deaf.check(&mapped.bytes, "given back");
}
