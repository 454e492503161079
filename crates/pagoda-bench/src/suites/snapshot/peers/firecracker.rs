//! A VMM that speaks Firecracker's protocol: memory, a userfaultfd, and its message.
//!
//! Its guest is any thread of this process that reads the memory. The tests of `pagoda serve` use
//! it, too. This module must never look at content.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use pagoda_core::page::OS_PAGE;
use pagoda_linux::io::local_socket::{connect_to, send};
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::uffd::Mode;
use pagoda_linux::uffd::entrusted::EntrustedUffd;

/// The three forms of the page size that Firecracker has sent.
pub const SIZES: [&str; 3] =
    [r#","page_size_kib":4096"#, r#","page_size":4096,"page_size_kib":4096"#, r#","page_size":4096"#];

/// A VM.
pub struct Vm {
    /// Its memory, part by part, with the page of the image that each begins with.
    pub parts: Vec<(PlainMemory, usize)>,
    /// The connection.
    pub line: OwnedFd,
    /// The descriptor that the server got.
    pub uffd: EntrustedUffd,
}

/// A region in Firecracker's words: `pages` at the address `base`, the image's from `first` on.
pub fn region(base: usize, pages: usize, first: usize, size: &str) -> String {
    format!(
        r#"{{"base_host_virt_addr":{base},"size":{},"offset":{}{size}}}"#,
        pages * OS_PAGE,
        first * OS_PAGE
    )
}

/// Sends this message with these descriptors over a new connection.
///
/// # Errors
/// No server listens at `socket`, or it has no room.
pub fn send_to(socket: &Path, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let line = connect_to(socket)?;
    if !message.is_empty() && !send(&line, message, descriptors)? {
        return Err(io::Error::other("the socket has no room for the message"));
    }
    Ok(line)
}

impl Vm {
    /// Restores these pages of an image in as many parts of one length, the last one first. The
    /// message has the page size in this form.
    ///
    /// # Errors
    /// There is no memory or userfaultfd, or no server listens at `socket`.
    pub fn restore(
        socket: &Path,
        mode: Mode,
        pages: Range<usize>,
        parts: usize,
        size: &str,
    ) -> io::Result<Self> {
        let uffd = EntrustedUffd::open(mode)?;
        let each = pages.len() / parts;
        let make = |part| {
            let memory = PlainMemory::map(each * OS_PAGE, Pages::Small)?;
            uffd.register(&memory)?;
            Ok((memory, pages.start + part * each))
        };
        let parts: Vec<(PlainMemory, usize)> = (0..parts).rev().map(make).collect::<io::Result<_>>()?;
        let regions: Vec<String> =
            parts.iter().map(|(memory, first)| region(memory.range().start(), each, *first, size)).collect();
        let line = send_to(socket, format!("[{}]", regions.join(",")).as_bytes(), &[uffd.as_fd()])?;
        Ok(Self { parts, line, uffd })
    }
}
