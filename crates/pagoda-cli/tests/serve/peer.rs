//! A VMM of the tests' own: memory, a userfaultfd, and Firecracker's message.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use pagoda_linux::io::local_socket::{Awaited, connect_to, send, wait_any};
use pagoda_linux::testing::mapping::{Mapping, PAGE};
use pagoda_linux::testing::userfault::Entrusted;

use crate::server::content;

/// The three forms of the page size that Firecracker has sent.
pub const SIZES: [&str; 3] =
    [r#","page_size_kib":4096"#, r#","page_size":4096,"page_size_kib":4096"#, r#","page_size":4096"#];

/// One guest. It reads every page by itself.
pub struct Peer {
    /// Its memory, part by part, with the page of the image that each begins with.
    pub parts: Vec<(Mapping, usize)>,
    pub line: OwnedFd,
    pub uffd: Entrusted,
}

/// A region in Firecracker's words.
pub fn region(base: usize, pages: usize, first: usize, size: &str) -> String {
    format!(r#"{{"base_host_virt_addr":{base},"size":{},"offset":{}{size}}}"#, pages * PAGE, first * PAGE)
}

/// Sends this message with these descriptors over a new connection.
pub fn send_to(socket: &Path, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> OwnedFd {
    let line = connect_to(socket).expect("it listens");
    if !message.is_empty() {
        assert!(send(&line, message, descriptors).expect("sent"), "there is room");
    }
    line
}

impl Peer {
    /// Restores an image of `pages` pages in as many parts of one length, the last one first.
    pub fn restore(socket: &Path, pages: usize, parts: usize, size: &str) -> Self {
        let uffd = Entrusted::new().expect("userfaultfd");
        let each = pages / parts;
        let parts: Vec<(Mapping, usize)> = (0..parts)
            .rev()
            .map(|part| {
                let mapping = Mapping::new(each).expect("memory");
                uffd.register(&mapping).expect("registered");
                (mapping, part * each)
            })
            .collect();
        let regions: Vec<String> =
            parts.iter().map(|(mapping, first)| region(mapping.start(), each, *first, size)).collect();
        let line = send_to(socket, format!("[{}]", regions.join(",")).as_bytes(), &[uffd.as_fd()]);
        Self { parts, line, uffd }
    }

    /// Checks all bytes: those of the image, but zeroes where `is_removed`.
    pub fn check(&self, is_removed: impl Fn(usize) -> bool) {
        for (mapping, first) in &self.parts {
            for page in 0..mapping.pages() {
                check_page(mapping, page, first + page, is_removed(first + page));
            }
        }
    }
}

/// Checks one page of a mapping, which is this one of the image.
pub fn check_page(mapping: &Mapping, page: usize, of_image: usize, is_removed: bool) {
    let expected = if is_removed { vec![0; PAGE] } else { content(of_image) };
    assert!(mapping.bytes(page..page + 1) == expected, "page {of_image}, removed: {is_removed}");
}

/// Waits for the other side's end.
pub fn await_end(line: &OwnedFd, most: Duration) -> bool {
    let [ready] = wait_any([(line.as_fd(), Awaited::End)], most.as_micros() as u32);
    ready.now
}
