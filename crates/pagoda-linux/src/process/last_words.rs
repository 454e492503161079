//! A line on standard error that can be written in any state of the process.
//!
//! It goes past the locks of the standard library, which a thread may hold while it waits for a
//! fault that is not served any more, and past the harness of tests, which keeps the output of a
//! test until it ends. This module must never allocate.

use std::fmt::{self, Write};

/// The longest line. The rest of a longer one is left out.
const BYTES_MOST: usize = 1024;

struct Line {
    bytes: [u8; BYTES_MOST],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Writes a line to standard error by one system call. Nothing is told where that fails.
pub fn tell(line: fmt::Arguments<'_>) {
    let mut told = Line { bytes: [0; BYTES_MOST], len: 0 };
    let _ = writeln!(told, "{line}");
    let _ = rustix::io::write(std::io::stderr(), &told.bytes[..told.len]);
}
