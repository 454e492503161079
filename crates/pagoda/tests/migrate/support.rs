//! Shared by the tests: managers, options, and both ends of a migration in one process.

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use pagoda::migrate::{
    Arrival, Codec, Counts, Endpoint, Error, Event, Listener, LiveOptions, Moved, Otherwise, ReceiveOptions,
    SendOptions, ZeroPolicy,
};
use pagoda::{BasePage, Bytes, Managed, Manager, Region};
use pagoda_linux::testing::length::is_long;

use crate::migrate::program::{Brake, Idle, Program};

/// Long enough for a busy machine where nothing should stall.
pub const STALL: Duration = Duration::from_secs(20);

/// Runs at a time of a test whose runs wait for silent lines most of their time.
pub const AT_ONCE: usize = 3;

/// How long a side that is killed is waited for.
const RECOVER_FOR: Duration = Duration::from_millis(300);

pub fn manager(budget: Bytes, base: BasePage) -> Manager {
    let builder = Manager::builder().budget(budget).base_page(base).user_mode_only(true);
    builder.spill_to("/var/tmp", Bytes::gib(1)).build().expect("a manager")
}

pub fn live_options(codec: Codec, channels: u16) -> LiveOptions {
    LiveOptions {
        send: SendOptions {
            channels,
            codec,
            stall: STALL,
            recover_for: RECOVER_FOR,
            ..SendOptions::default()
        },
        downtime: Duration::from_millis(5),
        rounds: 6,
        otherwise: Otherwise::StopForLonger,
        slow_most_percent: LiveOptions::SLOW_MOST_PERCENT,
    }
}

/// The remainder after `rounds` rounds is owed.
pub fn late_options(codec: Codec, channels: u16, rounds: u32) -> LiveOptions {
    LiveOptions {
        downtime: Duration::ZERO,
        rounds,
        otherwise: Otherwise::PostCopy,
        ..live_options(codec, channels)
    }
}

/// All is owed, and comes so slowly that most of it is waited for.
pub fn slow_options(channels: u16, per_s: Bytes) -> LiveOptions {
    let mut options = late_options(Codec::None, channels, 0);
    options.send.bandwidth = Some(per_s);
    // A stripe's turn takes long over such a line.
    options.send.stall = Duration::from_secs(60);
    options
}

pub fn receive_options(zero: ZeroPolicy) -> ReceiveOptions {
    ReceiveOptions {
        zero,
        image_most: Bytes::gib(4),
        wait: STALL,
        stall: STALL,
        recover_for: RECOVER_FOR,
        ..ReceiveOptions::default()
    }
}

pub fn any_port() -> Listener {
    Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a listener")
}

/// The zero policy and the number of channels of each migration with the base page and the codec at
/// these positions. The long form has all combinations, the normal one each pair of base page,
/// codec and zero policy.
pub fn combinations(base: usize, codec: usize, channels: &[u16]) -> Vec<(ZeroPolicy, u16)> {
    if is_long() {
        return ZeroPolicy::ALL
            .into_iter()
            .flat_map(|zero| channels.iter().map(move |&n| (zero, n)))
            .collect();
    }
    let zero = ZeroPolicy::ALL[(base + codec) % ZeroPolicy::ALL.len()];
    vec![(zero, channels[(base + 2 * codec) % channels.len()])]
}

pub fn no_peer_is_refused(event: Event<'_>) -> ControlFlow<()> {
    match event {
        Event::Turned(error) => panic!("turned away: {error}"),
        _ => ControlFlow::Continue(()),
    }
}

/// The outcome of a migration.
pub type Outcome = (Result<Moved, Error>, Result<(Region, Counts), Error>);

/// Moves a region from `program`, which runs until it is stopped, to a manager of this process,
/// over `route` of the listener's address.
pub fn migrate(
    region: &Managed,
    program: &mut Program<'_>,
    to: &Manager,
    options: &LiveOptions,
    receiving: &ReceiveOptions,
    route: impl FnOnce(Endpoint) -> Endpoint,
) -> Outcome {
    let receive = |listener| Region::receive(to, listener, receiving, &mut no_peer_is_refused);
    migrate_by(region, program, options, route, receive)
}

