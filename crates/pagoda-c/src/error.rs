//! Errors as values: a code, and a message in the caller's memory.
//!
//! This module must never let a panic through to C, and never write beyond the message.

use std::any::Any;
use std::ffi::{CStr, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pagoda::OtherProcess;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Code {
    /// All is well.
    Ok = 0,
    /// An argument was null, beyond the end, or else not to be used.
    Argument = 1,
    /// The manager could not start.
    Start = 2,
    /// The memory could not be had or managed.
    Memory = 3,
    /// A part of the region could not be read or written.
    Access = 4,
    /// The budget could not be changed.
    Budget = 5,
    /// The content could not be stored.
    Store = 6,
    /// The file could not be mapped, read, written or synced.
    File = 7,
    /// The handle is of the process that this one was forked from.
    OtherProcess = 8,
    /// The library is at fault; the handle may only be closed.
    Bug = 9,
    /// The image could not be written or read, or is damaged; or the region was written meanwhile.
    Image = 10,
    /// The region could not be sent or received; the writers may go on.
    Migration = 11,
    /// The other side may have the region, or parts of it nowhere else: the writers may not go on.
    Unconfirmed = 12,
}

/// Bytes of a message with its end: longer than any of ours but for paths.
pub const MESSAGE_BYTES: usize = 512;

/// An error: what was tried, what happened, and what to do. It needs no freeing.
#[derive(Debug)]
#[repr(C)]
pub struct Error {
    /// What the call returned, too.
    pub code: Code,
    /// In UTF-8, with a 0 at its end; cut off where it is too long. Empty if all is well.
    pub message: [c_char; MESSAGE_BYTES],
}

/// A failure on its way to the caller.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    message: String,
}

impl Failure {
    /// A failure with the message of the library's error.
    pub fn new(code: Code, message: impl ToString) -> Self {
        Self { code, message: message.to_string() }
    }

    /// A failure of the named argument.
    pub fn argument(name: &str, wrong: &str) -> Self {
        Self::new(Code::Argument, format!("{name} {wrong}"))
    }

    /// A failure of the named handle, which is null.
    pub fn null_handle(name: &str) -> Self {
        Self::argument(name, "is null; give a handle")
    }

    /// A failure to give memory back to the kernel.
    pub fn giving_back(tried: &str, error: io::Error, advice: &str) -> Self {
        match error.downcast::<OtherProcess>() {
            Ok(error) => Self::new(Code::OtherProcess, error),
            Err(error) => Self::new(Code::Memory, format!("{tried} ({error}); {advice}")),
        }
    }
}

/// Runs the body of a call, and tells the caller how it ended.
///
/// # Safety
/// `error` is null, or valid for a write of an [`Error`].
pub unsafe fn call(error: *mut Error, body: impl FnOnce() -> Result<(), Failure>) -> Code {
    // After a panic a handle may be in any state that is safe to drop: `Code::Bug` tells the caller
    // to close it, so that no broken invariant is seen.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Failure::new(Code::Ok, ""),
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(Code::Bug, format!("{}; please report this", message_of(&*panic))),
    };
    if !error.is_null() {
        // SAFETY: it is not null, so that by this function's contract it is valid for a write.
        unsafe { error.write(Error { code: failure.code, message: message(&failure.message) }) };
    }
    failure.code
}

/// Runs the body of a call that only reads its handle, and tells the caller how it ended.
///
/// # Safety
/// As for [`shared`] and [`call`].
pub unsafe fn call_on<T>(
    handle: *const T,
    name: &str,
    error: *mut Error,
    body: impl FnOnce(&T) -> Result<(), Failure>,
) -> Code {
    // SAFETY: this function's contract is that of both calls. The handle is not used after the
    // body, during which its caller keeps it open.
    unsafe { call(error, || body(shared(handle, name)?)) }
}

/// Runs the body of a call that changes the object of its handle, and tells the caller how it
/// ended.
///
/// # Safety
/// As for [`call_on`], and no other call uses the handle meanwhile.
pub unsafe fn call_alone<T>(
    handle: *mut T,
    name: &str,
    error: *mut Error,
    body: impl FnOnce(&mut T) -> Result<(), Failure>,
) -> Code {
    // SAFETY: the handle is null or one of ours, and no other call has a reference to it meanwhile.
    let body = || body(unsafe { handle.as_mut() }.ok_or_else(|| Failure::null_handle(name))?);
    // SAFETY: `error` is null or valid for a write.
    unsafe { call(error, body) }
}

