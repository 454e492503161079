//! Which mappings of this process have a flag that `/proc/self/maps` does not tell of.
//!
//! The kernel walks all present pages for it. Like the other readers it must never allocate but at
//! its start, take a lock or use thread-local storage: it runs in an engine thread inside another
//! program.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use crate::procfs::maps::{Mapping, for_each_line, parse_line};

/// As for the maps; every line that matters is shorter.
const BUFFER_BYTES: usize = 8192;

/// A flag of a mapping, as the line `VmFlags:` has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flag {
    /// It is locked. `lf` (locked as pages come) always comes with it.
    Locked,
    /// It is empty in the child of a fork.
    WipedOnFork,
    /// It is not there in the child of a fork.
    Unforked,
    /// It is registered with userfaultfd for missing pages.
    Registered,
    /// It is sealed.
    Sealed,
}

impl Flag {
    const fn text(self) -> &'static [u8] {
        match self {
            Self::Locked => b"lo",
            Self::WipedOnFork => b"wf",
            Self::Unforked => b"dc",
            Self::Registered => b"um",
            Self::Sealed => b"sl",
        }
    }
}

/// The flags of a mapping: the line `VmFlags: rd wr mr mw me lo ac`.
pub(crate) struct Flags<'a>(&'a [u8]);

impl<'a> Flags<'a> {
    fn of(line: &'a [u8]) -> Option<Self> {
        line.strip_prefix(b"VmFlags:").map(Self)
    }

    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.0.split(|byte| *byte == b' ').any(|word| word == flag.text())
    }
}

/// Reads the flags of this process's mappings, any number of times.
pub(crate) struct SmapsReader {
    file: OwnedFd,
    buffer: Box<[u8]>,
}

impl SmapsReader {
    /// Opens the file and allocates the only memory that this reader will ever use. Call it on the
    /// thread that will read, or on one that it shares descriptors with. After a fork the child
    /// needs a reader of its own.
    pub(crate) fn new() -> io::Result<Self> {
        let file =
            rustix::fs::open(c"/proc/thread-self/smaps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { file, buffer: vec![0; BUFFER_BYTES].into_boxed_slice() })
    }

    /// Calls `f` with each mapping that has all of `wanted`, and its other flags, lowest address
    /// first.
    pub(crate) fn for_each(
        &mut self,
        wanted: &[Flag],
        mut f: impl FnMut(&Mapping, &Flags<'_>),
    ) -> io::Result<()> {
        let mut current = None;
        lines(&self.file, &mut self.buffer, |line| {
            if let Some(mapping) = parse_line(line) {
                current = Some(mapping);
            } else if let Some(flags) = Flags::of(line)
                && wanted.iter().all(|flag| flags.has(*flag))
                && let Some(mapping) = current.take()
            {
                f(&mapping, &flags);
            }
        })
    }

    /// Calls `f` with each line of another file, with this reader's buffer.
    pub(crate) fn lines_of(&mut self, file: &OwnedFd, f: impl FnMut(&[u8])) -> io::Result<()> {
        lines(file, &mut self.buffer, f)
    }
}

fn lines(file: &OwnedFd, buffer: &mut [u8], mut f: impl FnMut(&[u8])) -> io::Result<()> {
    let read = |into: &mut [u8], offset: u64| Ok(rustix::io::pread(file, into, offset)?);
    for_each_line(buffer, read, |line| {
        f(line);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_a_whole_word_of_its_line() {
        let has = |line: &[u8], flag| Flags::of(line).expect("flags").has(flag);
        let line = b"VmFlags: rd wr mr mw me lo ac ";
        assert!(has(line, Flag::Locked) && !has(line, Flag::WipedOnFork));
        assert!(has(b"VmFlags: rd wr wf ac ", Flag::WipedOnFork));
        assert!(!has(b"VmFlags: rd wr mr mw me ac ", Flag::Locked));
        let line = b"VmFlags: rd wr mr mw me dc ac um sd ";
        assert!(has(line, Flag::Unforked) && has(line, Flag::Registered));
        assert!(Flags::of(b"Locked:    64 kB").is_none());
    }
}
