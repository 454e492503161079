//! A VM of the tests' own that speaks Firecracker's protocol, with the checks of its content.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use pagoda_bench::firecracker::{self, Vm};
pub use pagoda_bench::firecracker::{SIZES, region};
use pagoda_linux::io::local_socket::{Awaited, wait_any};
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::testing::mapping::{PAGE, WORDS};
use pagoda_linux::uffd::Mode;
use pagoda_linux::uffd::entrusted::EntrustedUffd;

use crate::server::word;

/// One guest. It reads every page by itself.
pub struct Peer(Vm);

impl Peer {
    /// Restores an image of `pages` pages in as many parts of one length, the last one first.
    pub fn restore(socket: &Path, pages: usize, parts: usize, size: &str) -> Self {
        Self(Vm::restore(socket, Mode::Full, 0..pages, parts, size).expect("restored"))
    }

    /// Checks all bytes: those of the image, but zeroes where `is_removed`.
    pub fn check(&self, is_removed: impl Fn(usize) -> bool) {
        for (memory, first) in &self.parts {
            for page in 0..pages_of(memory) {
                check_page(memory, page, first + page, is_removed(first + page));
            }
        }
    }
}

impl Deref for Peer {
    type Target = Vm;

    fn deref(&self) -> &Vm {
        &self.0
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Vm {
        &mut self.0
    }
}

/// The pages of a part.
pub fn pages_of(memory: &PlainMemory) -> usize {
    memory.range().len() / PAGE
}

/// Checks one page of a part, which is this one of the image.
pub fn check_page(memory: &PlainMemory, page: usize, of_image: usize, is_removed: bool) {
    let expected = |at| if is_removed { 0 } else { word(of_image, at) };
    let is_right = (0..WORDS).all(|at| memory.word(page * WORDS + at) == expected(at));
    assert!(is_right, "page {of_image}, removed: {is_removed}");
}

/// Memory whose missing pages another process is to fill.
pub fn entrusted(pages: usize) -> (EntrustedUffd, PlainMemory) {
    let uffd = EntrustedUffd::open(Mode::Full).expect("userfaultfd");
    let memory = PlainMemory::map(pages * PAGE, Pages::Small).expect("memory");
    uffd.register(&memory).expect("registered");
    (uffd, memory)
}

/// Sends this message with these descriptors over a new connection.
pub fn send_to(socket: &Path, message: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]) -> OwnedFd {
    firecracker::send_to(socket, message, descriptors).expect("it listens")
}

/// Waits for the other side's end.
pub fn await_end(line: &OwnedFd, most: Duration) -> bool {
    let [ready] = wait_any([(line.as_fd(), Awaited::End)], most.as_micros() as u32);
    ready.now
}