/// The same to anything that `receive` receives into.
pub fn migrate_by<R: Send>(
    region: &Managed,
    program: &mut Program<'_>,
    options: &LiveOptions,
    route: impl FnOnce(Endpoint) -> Endpoint,
    receive: impl FnOnce(Listener) -> R + Send,
) -> (Result<Moved, Error>, R) {
    let listener = any_port();
    let at = route(listener.endpoint().expect("an address"));
    let brake = Brake::default();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(listener));
        let writer = scope.spawn(|| brake.run(program));
        let sent = region.migrate_to(&at, options, &mut &brake, &mut |_, _| ControlFlow::Continue(()));
        brake.stop();
        writer.join().expect("the program");
        (sent, receiver.join().expect("the receiver"))
    })
}

/// Receives a region that `send` sends to its address, and lets `use_it` have it as soon as it is
/// shown. Returns the outcome of sending.
pub fn use_early<T: Send>(
    to: &Manager,
    receiving: &ReceiveOptions,
    send: impl FnOnce(&Endpoint) -> T + Send,
    use_it: impl FnOnce(Region, Arrival),
) -> T {
    use_early_by(send, |listener| {
        let received = Region::receive_late(to, listener, receiving, &mut no_peer_is_refused);
        let (arrived, arrival) = received.expect("received");
        use_it(arrived, arrival);
    })
}

/// The same with a receiver of any kind.
pub fn use_early_by<T: Send>(
    send: impl FnOnce(&Endpoint) -> T + Send,
    receive_and_use: impl FnOnce(Listener),
) -> T {
    let listener = any_port();
    let at = listener.endpoint().expect("an address");
    thread::scope(|scope| {
        let sender = scope.spawn(move || send(&at));
        receive_and_use(listener);
        sender.join().expect("the sender")
    })
}

/// Moves a region from `program`, which runs until it is stopped, and lets `use_it` have it with
/// the program's writes as soon as it is shown.
pub fn migrate_late(
    region: &Managed,
    program: Program<'_>,
    to: &Manager,
    options: &LiveOptions,
    receiving: &ReceiveOptions,
    use_it: impl FnOnce(Region, Arrival, &[u64]),
) -> Moved {
    migrate_late_by(region, program, options, |listener, shadow| {
        let received = Region::receive_late(to, listener, receiving, &mut no_peer_is_refused);
        let (arrived, arrival) = received.expect("received");
        use_it(arrived, arrival, &shadow());
    })
}

/// The same with a receiver of any kind, which is told the program's writes when it wants them.
pub fn migrate_late_by(
    region: &Managed,
    mut program: Program<'_>,
    options: &LiveOptions,
    receive_and_use: impl FnOnce(Listener, Box<dyn FnOnce() -> Vec<u64> + '_>),
) -> Moved {
    let brake = Brake::default();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            brake.run(&mut program);
            program.shadow
        });
        let send = |at: &Endpoint| {
            let sent = region.migrate_to(at, options, &mut &brake, &mut |_, _| ControlFlow::Continue(()));
            brake.stop();
            sent
        };
        let shadow = Box::new(|| writer.join().expect("the program"));
        use_early_by(send, |listener| receive_and_use(listener, shadow)).expect("sent")
    })
}

/// The same of a region that is not written.
pub fn migrate_idle(
    region: &Managed,
    to: &Manager,
    options: &LiveOptions,
    zero: ZeroPolicy,
    use_it: impl FnOnce(Region, Arrival),
) -> Result<Moved, Error> {
    let send =
        |at: &Endpoint| region.migrate_to(at, options, &mut Idle, &mut |_, _| ControlFlow::Continue(()));
    use_early(to, &receive_options(zero), send, use_it)
}
