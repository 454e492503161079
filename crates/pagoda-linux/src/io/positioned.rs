//! Reads at a place in a file, by the system call itself.
//!
//! The standard library's reads at a place are calls of the C library, of which the preload library
//! may have none. This module must never read less than it was asked for and say nothing.

use std::fs::File;
use std::io;

use rustix::io::{Errno, pread};

/// Fills `into` from byte `at` of a file on. Blocks for the disk.
///
/// # Errors
/// Those of pread(2), and `UnexpectedEof` where the file ends before. Some of `into` may be
/// overwritten then.
pub fn read_exact_at(file: &File, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
    while !into.is_empty() {
        match pread(file, &mut *into, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => (into, at) = (&mut into[read..], at + read as u64),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_read_is_whole_or_an_error() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"0123456789").expect("written");
        let mut found = [0; 4];
        read_exact_at(&file, &mut found, 6).expect("read");
        assert_eq!(&found, b"6789");
        let error = read_exact_at(&file, &mut found, 7).expect_err("it ends");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
