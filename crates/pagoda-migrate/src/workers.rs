//! The threads of a migration: one for each channel, and the caller's, which looks at them ten
//! times a second.
//!
//! When one fails or panics, closing the others' connections ends them; none is left behind, and
//! the error closest to the cause is returned. There is no queue but for the results: one for each
//! thread.

use std::net::Shutdown;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::net::socket::Closer;

/// How often the caller is asked whether to continue.
const LOOK: Duration = Duration::from_millis(100);

/// How long the other channels of a crew that hurries may hear a reason once one has failed. A line
/// that is silent tells none, and would be waited for as long as a stall.
const REASON: Duration = Duration::from_secs(1);

/// The state that the threads share, of all crews of a migration.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    stop: AtomicBool,
    cancelled: AtomicBool,
    hurries: AtomicBool,
}

impl Orders {
    /// Whether to stop as soon as possible, because another thread has failed or the user wants it.
    pub(crate) fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
    /// From now on a channel is not waited for as long as a stall once another one has failed: all
    /// are to be connected once more.
    pub(crate) fn hurry(&self) {
        self.hurries.store(true, Ordering::Relaxed);
    }
    /// Whether the user cancelled it.
    pub(crate) fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Runs the tasks, each in a thread of its own, until all have ended. The results are in the order
/// of the tasks.
///
/// After a failure the connections' `end` is closed, and no further crew of these orders gets far.
/// A task that waits for anything else must wait in steps, and check its orders.
pub(crate) fn run<T: Send>(
    orders: &Orders,
    tasks: Vec<impl FnOnce() -> Result<T, Error> + Send>,
    closers: &[Closer],
    end: Shutdown,
    watch: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<T>, Error> {
    let count = tasks.len();
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let mut failed: Option<Error> = None;
    let mut failed_at: Option<Instant> = None;
    thread::scope(|scope| {
        let (ended, all_ended) = sync_channel(count);
        let mut running = 0;
        for (index, task) in tasks.into_iter().enumerate() {
            let ended = ended.clone();
            let body = move || {
                let alarm = Alarm { orders, closers, end };
                let result = task();
                std::mem::forget(alarm);
                let _ = ended.send((index, result));
            };
            match thread::Builder::new().name(format!("channel-{index}")).spawn_scoped(scope, body) {
                Ok(_) => running += 1,
                Err(error) => {
                    fail(&mut failed, Error::System(error), orders, closers, end);
                    break;
                }
            }
        }
        drop(ended);
        while running > 0 {
            match all_ended.recv_timeout(LOOK) {
                Ok((index, result)) => {
                    running -= 1;
                    match result {
                        Ok(value) => results[index] = Some(value),
                        Err(error) => fail(&mut failed, error, orders, closers, end),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let hurries = failed.is_some() && orders.hurries.load(Ordering::Relaxed);
                    if hurries && failed_at.get_or_insert_with(Instant::now).elapsed() > REASON {
                        stop(orders, closers, Shutdown::Both);
                    }
                    if !orders.cancelled() && watch().is_break() {
                        orders.cancelled.store(true, Ordering::Relaxed);
                        // A sender that ends by itself sends nothing more; a receiver still sends
                        // its reason.
                        let end = if end == Shutdown::Write { Shutdown::Both } else { end };
                        fail(&mut failed, Error::Cancelled, orders, closers, end);
                    }
                }
                // A thread has panicked, and raised the alarm; the scope passes it on.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

fn fail(failed: &mut Option<Error>, error: Error, orders: &Orders, closers: &[Closer], end: Shutdown) {
    if failed.as_ref().is_none_or(|known| error.tells() > known.tells()) {
        *failed = Some(error);
    }
    stop(orders, closers, end);
}

fn stop(orders: &Orders, closers: &[Closer], end: Shutdown) {
    orders.stop.store(true, Ordering::Relaxed);
    closers.iter().for_each(|closer| closer.close(end));
}

/// Stops the others when its thread panics: they may wait for work that the thread does not do any
/// more.
struct Alarm<'a> {
    orders: &'a Orders,
    closers: &'a [Closer],
    end: Shutdown,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        stop(self.orders, self.closers, self.end);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc::channel;

    use super::*;

    /// How often the one that waits looks before it gives up: 20 s.
    const LOOKS: u32 = 20_000;

    #[test]
    fn a_channel_that_panics_ends_the_others_and_is_passed_on() {
        let (orders, looks) = (Orders::default(), AtomicU32::new(0));
        let wait = || -> Result<(), Error> {
            while !orders.stop() && looks.fetch_add(1, Ordering::Relaxed) < LOOKS {
                thread::sleep(Duration::from_millis(1));
            }
            Err(Error::Cancelled)
        };
        type Task<'a> = Box<dyn FnOnce() -> Result<(), Error> + Send + 'a>;
        let tasks: Vec<Task<'_>> = vec![Box::new(wait), Box::new(|| panic!("a channel of this test"))];
        let mut look = || ControlFlow::Continue(());
        let ran =
            catch_unwind(AssertUnwindSafe(|| run(&orders, tasks, &[], Shutdown::Write, &mut look).is_ok()));
        assert!(ran.is_err(), "the panic is lost");
        assert!(looks.load(Ordering::Relaxed) < LOOKS, "the other channel was not told");
    }

    #[test]
    fn a_channel_that_panics_ends_a_wait_on_a_connection() {
        let (listener, to) = crate::testing::listen();
        let long = Duration::from_secs(20);
        let mut connected = crate::net::socket::Socket::connect(&to, long, long).expect("connected");
        let _peer = listener.accept(long, long).expect("looked").expect("a connection");
        let closers = [connected.closer().expect("a handle")];
        let orders = Orders::default();
        let (heard, is_heard) = channel();
        let wait = || {
            let read = std::io::Read::read(&mut connected, &mut [0]);
            heard.send(read.map_err(|error| error.kind())).map_err(|_| Error::Cancelled)
        };
        type Task<'a> = Box<dyn FnOnce() -> Result<(), Error> + Send + 'a>;
        let tasks: Vec<Task<'_>> = vec![Box::new(wait), Box::new(|| panic!("a channel of this test"))];
        let mut look = || ControlFlow::Continue(());
        let ran = catch_unwind(AssertUnwindSafe(|| {
            run(&orders, tasks, &closers, Shutdown::Read, &mut look).is_ok()
        }));
        assert!(ran.is_err(), "the panic is lost");
        // Its end, and not that nothing came for as long as it waits.
        assert_eq!(is_heard.recv(), Ok(Ok(0)));
    }
}
