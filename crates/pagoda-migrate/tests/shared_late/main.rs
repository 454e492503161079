//! Memory that processes share is used before all of it has arrived: `used` by readers and writers
//! at once, `lost` in part, or `refused` before the switch.

#[cfg(target_arch = "x86_64")]
mod lost;
mod refused;
#[path = "../support/mod.rs"]
mod support;
mod used;

use std::ops::ControlFlow::Continue;
use std::thread;
use std::time::Duration;

use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::random::Random;
use pagoda_migrate::{
    Counts, Endpoint, Error, Listener, LiveOptions, Moved, Otherwise, ReceiveOptions, SendOptions,
    SharedArrival, Writer,
};
use support::STALL;
use support::shared_file::{PAGE, Shared, unwritten};

const LEN: usize = 12 << 20;
const PAGES: usize = LEN / PAGE;
/// Pages that never held anything, and pages that were written with zeroes.
const HOLES: usize = 5;
const ZEROES: usize = 7;

fn options(codec: Codec, channels: u16, rounds: u32) -> LiveOptions {
    LiveOptions {
        send: SendOptions {
            channels,
            codec,
            stall: STALL,
            bandwidth: Some(Bytes::mib(64)),
            ..SendOptions::default()
        },
        downtime: Duration::ZERO,
        rounds,
        otherwise: Otherwise::PostCopy,
        slow_most_percent: 0,
    }
}

fn receive_options(zero: ZeroPolicy) -> ReceiveOptions {
    ReceiveOptions { zero, wait: STALL, stall: STALL, ..ReceiveOptions::default() }
}

/// The content of a page that the writer does not change.
fn content(page: usize) -> [u8; PAGE] {
    let mut random = Random::new(page as u64, 9);
    let mut content = [0; PAGE];
    match page {
        _ if page.is_multiple_of(HOLES) || page.is_multiple_of(ZEROES) => {}
        // One word, and many.
        _ if page.is_multiple_of(3) => content.fill(page as u8 | 1),
        _ => content.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_ne_bytes())),
    }
    content
}

fn source() -> Shared {
    let shared = Shared::new(LEN);
    (0..PAGES)
        .filter(|page| !page.is_multiple_of(HOLES))
        .for_each(|page| shared.mapping.write(page * PAGE, &content(page)));
    shared
}

/// How many pages of the source hold anything but zero.
fn with_content() -> u64 {
    (0..PAGES).filter(|page| content(*page) != [0; PAGE]).count() as u64
}

fn read(shared: &Shared, page: usize) -> [u8; PAGE] {
    let mut found = [0; PAGE];
    shared.read(page * PAGE, &mut found);
    found
}

fn check(shared: &Shared, page: usize, context: &str) {
    assert!(read(shared, page) == content(page), "{context}: page {page} is not the sent one");
}

/// Nothing writes.
struct Idle;

impl Writer for Idle {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}

type Outcome = (Result<Moved, Error>, Result<Counts, Error>);

/// Sends `from`, which is not written, to `to`, which `use_it` uses from the switch on.
fn migrate(
    from: &Shared,
    to: &Shared,
    options: &LiveOptions,
    receiving: &ReceiveOptions,
    route: impl FnOnce(Endpoint) -> Endpoint,
    use_it: impl FnOnce(SharedArrival<'_>) -> Result<Counts, Error> + Send,
) -> Outcome {
    let listener = Listener::bind(&support::any_port()).expect("a listener");
    let at = route(listener.endpoint().expect("an address"));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut memory = to.memory();
            let address = to.mapping.as_ptr();
            use_it(memory.receive_late(address, listener, receiving, &mut |_| Continue(()))?)
        });
        let sent =
            from.memory().migrate_to(&at, options, &mut unwritten(), &mut Idle, &mut |_, _| Continue(()));
        (sent, receiver.join().expect("the receiver"))
    })
}

fn rest(arrival: SharedArrival<'_>) -> Result<Counts, Error> {
    arrival.receive_rest(&mut |_| Continue(()))
}
