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
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::mm::{mmap_anonymous, munmap};

    use super::*;
    use crate::procfs::maps::for_each_mapping;
    use crate::testing::process::{fork, wait};

    const LINE: &str = "it is not here\n";

    fn map(range: PageRange) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the kernel refuses it where anything is mapped.
        unsafe { mmap_anonymous(at, range.len(), ProtFlags::READ, flags) }.expect("free");
    }

    /// Addresses that were free a moment ago.
    fn free(pages: usize) -> PageRange {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), pages * OS_PAGE, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        let range = PageRange::at(at.expect("memory").expose_provenance(), pages * OS_PAGE);
        // SAFETY: the mapping was just made, and nothing uses it.
        unsafe { munmap(std::ptr::with_exposed_provenance_mut(range.start()), range.len()) }
            .expect("its own");
        range
    }

    fn readable_and_closed(range: PageRange) -> (usize, usize) {
        let (mut readable, mut closed) = (0, 0);
        for_each_mapping(&mut [0; 2048], |mapping| {
            let (start, end) = (mapping.start.max(range.start()), mapping.end.min(range.end()));
            let pages = end.saturating_sub(start) / OS_PAGE;
            if mapping.read { readable += pages } else { closed += pages }
        })
        .expect("maps");
        (readable, closed)
    }

    #[test]
    fn what_is_free_is_closed_and_what_is_in_use_stays() {
        // In a child, whose only thread maps nothing in between.
        let child = fork(|| {
            let range = free(37);
            map(PageRange::at(range.start() + 5 * OS_PAGE, 3 * OS_PAGE));
            close_in_child(&[range], LINE).expect("closed");
            i32::from(readable_and_closed(range) != (3, 34))
        });
        assert_eq!(wait(child.expect("forked")).expect("waited for").exit_status(), Some(0));
    }

    #[test]
    fn an_access_says_why_and_ends_the_process() {
        let told = tempfile::tempfile().expect("a file");
        for is_closed in [true, false] {
            told.set_len(0).expect("emptied");
            let child = fork(|| {
                // Both at once: else the second would get the addresses of the first.
                let both = free(6);
                let range = PageRange::at(both.start(), 4 * OS_PAGE);
                let other = both.start() + 5 * OS_PAGE;
                close_in_child(&[range], LINE).expect("closed");
                // SAFETY: both are open descriptors. The access is to an address at which nothing
                // can be read, and ends this child.
                unsafe {
                    libc::dup2(told.as_raw_fd(), libc::STDERR_FILENO);
                    let at = if is_closed { range.start() + OS_PAGE } else { other };
                    std::ptr::with_exposed_provenance::<u8>(at).read_volatile();
                }
                0
            });
            let status = wait(child.expect("forked")).expect("waited for");
            assert_eq!(status.terminating_signal(), Some(libc::SIGSEGV));
            let path = format!("/proc/self/fd/{}", told.as_raw_fd());
            let text = std::fs::read_to_string(path).expect("read");
            assert_eq!(text, if is_closed { LINE } else { "" });
        }
    }
}
