//! A program's own userfaultfd, for programs that serve faults themselves.
//!
//! It speaks to the kernel by itself, as such programs do, and must never use Pagoda's own wrappers
//! for it: they are to know of each other no more than there.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

use super::mapping::{Mapping, PAGE, WORDS};

// The kernel's interface (linux/userfaultfd.h): request numbers and structures.
const NEW: libc::c_ulong = 0xaa00;
const API: libc::c_ulong = 0xc018_aa3f;
const REGISTER: libc::c_ulong = 0xc020_aa00;
const COPY: libc::c_ulong = 0xc028_aa03;
const REGISTER_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const MESSAGE_BYTES: usize = 32;

/// A mapping whose missing pages this program fills.
#[derive(Debug)]
pub struct SelfServed {
    mapping: Mapping,
    descriptor: File,
}

impl SelfServed {
    /// Registers it. From now on a thread that touches a missing page of it waits for
    /// [`serve`](Self::serve).
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(mapping: Mapping) -> io::Result<Self> {
        let descriptor = open()?;
        register(&descriptor, &mapping)?;
        Ok(Self { mapping, descriptor })
    }
    /// The memory. A reader of a missing page needs another thread to serve.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
    /// Makes all pages missing.
    ///
    /// # Errors
    /// The kernel's.
    pub fn discard(&mut self) -> io::Result<()> {
        self.mapping.advise(0..self.mapping.pages(), libc::MADV_DONTNEED)
    }
    /// Waits for a fault, and serves it: every word of the page is `word(page)`.
    ///
    /// # Errors
    /// The kernel's, also when the page was there already; or that the message was no fault.
    pub fn serve(&self, word: impl FnOnce(usize) -> u64) -> io::Result<()> {
        let mut message = [0u8; MESSAGE_BYTES];
        (&self.descriptor).read_exact(&mut message)?;
        if message[0] != EVENT_PAGEFAULT {
            return Err(io::Error::other(format!("event {:#x} instead of a fault", message[0])));
        }
        let address =
            u64::from_ne_bytes(message[16..24].try_into().expect("eight bytes")) as usize & !(PAGE - 1);
        let content = [word((address - self.mapping.start()) / PAGE); WORDS];
        let from = (&raw const content).expose_provenance() as u64;
        request(&self.descriptor, COPY, &mut [address as u64, from, PAGE as u64, 0, 0])
    }
}

fn register(descriptor: &File, mapping: &Mapping) -> io::Result<()> {
    let range = [mapping.start() as u64, (mapping.pages() * PAGE) as u64];
    request(descriptor, REGISTER, &mut [range[0], range[1], REGISTER_MISSING, 0])
}

fn open() -> io::Result<File> {
    let by_device = File::options().read(true).write(true).open("/dev/userfaultfd").ok().map(|device| {
        // SAFETY: this request takes flags only, and touches no memory.
        unsafe { libc::ioctl(device.as_raw_fd(), NEW, libc::O_CLOEXEC) }
    });
    // SAFETY: this system call takes flags only, and touches no memory.
    let by_call = || unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
    let descriptor = by_device.filter(|&descriptor| descriptor >= 0).unwrap_or_else(by_call);
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made the descriptor just now for us: no other code owns it or closes it.
    let descriptor = unsafe { File::from_raw_fd(descriptor) };
    request(&descriptor, API, &mut [0xaa, 0, 0])?;
    Ok(descriptor)
}

fn request(descriptor: &File, number: libc::c_ulong, words: &mut [u64]) -> io::Result<()> {
    // SAFETY: the kernel reads and writes the structure of the request, and each caller gives as
    // many words as it has: 3 for API, 4 for REGISTER, 5 for COPY. A COPY reads a page of its
    // caller's, and writes to a missing page of a mapping that its caller owns: it never replaces a
    // page that was read.
    match unsafe { libc::ioctl(descriptor.as_raw_fd(), number, words.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
