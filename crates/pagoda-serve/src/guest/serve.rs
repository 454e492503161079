//! The loop of a guest's thread: waits, reads messages, answers faults.
//!
//! The end of a guest is the end of its memory. The kernel tells that by a call; the connection and
//! the process only say when to ask, since a VMM may close the one and outlive the other. This
//! module must never leave a fault without an answer: a page, SIGBUS, or a line about the guest.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use pagoda_linux::io::local_socket::{Awaited, wait_any};
use pagoda_linux::process::thread::now_ns;
use pagoda_linux::uffd::Stop;

use crate::guest::{Filled, For, Guest, Unserved, Window};
use crate::record::Count;
use crate::source::Source;
use crate::working_set::Recorder;

/// How often a guest without faults is asked whether its memory is gone, in µs.
const TICK_US: u32 = 200_000;

/// Pauses before a fault is tried again that the kernel has put off: the thread that discards has
/// to run first, and its process may be stopped. It doubles from the first to the last, in µs.
const PAUSES_US: (u32, u32) = (20, 10_000);

/// Faults that wait at a time; each is of a thread that sleeps. Beyond it the thread is woken, and
/// its fault told again.
const FAULTS_MOST: usize = 1 << 14;

/// How the service of a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its memory is gone: the guest has ended.
    Gone,
    /// The handler was asked to end.
    Asked,
    /// It can't be served.
    Unserved(Unserved),
}

impl From<Unserved> for End {
    fn from(why: Unserved) -> Self {
        Self::Unserved(why)
    }
}

/// What a guest's thread needs.
pub(crate) struct Service<'a> {
    pub(crate) guest: &'a Guest<'a>,
    pub(crate) source: &'a dyn Source,
    /// Bytes that a fault brings at most, a power of two.
    pub(crate) around_bytes: usize,
    pub(crate) recorder: Option<&'a Recorder>,
    /// Says one line about this guest.
    pub(crate) say: &'a dyn Fn(&str),
}

struct Fault {
    address: usize,
    since_ns: u64,
}

/// Serves a guest until its end.
pub(crate) fn run(service: &Service, line: &OwnedFd, process: Option<&OwnedFd>) -> End {
    match serve(service, line, process) {
        Ok(end) | Err(end) => end,
    }
}

fn serve(service: &Service, line: &OwnedFd, process: Option<&OwnedFd>) -> Result<End, End> {
    let guest = service.guest;
    guest.take_over()?;
    let uffd = (guest.uffd.as_fd(), Awaited::Input);
    let (mut line, mut process) = (Some(line), process);
    let mut faults = VecDeque::new();
    let mut buffer = Vec::new();
    let mut pause_us = PAUSES_US.0;
    let mut is_told = false;
    while !guest.is_ending() {
        let waits = [uffd, awaited(line, Awaited::End, uffd), awaited(process, Awaited::Input, uffd)];
        let timeout_us = if faults.is_empty() { TICK_US } else { pause_us };
        let [messages, line_end, process_end] = wait_any(waits, timeout_us);
        if messages.failed {
            return Err(Unserved::Blocks.into());
        }
        let is_quiet = !messages.now && faults.is_empty();
        if (is_quiet || (line.is_some() && line_end.now) || (process.is_some() && process_end.now))
            && guest.uffd.is_gone()
        {
            return Ok(End::Gone);
        }
        if is_quiet && line.is_none() && guest.is_unmapped() {
            return Ok(End::Gone);
        }
        line = line.filter(|_| !line_end.now && !line_end.failed);
        process = process.filter(|_| !process_end.now && !process_end.failed);
        let since_ns = now_ns();
        let count = guest.read(|address| {
            if faults.len() < FAULTS_MOST {
                faults.push_back(Fault { address, since_ns });
            } else if let Some(region) = guest.regions.at(address) {
                guest.uffd.wake(Window::page(region, address).range);
            }
        })?;
        // The first one is answered now. The others wait for it: their reads may begin.
        for fault in faults.iter().skip(1).rev().take(count) {
            announce(service, fault);
        }
        pause_us = if count > 0 { PAUSES_US.0 } else { (pause_us * 2).min(PAUSES_US.1) };
        while let Some(fault) = faults.front() {
            if !answer(service, fault, &mut buffer, &mut is_told)? {
                break;
            }
            guest.record.took(now_ns().saturating_sub(fault.since_ns));
            guest.record.add(Count::Faults, 1);
            faults.pop_front();
        }
    }
    Ok(End::Asked)
}

