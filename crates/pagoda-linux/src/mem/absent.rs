//! Addresses of memory that a forked child does not have.
//!
//! A region is not in a child (`MADV_DONTFORK`), and the pointers to it are: a program's arrays.
//! Left free, its addresses would be given to the next mapping of the child, which a stray access
//! through such a pointer would read or change. So a child closes them. An access is SIGSEGV then,
//! and a line says why before the process ends as it would have. This module must never map over
//! memory that is there.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};

use pagoda_core::page::OS_PAGE;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::mem::range::PageRange;

/// The ranges that were closed, and the line about them.
struct Closed {
    ranges: Vec<PageRange>,
    line: &'static str,
}

/// A leaked record, for a handler that may run at any moment; null until something is closed.
static CLOSED: AtomicPtr<Closed> = AtomicPtr::new(std::ptr::null_mut());
/// A leaked record of the action for SIGSEGV that was there before ours; null before that.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Closes those of `ranges` at which nothing is mapped, for good. A later access there writes
/// `line` to standard error, and is SIGSEGV as before. For a forked child, before it maps anything:
/// a part that is in use by then stays as it is. To be called by one thread at a time.
///
/// # Errors
/// Those of mmap(2), of which a child without address space may get one, and of sigaction(2).
pub fn close_in_child(ranges: &[PageRange], line: &'static str) -> io::Result<()> {
    if ranges.is_empty() {
        return Ok(());
    }
    ranges.iter().try_for_each(|range| close(*range))?;
    // SAFETY: the pointer is to a leaked record, or null.
    let earlier = unsafe { CLOSED.load(Ordering::Acquire).as_ref() }.map_or(&[][..], |closed| &closed.ranges);
    let ranges = [earlier, ranges].concat();
    CLOSED.store(Box::into_raw(Box::new(Closed { ranges, line })), Ordering::Release);
    install()
}

/// Closes the free parts of a range. Halves that are in use are halved again, down to an OS page.
fn close(range: PageRange) -> io::Result<()> {
    let at = std::ptr::with_exposed_provenance_mut(range.start());
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the kernel refuses the call where anything is mapped, so that it aliases nothing.
    match unsafe { mmap_anonymous(at, range.len(), ProtFlags::empty(), flags) } {
        Ok(_) => Ok(()),
        Err(Errno::EXIST) if range.len() == OS_PAGE => Ok(()),
        Err(Errno::EXIST) => {
            let half = (range.len() / 2).next_multiple_of(OS_PAGE);
            close(PageRange::at(range.start(), half))?;
            close(PageRange::at(range.start() + half, range.len() - half))
        }
        Err(error) => Err(error.into()),
    }
}

fn install() -> io::Result<()> {
    // SAFETY: sigaction is plain data, for which all zeroes are a value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the present action to `before`, which is there.
    if unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let handler = on_fault as extern "C" fn(_, _, _) as usize;
    if before.sa_sigaction == handler {
        return Ok(());
    }
    BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // A stack that has overflown is of no use to a handler.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the kernel reads `action`, which is there. The handler makes system calls alone.
    if unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel calls this handler with its info, valid until it returns.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // SAFETY: the pointer is to a leaked record, or null.
    let closed = unsafe { CLOSED.load(Ordering::Acquire).as_ref() };
    if let Some(closed) = closed.filter(|_| code > 0)
        && closed.ranges.iter().any(|range| (range.start()..range.end()).contains(&address))
    {
        // SAFETY: the line is there for good. Where it can't be written the process ends without.
        unsafe { libc::write(libc::STDERR_FILENO, closed.line.as_ptr().cast(), closed.line.len()) };
    }
    // With the earlier action in place the access faults again, and ends as it would have. A signal
    // that was sent is raised again by hand.
    // SAFETY: the record is the action that the kernel reported, and was stored before this handler
    // was installed. Both calls are allowed in a handler.
    unsafe {
        libc::sigaction(signal, BEFORE.load(Ordering::Acquire), std::ptr::null_mut());
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
#[path = "absent_test.rs"]
mod tests;
