//! Regions and shared memory speak the same: a memfd is sent to a region and back, and a region
//! goes on before all of a memfd has arrived.

use std::ops::ControlFlow::Continue;
use std::sync::Mutex;
use std::thread;

use pagoda::migrate::{Codec, Endpoint, Error, LiveOptions, Moved, SharedMemory, ZeroPolicy};
use pagoda::{BasePage, Bytes, Region};
use pagoda_linux::testing::random::runs;
use pagoda_linux::testing::skip::skip_without_moves;

use crate::migrate::program::{Brake, Memory, Program};
use crate::migrate::shared_file::{LEN, Shared};
use crate::migrate::support::{
    any_port, late_options, live_options, manager, migrate_by, no_peer_is_refused, receive_options, use_early,
};

impl Memory for Shared {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }
    fn at(&self) -> *const u8 {
        self.mapping.as_ptr()
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        Self::read(self, offset, into);
    }
    fn write(&self, offset: usize, words: &[u8]) {
        Self::write(self, offset, words);
    }
    fn discard(&self, offset: usize, len: usize) {
        Self::discard(self, offset, len);
    }
}

/// Sends shared memory while `program` writes it.
fn send(
    memory: &SharedMemory,
    from: &Shared,
    program: &Mutex<Program<'_>>,
    to: &Endpoint,
    options: &LiveOptions,
) -> Result<Moved, Error> {
    let brake = Brake::default();
    thread::scope(|scope| {
        let writer = scope.spawn(|| brake.run(&mut program.lock().expect("no panic")));
        let sent = memory.migrate_to(to, options, &mut &*from, &mut &brake, &mut |_, _| Continue(()));
        brake.stop();
        writer.join().expect("the program");
        sent
    })
}

#[test]
fn shared_memory_goes_to_a_region_and_back() {
    if skip_without_moves("migration between regions and shared memory") {
        return;
    }
    for seed in runs(2) {
        let here = manager(Bytes::mib(16), BasePage::K64);
        let (options, receiving) = (live_options(Codec::Lz4, 2), receive_options(ZeroPolicy::Drop));
        let from = Shared::new(LEN);
        let mut program = Program::new(&from, seed);
        program.fill();
        let program = Mutex::new(program);
        let listener = any_port();
        let at = listener.endpoint().expect("an address");
        let (sent, received) = thread::scope(|scope| {
            let receiver =
                scope.spawn(|| Region::receive(&here, listener, &receiving, &mut no_peer_is_refused));
            let sent = send(&from.memory(), &from, &program, &at, &options);
            (sent, receiver.join().expect("the receiver"))
        });
        sent.expect("sent");
        let (region, _) = received.expect("received");
        let program = program.into_inner().expect("no panic");
        assert_eq!(program.differs(&region), None, "seed {seed}: in a region");

        let to = Shared::used(LEN);
        let mut program = Program::go_on(&region, &program.shadow, LEN, seed + 1);
        let back = |listener| to.memory().receive(listener, &receiving, &mut no_peer_is_refused);
        let (sent, received) = migrate_by(&region, &mut program, &options, |at| at, back);
        sent.expect("sent");
        received.expect("received");
        assert_eq!(program.differs(&to), None, "seed {seed}: back again");
        to.check_beside("back again");
    }
}

#[test]
fn a_region_goes_on_before_all_of_the_shared_memory_has_arrived() {
    if skip_without_moves("post-copy of shared memory") {
        return;
    }
    for rounds in [0, 1] {
        let here = manager(Bytes::mib(64), BasePage::K64);
        let from = Shared::new(LEN);
        let mut program = Program::new(&from, 7);
        program.fill();
        let program = Mutex::new(program);
        let (options, receiving) = (late_options(Codec::None, 2, rounds), receive_options(ZeroPolicy::Drop));
        let sends = |at: &Endpoint| send(&from.memory(), &from, &program, at, &options);
        let sent = use_early(&here, &receiving, sends, |region, arrival| {
            let program = program.lock().expect("no panic");
            assert_eq!(program.differs(&region), None, "{rounds} rounds: while it arrives");
            arrival.wait().expect("arrived");
        });
        let moved = sent.expect("sent");
        assert!(rounds > 0 || moved.owed_for.is_some(), "all pages were owed: {moved:?}");
    }
}
