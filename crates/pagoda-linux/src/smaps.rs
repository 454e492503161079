//! Which mappings of this process have a flag that `/proc/self/maps` does not tell of.
//!
//! The kernel walks all that is present for it. Like the other readers it must never allocate but at its start, take a lock or use
//! thread-local storage: it runs in an engine thread inside another program.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use crate::maps::{Mapping, for_each_line, parse_line};

/// As for the maps; a line is told by less than that.
const BUFFER_BYTES: usize = 8192;

/// A flag of a mapping, as the line `VmFlags:` has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flag {
    /// It is locked. `lf` (locked as pages come) always comes with it.
    Locked,
    /// It is empty in the child of a fork.
    WipedOnFork,
}

impl Flag {
    const fn text(self) -> &'static [u8] {
        match self {
            Self::Locked => b"lo",
            Self::WipedOnFork => b"wf",
        }
    }
}

/// Reads the flags of this process's mappings, any number of times.
pub(crate) struct SmapsReader {
    file: OwnedFd,
    buffer: Box<[u8]>,
}

impl SmapsReader {
    /// Opens the file and allocates the only memory that this reader will ever use. Call it on the thread that will read, or on one
    /// that it shares descriptors with. After a fork the child needs a reader of its own.
    pub(crate) fn new() -> io::Result<Self> {
        let file = rustix::fs::open(c"/proc/self/smaps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { file, buffer: vec![0; BUFFER_BYTES].into_boxed_slice() })
    }

    /// Calls `f` with each mapping that has the flag, lowest address first.
    pub(crate) fn for_each(&mut self, flag: Flag, mut f: impl FnMut(&Mapping)) -> io::Result<()> {
        let mut current = None;
        lines(&self.file, &mut self.buffer, |line| {
            if let Some(mapping) = parse_line(line) {
                current = Some(mapping);
            } else if has(line, flag)
                && let Some(mapping) = current.take()
            {
                f(&mapping);
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

/// The line `VmFlags: rd wr mr mw me lo ac`.
fn has(line: &[u8], flag: Flag) -> bool {
    line.strip_prefix(b"VmFlags:")
        .is_some_and(|flags| flags.split(|byte| *byte == b' ').any(|word| word == flag.text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_a_whole_word_of_its_line() {
        let line = b"VmFlags: rd wr mr mw me lo ac ";
        assert!(has(line, Flag::Locked) && !has(line, Flag::WipedOnFork));
        assert!(has(b"VmFlags: rd wr wf ac ", Flag::WipedOnFork));
        assert!(
            !has(b"VmFlags: rd wr mr mw me ac ", Flag::Locked) && !has(b"Locked:    64 kB", Flag::Locked)
        );
    }
}