/// A descriptor to wait for. One that has ended stays ready: `other` takes its place.
fn awaited<'a>(
    fd: Option<&'a OwnedFd>,
    what: Awaited,
    other: (BorrowedFd<'a>, Awaited),
) -> (BorrowedFd<'a>, Awaited) {
    fd.map_or(other, |fd| (fd.as_fd(), what))
}

/// Has the read for a fault begin, where reads are requests.
fn announce(service: &Service, fault: &Fault) {
    let Some(region) = service.guest.regions.at(fault.address) else { return };
    if !service.guest.is_removed(region, fault.address) {
        let window = Window::around(region, fault.address, service.around_bytes);
        service.source.announce(window.offset, window.range.len() as u64);
    }
}

/// Answers a fault. False if the kernel puts it off.
fn answer(service: &Service, fault: &Fault, buffer: &mut Vec<u8>, is_told: &mut bool) -> Result<bool, End> {
    let Service { guest, source, .. } = service;
    let address = fault.address;
    let Some(region) = guest.regions.at(address) else {
        // Its thread ends with an error, and does not wait for good.
        guest.uffd.poison(pagoda_linux::mem::range::PageRange::page(address));
        return Err(Unserved::Stray(address).into());
    };
    let page = Window::page(region, address);
    let reason = For::Fault(address);
    let filled = if guest.is_removed(region, address) {
        guest.fill(&page, None, reason)
    } else {
        if let Some(recorder) = service.recorder {
            recorder.touch(page.offset);
        }
        let window = Window::around(region, address, service.around_bytes);
        if source.is_zero(window.offset, window.range.len() as u64) {
            guest.fill(&window, None, reason)
        } else {
            buffer.resize(window.range.len(), 0);
            match source.read_at(window.offset, buffer) {
                Ok(()) => guest.fill(&window, Some(buffer), reason),
                // Of what lies around it something is damaged, and perhaps not this page.
                Err(_) => match source.read_at(page.offset, &mut buffer[..page.range.len()]) {
                    Ok(()) => guest.fill(&page, Some(&buffer[..page.range.len()]), reason),
                    Err(error) => {
                        if !std::mem::replace(is_told, true) {
                            (service.say)(&format!("{error}; its page was refused to the VM"));
                        }
                        return refuse(guest, &page, address);
                    }
                },
            }
        }
    };
    match filled {
        Filled::Done => Ok(true),
        Filled::Again => Ok(false),
        Filled::Gone => Err(End::Gone),
        Filled::Refused => refuse(guest, &page, address),
    }
}

/// Has the thread that waits for this page get SIGBUS.
fn refuse(guest: &Guest, page: &Window, address: usize) -> Result<bool, End> {
    match guest.uffd.poison(page.range).stop {
        None => {
            guest.record.add(Count::RefusedPages, 1);
            Ok(true)
        }
        Some(Stop::Again | Stop::Busy | Stop::NoMemory) => Ok(false),
        Some(Stop::Gone) => Err(End::Gone),
        Some(Stop::Exists | Stop::Missing) => {
            guest.uffd.wake(page.range);
            Ok(true)
        }
        Some(Stop::Refused) => Err(Unserved::Refused(address).into()),
    }
}

/// Asks the guest's threads to end.
pub(crate) fn stop(guest: &Guest) {
    guest.ending.store(true, Ordering::Relaxed);
}
