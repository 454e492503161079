//! The output of a program, or the values that a client read, as a length and a 64-bit FNV-1a.
//!
//! It tells differences, never an attacker's work.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Of a file.
pub fn of_file(path: &Path) -> io::Result<Digest> {
    let mut file = File::open(path)?;
    let mut digest = Digest::default();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(digest);
        }
        digest.update(&buffer[..n]);
    }
}

/// A running digest.
pub struct Digest {
    hash: u64,
    bytes: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, bytes: 0 }
    }
}

impl Digest {
    pub fn update(&mut self, content: &[u8]) {
        for &byte in content {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.bytes += content.len() as u64;
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes {:016x}", self.bytes, self.hash)
    }
}
