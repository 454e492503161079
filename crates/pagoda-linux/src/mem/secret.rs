//! A few bytes for processes that may look into this one, in memory that is a file without a name.
//!
//! They are in no argument, no environment and on no disk, and are gone with their maker, however
//! it ends. A reader needs the right to read this process's descriptors: the same user without more
//! rights than it, or root. This module must never show its bytes.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create, open};

/// Seals of a secret: no process can write to it, change its length, or take a seal off.
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// The bytes, for as long as this value lives. No program that is executed inherits it.
pub struct Secret {
    file: File,
}

impl Secret {
    /// Keeps these bytes, which never change from now on. `name` is shown in `/proc/PID/fd`.
    ///
    /// # Errors
    /// There is no memory or no descriptor for it.
    pub fn create(name: &CStr, bytes: &[u8]) -> io::Result<Self> {
        let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.write_all(bytes)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok(Self { file })
    }

    /// Where [`read`] finds it, as long as this lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

/// Reads a [`Secret`] of this or another process, as text. Never waits, and reads nothing that is
/// no secret: when its maker has ended, another process may have its number.
///
/// # Errors
/// Its maker is gone, or of another user; the file there is no secret, longer than `bytes_max`, or
/// not UTF-8.
pub fn read(path: &Path, bytes_max: usize) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    // The kernel has seals only for files in memory.
    if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = String::new();
    file.take(bytes_max as u64 + 1).read_to_string(&mut text)?;
    if text.len() > bytes_max { Err(io::ErrorKind::InvalidData.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_by_its_path_never_changed_and_gone_with_its_maker() {
        let secret = Secret::create(c"a-test's", b"open sesame").expect("memory");
        let path = secret.path();
        for _ in 0..2 {
            assert_eq!(read(&path, 11).expect("it lives"), "open sesame");
        }
        assert_eq!(read(&path, 10).expect_err("too long").kind(), io::ErrorKind::InvalidData);
        let other = File::options().write(true).open(&path).and_then(|mut file| file.write_all(b"x"));
        assert!(other.is_err());
        drop(secret);
        assert!(read(&path, 11).is_err());
    }

    #[test]
    fn a_file_of_another_process_at_that_number_is_not_read() {
        let is_refused = |file: &dyn AsRawFd| {
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            let error = read(Path::new(&path), 11).expect_err("no secret");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        };
        let mut unsealed =
            File::from(memfd_create(c"x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory"));
        unsealed.write_all(b"another's").expect("written");
        is_refused(&unsealed);
        fcntl_add_seals(&unsealed, SEALS.difference(SealFlags::WRITE)).expect("sealed, but for writing");
        is_refused(&unsealed);
        // A read of an empty pipe waits for good.
        let (mut out, mut into) = io::pipe().expect("a pipe");
        is_refused(&out);
        into.write_all(b"another's").expect("written");
        is_refused(&out);
        out.read_exact(&mut [0; 9]).expect("all of it is still there");
    }
}
