//! Errors as values: a code, and a message in the caller's memory.
//!
//! This module must never let a panic through to C, and never write beyond the message.

use std::any::Any;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    /// With the message of the library's error.
    pub fn new(code: Code, message: impl ToString) -> Self {
        Self { code, message: message.to_string() }
    }

    /// For the named argument.
    pub fn argument(name: &str, wrong: &str) -> Self {
        Self::new(Code::Argument, format!("{name} {wrong}"))
    }
}

/// Runs the body of a call, and tells the caller how it ended.
///
/// # Safety
/// `error` is null, or valid for a write of an [`Error`].
pub unsafe fn call(error: *mut Error, body: impl FnOnce() -> Result<(), Failure>) -> Code {
    // A handle after a panic is only good to be closed, as the code says.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Failure::new(Code::Ok, ""),
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(Code::Bug, format!("{}; please report this", told(&*panic))),
    };
    if !error.is_null() {
        // SAFETY: it is not null, and the caller vouches for it.
        unsafe { error.write(Error { code: failure.code, message: message(&failure.message) }) };
    }
    failure.code
}

/// Ends a handle: a panic while it is dropped ends here.
pub fn drop_quietly<T>(value: T) {
    // The caller gets no code: the handle is gone either way.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

fn told(panic: &(dyn Any + Send)) -> &str {
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

/// The handle behind a pointer that only reads it.
///
/// # Safety
/// `handle` is null, or one of ours that is not closed before the result is used last.
pub unsafe fn shared<'a, T>(handle: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::argument(name, "is null; give a handle"))
}

/// The handle behind a pointer that has it alone.
///
/// # Safety
/// As [`shared`], and no other call uses the handle meanwhile.
pub unsafe fn alone<'a, T>(handle: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe { handle.as_mut() }.ok_or_else(|| Failure::argument(name, "is null; give a handle"))
}

/// Puts a new handle where the caller wants it.
///
/// # Safety
/// `to` is null, or valid for a write of a pointer.
pub unsafe fn hand_out<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::argument("the place for the handle", "is null; give an address"));
    }
    // So that a caller that forgets to look at the code has no stale handle.
    // SAFETY: it is not null, and the caller vouches for it.
    unsafe { to.write(std::ptr::null_mut()) };
    let handle = Box::into_raw(Box::new(make()?));
    // SAFETY: as above.
    unsafe { to.write(handle) };
    Ok(())
}

/// Takes a handle back from the caller, to end it.
///
/// # Safety
/// `handle` is null, or one of ours that is not used again.
pub unsafe fn take_back<T>(handle: *mut T) -> Option<T> {
    // SAFETY: each handle comes from a box in `hand_out`, and is taken back once.
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
    // SAFETY: it is not null, and the caller vouches for it.
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
        // SAFETY: it is a value of this function's.
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
