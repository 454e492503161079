//! Adopted memory that can't be sent or received into: it is refused with a reason, before a byte
//! of it has changed.

use std::ops::ControlFlow;
use std::thread;

use pagoda::migrate::{Codec, Error, ZeroPolicy};
use pagoda::{AdoptedRegion, BasePage, Bytes, Manager};
use pagoda_linux::testing::area::{Area, Rights};
use pagoda_linux::testing::foreign::Foreign;
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::adopted::Mapped;
use crate::migrate::program::{Idle, Memory, PAGE, Program};
use crate::migrate::support::{
    any_port, live_options, manager, migrate_by, no_peer_is_refused, receive_options,
};

const PAGES: usize = 96;

fn own_manager() -> Manager {
    manager(Bytes::mib(32), BasePage::K64)
}

/// The reasons of the sender and of the receiver, where a region of so many pages is received into
/// `target`, by post-copy or not.
fn reasons(pages: usize, target: &mut AdoptedRegion, late: bool) -> (String, String) {
    let manager = own_manager();
    let source = Mapped::new(pages * PAGE);
    let region = source.adopt(&manager);
    let mut program = Program::new(&source.bytes, 1);
    program.fill();
    let receiving = receive_options(ZeroPolicy::default());
    let receive = |listener| match late {
        true => target.receive_late(listener, &receiving, &mut no_peer_is_refused).err(),
        false => target.receive(listener, &receiving, &mut no_peer_is_refused).err(),
    };
    let (sent, received) = migrate_by(&region, &mut program, &live_options(Codec::Lz4, 2), |to| to, receive);
    assert_eq!(program.differs(&source.bytes), None, "the source");
    (sent.expect_err("refused").to_string(), received.expect("refused").to_string())
}

#[test]
fn memory_of_another_length_is_refused_as_it_is() {
    if skip_without_moves("lengths of adopted memory") {
        return;
    }
    let manager = own_manager();
    for (pages, late) in [(PAGES - 1, false), (PAGES + 1, true), (PAGES * 2, false), (16, true)] {
        let mapped = Mapped::used(PAGES * PAGE);
        let mut target = mapped.adopt(&manager);
        target.page_out(0, 10 * PAGE).expect("stored");
        let (sender, receiver) = reasons(pages, &mut target, late);
        let len = Bytes::new((PAGES * PAGE) as u64).to_string();
        assert!(receiver.contains(&len) && receiver.contains("adopt as much as is sent"), "{receiver}");
        assert!(!sender.is_empty() && !sender.contains('\n'), "{sender}");
        assert_eq!(mapped.pages_of(0xe7), PAGES, "{pages} pages");
        drop(target);
        assert_eq!(mapped.pages_of(0xe7), PAGES, "{pages} pages, given back");
    }
}

#[test]
fn memory_that_is_closed_or_not_allowed_is_refused_as_it_is() {
    if skip_without_moves("adopted memory that can't move") {
        return;
    }
    let manager = own_manager();
    let mapped = Mapped::used(PAGES * PAGE);
    let mut region = mapped.adopt(&manager);
    let area = Area::of_region(region.as_ptr(), PAGES);
    let send = |region: &AdoptedRegion| {
        // The listener there accepts nothing.
        let at = any_port().endpoint().expect("an address");
        let options = live_options(Codec::None, 1);
        let sent = region.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(()));
        sent.expect_err("refused")
    };
    area.protect(40..41, Rights::None).expect("protected");
    let error = send(&region);
    assert!(matches!(error, Error::Source(_)) && error.to_string().contains("may not be read"), "{error}");
    area.protect(40..41, Rights::Read).expect("protected");
    let (_, receiver) = reasons(PAGES, &mut region, false);
    assert!(receiver.contains("private anonymous") && receiver.contains("160 KiB"), "{receiver}");
    area.protect(40..41, Rights::Write).expect("protected");
    assert_eq!(mapped.pages_of(0xe7), PAGES);
    // Nothing more is wrong with it.
    let (source, listener) = (Mapped::new(PAGES * PAGE), any_port());
    let from = own_manager();
    let (sender, at) = (source.adopt(&from), listener.endpoint().expect("an address"));
    thread::scope(|scope| {
        let receiving = receive_options(ZeroPolicy::default());
        let receiver =
            scope.spawn(move || region.receive(listener, &receiving, &mut no_peer_is_refused).map(drop));
        let options = live_options(Codec::None, 1);
        let sent = sender.migrate_to(&at, &options, &mut Idle, &mut |_, _| ControlFlow::Continue(()));
        sent.expect("sent");
        receiver.join().expect("no panic").expect("received");
    });
    assert_eq!(mapped.pages_of(0), PAGES);
    // Its owner has said nothing of the manager's reading and writing it.
    let foreign = Foreign::private(PAGES).expect("memory");
    let mut region = manager.adopt(foreign.give(0..PAGES)).expect("adopted");
    let receiving = receive_options(ZeroPolicy::default());
    let received = region.receive(any_port(), &receiving, &mut no_peer_is_refused);
    for error in [send(&region), received.expect_err("refused")] {
        assert!(error.to_string().contains("ForeignMemory::movable"), "{error}");
    }
}

/// As a sender that is late, or none.
#[test]
fn memory_to_which_no_sender_comes_keeps_its_content() {
    if skip_without_moves("waiting with adopted memory") {
        return;
    }
    let manager = own_manager();
    let mapped = Mapped::used(PAGES * PAGE);
    let mut region = mapped.adopt(&manager);
    let mut receiving = receive_options(ZeroPolicy::default());
    receiving.wait = std::time::Duration::from_millis(50);
    assert!(region.receive(any_port(), &receiving, &mut no_peer_is_refused).is_err());
    assert!(region.receive_late(any_port(), &receiving, &mut no_peer_is_refused).is_err());
    drop(region);
    assert_eq!(mapped.pages_of(0xe7), PAGES);
    let mut page = [0; PAGE];
    mapped.bytes.read((PAGES - 1) * PAGE, &mut page);
    assert_eq!(page, [0xe7; PAGE]);
}
