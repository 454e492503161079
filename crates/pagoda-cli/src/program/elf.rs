//! The kind of a program's file, read from its first bytes as the kernel reads them on exec.
//!
//! The file is untrusted: every offset and count is bounded before it is used. This module must
//! never decide what to do about a kind.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// How a file would be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An ELF program that this loader loads.
    Dynamic {
        /// Its dynamic loader.
        loader: PathBuf,
    },
    /// An ELF program without a loader: nothing can be preloaded into it.
    Static,
    /// An ELF program of another machine, word size or byte order than this command's.
    OtherMachine,
    /// A script that names its interpreter in its first line.
    Script {
        /// That interpreter.
        interpreter: PathBuf,
    },
    /// Anything else: execvp gives it to the shell.
    Other,
}

/// The kernel reads as much of a `#!` line, and so do we.
const SCRIPT_LINE_BYTES_MAX: usize = 256;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// A program has about a dozen; the kernel's own limit is 64 KiB of them.
const PROGRAM_HEADERS_MAX: u16 = (65536 / PROGRAM_HEADER_BYTES) as u16;
/// The kernel refuses a longer loader name (`PATH_MAX`).
const LOADER_BYTES_MAX: u64 = 4096;
const PT_INTERP: u32 = 3;

/// The fields that decide whether two ELF files can share a process.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Machine {
    class: u8,
    order: u8,
    machine: u16,
}

impl Machine {
    fn of(header: &[u8; HEADER_BYTES]) -> Self {
        Self { class: header[4], order: header[5], machine: u16_at(header, 18) }
    }

    /// This command's own: the preload library is built for the same.
    fn own() -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        File::open("/proc/self/exe")?.read_exact_at(&mut header, 0)?;
        Ok(Self::of(&header))
    }
}

/// Reads the kind of this program.
pub fn kind(file: &File) -> io::Result<Kind> {
    let mut start = [0; SCRIPT_LINE_BYTES_MAX];
    let length = read_up_to(file, &mut start)?;
    let start = &start[..length];
    if let Some(line) = start.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    match start.first_chunk::<HEADER_BYTES>() {
        Some(header) if header.starts_with(b"\x7fELF") => program(file, header),
        _ => Ok(Kind::Other),
    }
}

fn script(line: &[u8]) -> Kind {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|&byte| matches!(byte, b' ' | b'\t' | 0)).filter(|word| !word.is_empty());
    match words.next() {
        Some(word) => Kind::Script { interpreter: PathBuf::from(OsString::from_vec(word.to_vec())) },
        None => Kind::Other,
    }
}

fn program(file: &File, header: &[u8; HEADER_BYTES]) -> io::Result<Kind> {
    if Machine::of(header) != Machine::own()? {
        return Ok(Kind::OtherMachine);
    }
    let table = u64_at(header, 32);
    let size = u16_at(header, 54);
    let count = u16_at(header, 56).min(PROGRAM_HEADERS_MAX);
    for index in 0..count {
        let mut entry = [0; PROGRAM_HEADER_BYTES];
        let at = table.checked_add(u64::from(index) * u64::from(size));
        // A table that is cut off has no loader in it; the kernel reports the error at exec.
        if at.is_none_or(|at| file.read_exact_at(&mut entry, at).is_err()) {
            break;
        }
        if u32_at(&entry, 0) == PT_INTERP {
            let length = u64_at(&entry, 32).min(LOADER_BYTES_MAX);
            let mut loader = vec![0; usize::try_from(length).unwrap_or(0)];
            file.read_exact_at(&mut loader, u64_at(&entry, 8))?;
            loader.truncate(loader.iter().position(|&byte| byte == 0).unwrap_or(loader.len()));
            return Ok(Kind::Dynamic { loader: PathBuf::from(OsString::from_vec(loader)) });
        }
    }
    Ok(Kind::Static)
}

fn read_up_to(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

// The byte order is this machine's: a file of the other order has been told apart before these
// numbers are used.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn kind_of(bytes: &[u8]) -> Kind {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(bytes).expect("written");
        kind(&file).expect("read")
    }

    fn own_header() -> Vec<u8> {
        let mut header = vec![0; HEADER_BYTES];
        File::open("/proc/self/exe").and_then(|file| file.read_exact_at(&mut header, 0)).expect("own header");
        header
    }

    #[test]
    fn scripts_name_their_interpreter() {
        let interpreter = |path: &str| Kind::Script { interpreter: path.into() };
        assert_eq!(kind_of(b"#!/bin/sh\necho"), interpreter("/bin/sh"));
        assert_eq!(kind_of(b"#! \t/usr/bin/env  python3 -u\n"), interpreter("/usr/bin/env"));
        assert_eq!(kind_of(b"#!/bin/sh"), interpreter("/bin/sh"));
        assert_eq!(kind_of(b"#!\n/bin/sh"), Kind::Other);
        assert_eq!(kind_of(b"echo hello\n"), Kind::Other);
        assert_eq!(kind_of(b""), Kind::Other);
    }

    #[test]
    fn this_program_has_a_loader_and_its_bare_header_has_none() {
        let own = File::open("/proc/self/exe").expect("own program");
        assert!(matches!(kind(&own).expect("read"), Kind::Dynamic { loader } if loader.is_absolute()));
        assert_eq!(kind_of(&own_header()), Kind::Static);
    }

    #[test]
    fn a_header_of_another_machine_is_told_apart() {
        for (at, value) in [(4, 1), (5, 2), (18, 0xee)] {
            let mut header = own_header();
            header[at] = value;
            assert_eq!(kind_of(&header), Kind::OtherMachine);
        }
    }

    #[test]
    fn a_table_beyond_every_file_is_no_reason_to_panic() {
        let mut header = own_header();
        header[32..40].fill(0xff);
        header[54..58].fill(0xff);
        assert_eq!(kind_of(&header), Kind::Static);
    }
}
