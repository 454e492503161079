//! Moving a region to another process or host, and receiving one.
//!
//! This module must never tell of success before the other side has confirmed all of it.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::time::Duration;

use pagoda::Bytes;
use pagoda::migrate::{
    Endpoint, Error as Moving, Listener, LiveOptions, Otherwise, ReceiveOptions, SendOptions, Token, Writer,
};

use crate::error::{Code, Error, Failure, call, call_on, hand_out, shared, string};
use crate::image::{WriterHook, run};
use crate::manager::Manager;
use crate::region::Region;

/// Rounds after which the writers are stopped, however much is left.
const ROUNDS: u32 = 30;

struct Writers {
    stop: WriterHook,
    user: *mut c_void,
}

impl Writer for Writers {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        // SAFETY: the caller of `pagoda_region_send` vouches for the hook during that call, which
        // this is a part of, on its thread.
        unsafe { run(self.stop, self.user) }
    }
}

fn of_move(error: Moving) -> Failure {
    let code = match error {
        Moving::Unconfirmed | Moving::AfterSwitch(_) => Code::Unconfirmed,
        _ => Code::Migration,
    };
    Failure::new(code, error)
}

/// # Safety
/// Both are strings or null.
unsafe fn parsed(address: *const c_char, token: *const c_char) -> Result<(Endpoint, Option<Token>), Failure> {
    // SAFETY: this function's contract.
    let address = unsafe { string(address, "address") }?.to_string_lossy();
    let endpoint = address.parse().map_err(|error| Failure::new(Code::Argument, error))?;
    if token.is_null() {
        return Ok((endpoint, None));
    }
    // SAFETY: this function's contract.
    let token = Token::new(unsafe { string(token, "token") }?.to_bytes());
    Ok((endpoint, Some(token.map_err(|error| Failure::new(Code::Argument, error))?)))
}

/// Sends a region to a pagoda_region_receive at `address`, like "tcp://10.0.0.2:7000" or
/// "unix:///run/x", while it is written: in rounds, and in the end, with its writers stopped, the
/// rest. `stop` is called once: when it has returned no thread writes to the region until this call
/// has returned. They may go on then unless the code is PAGODA_CODE_OK or PAGODA_CODE_UNCONFIRMED:
/// the other side has the region, or may have it. `downtime_ms` is how long they may stand still,
/// as far as it can be predicted. Threads that write faster than the region is sent are slowed down
/// meanwhile, to a tenth of their time at least: some of their page faults wait, 10 ms each at
/// most, those of reads among them. `token` is null, or what the receiver demands, of 16 bytes at
/// least. It encrypts nothing: between hosts use a network that you trust.
///
/// # Safety
/// `region` is a handle or null, `address` and `token` are strings or null; `stop` may be called
/// with `user` during the call, and must not unwind; `error` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_send(
    region: *const Region,
    address: *const c_char,
    token: *const c_char,
    downtime_ms: u32,
    stop: WriterHook,
    user: *mut c_void,
    error: *mut Error,
) -> Code {
    let body = |Region(region): &Region| {
        // SAFETY: the caller keeps the strings unchanged during the call.
        let (to, token) = unsafe { parsed(address, token) }?;
        let options = LiveOptions {
            send: SendOptions { token, ..SendOptions::default() },
            downtime: Duration::from_millis(downtime_ms.into()),
            rounds: ROUNDS,
            otherwise: Otherwise::StopForLonger,
            slow_most_percent: LiveOptions::SLOW_MOST_PERCENT,
        };
        let mut writers = Writers { stop, user };
        let watch = &mut |_: &_, _: &_| ControlFlow::Continue(());
        region.migrate_to(&to, &options, &mut writers, watch).map(drop).map_err(of_move)
    };
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on(region, "region", error, body) }
}

/// Waits at `address` for a pagoda_region_send, `wait_ms` at most, and receives its region, of
/// `bytes_most` at most. It is there when all of it has arrived. Only a sender with the same
/// `token` is admitted; null admits any that reaches the address.
///
/// # Safety
/// `manager` is a handle or null, `address` and `token` are strings or null, `region` is valid for
/// a write or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_region_receive(
    manager: *const Manager,
    address: *const c_char,
    token: *const c_char,
    bytes_most: u64,
    wait_ms: u32,
    region: *mut *mut Region,
    error: *mut Error,
) -> Code {
    let make = || {
        // SAFETY: the caller keeps the handle open and the strings unchanged during the call.
        let (manager, (at, token)) = unsafe { (shared(manager, "manager")?, parsed(address, token)?) };
        let listener = Listener::bind(&at).map_err(|error| {
            Failure::new(Code::Migration, format!("could not listen at {at} ({error}); give a free address"))
        })?;
        let options = ReceiveOptions {
            token,
            image_most: Bytes::new(bytes_most),
            wait: Duration::from_millis(wait_ms.into()),
            ..ReceiveOptions::default()
        };
        let watch = &mut |_: pagoda::migrate::Event<'_>| ControlFlow::Continue(());
        let received = pagoda::Region::receive(&manager.0, listener, &options, watch);
        received.map(|(region, _)| Region(region)).map_err(of_move)
    };
    // SAFETY: the caller vouches for `error` and `region`.
    unsafe { call(error, || hand_out(region, make)) }
}
