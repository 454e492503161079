//! A program that serves faults itself: its memory is left alone, and its descriptor and ours don't disturb each other.
//!
//! It speaks to the kernel by itself, as such programs do, and must never use Pagoda's own wrappers for it: they know of each
//! other no more than here. Hence the unsafe code.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};

use crate::pressure::{Arena, check, fill, word};
use crate::support::memory::{Mapping, PAGE};

const PAGES: usize = 256;

// The kernel's interface (linux/userfaultfd.h): request numbers and structures.
const NEW: libc::c_ulong = 0xaa00;
const API: libc::c_ulong = 0xc018_aa3f;
const REGISTER: libc::c_ulong = 0xc020_aa00;
const COPY: libc::c_ulong = 0xc028_aa03;
const REGISTER_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const MESSAGE_BYTES: usize = 32;

fn request(descriptor: i32, number: libc::c_ulong, words: &mut [u64]) -> Result<(), String> {
    // SAFETY: the kernel reads and writes the structure of the request, and each caller gives as many words as it has: 3 for
    // API, 4 for REGISTER, 5 for COPY. What a COPY writes to is missing pages of a mapping of the program's own, which nobody
    // could read before.
    match unsafe { libc::ioctl(descriptor, number, words.as_mut_ptr()) } {
        -1 => Err(format!("ioctl {number:#x} of userfaultfd: {}", std::io::Error::last_os_error())),
        _ => Ok(()),
    }
}

fn open() -> Result<File, String> {
    let by_device = File::options().read(true).write(true).open("/dev/userfaultfd").ok().map(|device| {
        // SAFETY: this request takes flags only, and touches no memory.
        unsafe { libc::ioctl(device.as_raw_fd(), NEW, libc::O_CLOEXEC) }
    });
    // SAFETY: this system call takes flags only, and touches no memory.
    let by_call = || unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
    let descriptor = by_device.filter(|&descriptor| descriptor >= 0).unwrap_or_else(by_call);
    if descriptor < 0 {
        return Err(format!("userfaultfd: {}", std::io::Error::last_os_error()));
    }
    request(descriptor, API, &mut [0xaa, 0, 0])?;
    // SAFETY: the kernel made the descriptor just now for us: nobody else owns it or closes it.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// Serves this many faults: each with a page that tells its number.
fn serve(mut descriptor: &File, start: usize, tag: u64, faults: usize) -> Result<(), String> {
    for _ in 0..faults {
        let mut message = [0u8; MESSAGE_BYTES];
        descriptor.read_exact(&mut message).map_err(|error| format!("reading a fault: {error}"))?;
        if message[0] != EVENT_PAGEFAULT {
            return Err(format!("event {:#x} instead of a fault", message[0]));
        }
        let address =
            u64::from_ne_bytes(message[16..24].try_into().expect("eight bytes")) as usize & !(PAGE - 1);
        let content = [word(tag, (address - start) / PAGE); PAGE / 8];
        let from = (&raw const content).expose_provenance() as u64;
        request(descriptor.as_raw_fd(), COPY, &mut [address as u64, from, PAGE as u64, 0, 0])?;
    }
    Ok(())
}

pub fn body(arena: &Arena, _: u64) -> Result<(), String> {
    // Memory of the ordinary kind, which shows that others are evicted meanwhile.
    let mut other = Mapping::new(64).map_err(|error| error.to_string())?;
    fill(&mut other, 0..64, 1);
    let descriptor = open()?;
    let mut tag = 1;
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let (start, bytes) = (mapping.start(), (PAGES * PAGE) as u64);
    request(descriptor.as_raw_fd(), REGISTER, &mut [start as u64, bytes, REGISTER_MISSING, 0])?;
    while arena.next_round() {
        tag += 1;
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve(&descriptor, start, tag, PAGES));
            let right = check(&mapping, 0..PAGES, tag);
            right.and(server.join().expect("it does not panic"))
        })?;
        arena.wait_until_managed(&other);
        if mapping.is_any_out() {
            return Err("memory that the program registered was taken out".to_owned());
        }
        check(&other, 0..64, 1)?;
        check(&mapping, 0..PAGES, tag)?;
        mapping.advise(0..PAGES, libc::MADV_DONTNEED).map_err(|error| error.to_string())?;
    }
    // It is there until the end, when it is counted.
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&descriptor, start, tag, PAGES));
        check(&mapping, 0..PAGES, tag).and(server.join().expect("it does not panic"))
    })?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    std::mem::forget((mapping, descriptor));
    Ok(())
}