/// Drops the object of a handle. A panic of the destructor does not reach the caller.
pub fn drop_quietly<T>(value: T) {
    // There is no code to return: the handle is closed either way.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the library failed")
}

fn message(text: &str) -> [c_char; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    let end = text.floor_char_boundary(MESSAGE_BYTES - 1);
    let bytes = text.as_bytes()[..end].iter().map(|byte| if *byte == 0 { b'?' } else { *byte });
    for (to, byte) in message.iter_mut().zip(bytes) {
        *to = byte as c_char;
    }
    message
}

/// The object of a handle, to be read.
///
/// # Safety
/// `handle` is null, or one of ours that is not closed as long as the result is used.
pub unsafe fn shared<'a, T>(handle: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: a handle of ours points to a box of `hand_out`, which lives until it is closed.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::null_handle(name))
}

/// Writes a result to the caller's memory.
///
/// # Safety
/// `to` is null, or valid for a write.
pub unsafe fn put<T>(to: *mut T, name: &str, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::argument(name, "is null; give an address"));
    }
    // SAFETY: it is not null, so that by this function's contract it is valid for a write.
    unsafe { to.write(value) };
    Ok(())
}

/// Makes a handle, and writes it to the caller's memory: null if making it fails, so that a caller
/// that ignores the code has no stale handle.
///
/// # Safety
/// `to` is null, or valid for a write of a pointer.
pub unsafe fn hand_out<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
    let name = "the place for the handle";
    // SAFETY: this function's contract is that of `put`.
    unsafe { put(to, name, std::ptr::null_mut()) }?;
    let handle = Box::into_raw(Box::new(make()?));
    // SAFETY: as above.
    unsafe { put(to, name, handle) }
}

/// Takes a handle back from the caller, to close it.
///
/// # Safety
/// `handle` is null, or one of ours that is not used again.
pub unsafe fn take_back<T>(handle: *mut T) -> Option<T> {
    // SAFETY: a handle of ours comes from a box of `hand_out`. It is not used again, so that it is
    // taken back once and no reference to it is left.
    (!handle.is_null()).then(|| *unsafe { Box::from_raw(handle) })
}

/// A string of the caller's.
///
/// # Safety
/// `text` is null, or ends with a 0 and is not changed meanwhile.
pub unsafe fn string<'a>(text: *const c_char, name: &str) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(Failure::argument(name, "is null; give a string"));
    }
    // SAFETY: it is not null, so that by this function's contract it ends with a 0 and stays as it
    // is as long as the result is used.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Whether `bytes` from `offset` on lie within `len`.
pub fn check_part(offset: usize, bytes: usize, len: usize) -> Result<(), Failure> {
    match offset.checked_add(bytes).filter(|end| *end <= len) {
        Some(_) => Ok(()),
        None => Err(Failure::argument(
            "the part",
            &format!("reaches beyond the end: {bytes} bytes at {offset} of {len}; give less"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(body: impl FnOnce() -> Result<(), Failure>) -> (Code, String) {
        let mut error = Error { code: Code::Bug, message: [1; MESSAGE_BYTES] };
        // SAFETY: `error` is a local value, valid for a write.
        let code = unsafe { call(&raw mut error, body) };
        assert_eq!(code, error.code);
        let bytes: Vec<u8> =
            error.message.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        (code, String::from_utf8(bytes).expect("whole characters"))
    }

    #[test]
    fn a_panic_is_a_code_and_its_message() {
        let (code, message) = outcome(|| panic!("that was {}", 7));
        assert_eq!((code, message.as_str()), (Code::Bug, "that was 7; please report this"));
        assert_eq!(outcome(|| Ok(())), (Code::Ok, String::new()));
        // SAFETY: null is allowed.
        let code = unsafe { call(std::ptr::null_mut(), || Err(Failure::argument("it", "is wrong"))) };
        assert_eq!(code, Code::Argument);
    }

    #[test]
    fn a_message_is_cut_at_a_character_and_ends() {
        let (_, message) = outcome(|| Err(Failure::new(Code::File, "ü".repeat(MESSAGE_BYTES))));
        assert_eq!(message, "ü".repeat((MESSAGE_BYTES - 1) / 2));
        let (_, message) = outcome(|| Err(Failure::new(Code::File, "a\0b")));
        assert_eq!(message, "a?b");
    }

    #[test]
    fn parts_beyond_the_end_are_refused_also_where_they_wrap_around() {
        assert!(check_part(0, 10, 10).is_ok() && check_part(10, 0, 10).is_ok());
        for (offset, bytes) in [(1, 10), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(check_part(offset, bytes, 10).is_err(), "{offset} {bytes}");
        }
    }
}
