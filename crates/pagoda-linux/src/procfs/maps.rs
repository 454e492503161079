//! The address space of this process, mapping by mapping, as `/proc/self/maps` tells it.
//!
//! The text is read in pieces into a buffer that the reader owns, and parsed in place. Walking it
//! must never allocate, take a lock or use thread-local storage: it runs in an engine thread inside
//! another program, and an allocation could change the very maps it reads.
//!
//! The walk is not a snapshot. The kernel hands out the text a few thousand bytes at a time, in
//! order of address; mappings that another thread makes or unmaps meanwhile may or may not be seen.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

/// One mapping: a range of addresses with one protection and one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: usize,
    /// The first address after it.
    pub end: usize,
    /// It can be read.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// It can be executed.
    pub execute: bool,
    /// It is `MAP_SHARED`: other processes see writes to it.
    pub shared: bool,
    /// Where in its file it begins, in bytes.
    pub offset: u64,
    /// The device of the file behind it, major and minor.
    pub device: (u32, u32),
    /// The inode of the file behind it; 0 if there is none.
    pub inode: u64,
    /// Where it comes from.
    pub kind: MappingKind,
}

/// Where a mapping comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// Anonymous memory without a name. Shared anonymous memory is not this but
    /// [`SharedMemory`](Self::SharedMemory).
    Anonymous,
    /// `[heap]`: the area that `brk` grows.
    Heap,
    /// `[stack]`: the stack of the first thread, which the kernel grows downwards.
    MainStack,
    /// `[anon:…]`: anonymous memory that the program gave a name.
    NamedAnonymous,
    /// Memory of the kernel's that a file stands for, but no disk: shared anonymous memory, a
    /// memfd, System V or POSIX shared memory. A private mapping of such is this too. The counters
    /// that Pagoda shares with its command are not.
    SharedMemory,
    /// A file, also a deleted one.
    File,
    /// Areas of the kernel (`[vdso]`, `[vvar]`, `[vsyscall]`, `[uprobes]`, …), and every name
    /// not known here.
    Special,
}

impl Mapping {
    /// Its length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.end - self.start
    }

    /// It is private memory that no file stands behind and that the program, not the kernel, put
    /// there.
    #[must_use]
    pub const fn is_private_anonymous(&self) -> bool {
        use MappingKind::{Anonymous, Heap, MainStack, NamedAnonymous};
        !self.shared && matches!(self.kind, Anonymous | Heap | MainStack | NamedAnonymous)
    }
}

/// The least buffer: the part before a name takes at most 97 bytes (two addresses and an offset of
/// 16 digits, a device of 8, an inode of 20, then padding up to column 73), and the first 16 bytes
/// of a name tell its kind.
const BUFFER_BYTES_MIN: usize = 256;

/// The largest buffer. The kernel fills one OS page a read (more only for a single line longer than
/// that), so that anything beyond two OS pages is never used.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Reads the maps of this process, any number of times.
pub struct MapsReader {
    file: OwnedFd,
    buffer: Box<[u8]>,
}

impl MapsReader {
    /// Opens `/proc/thread-self/maps`, which is there after the main thread has ended, too, and
    /// allocates the only memory that this reader will ever use. `buffer_bytes` is brought into
    /// 256..=1,048,576; 8,192 is plenty.
    ///
    /// Call it on the thread that will read, if that thread has a file table of its own. After a
    /// fork the child needs a reader of its own: this one goes on showing the parent.
    ///
    /// # Errors
    /// Those of opening the file: no `/proc` (`NotFound`), or no descriptor left.
    pub fn new(buffer_bytes: usize) -> io::Result<Self> {
        let buffer_bytes = buffer_bytes.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        let file =
            rustix::fs::open(c"/proc/thread-self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { file, buffer: vec![0; buffer_bytes].into_boxed_slice() })
    }

    /// Calls `f` with each mapping, lowest address first.
    ///
    /// Blocks for the kernel's lock on the address space, as a page fault does. `f` may change the
    /// address space.
    ///
    /// # Errors
    /// Those of `pread`, or `InvalidData` for a line that is not in the kernel's format. Mappings
    /// before it were passed to `f`.
    pub fn for_each(&mut self, f: impl FnMut(&Mapping)) -> io::Result<()> {
        let file = &self.file;
        // The kernel continues without starting over only at the offset where the last read ended.
        scan(&mut self.buffer, |into, offset| Ok(rustix::io::pread(file, into, offset)?), f)
    }
}

/// Opens `/proc/thread-self/maps` and calls `f` with each mapping, lowest address first, without
/// allocating: `buffer` takes the text, and has to be longer than a line without its name, of 100
/// bytes.
///
/// # Errors
/// Those of opening it, and those of [`MapsReader::for_each`].
pub(crate) fn for_each_mapping(buffer: &mut [u8], f: impl FnMut(&Mapping)) -> io::Result<()> {
    let file = rustix::fs::open(c"/proc/thread-self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    scan(buffer, |into, offset| Ok(rustix::io::pread(&file, into, offset)?), f)
}

/// Walks text that `read` delivers piece by piece: into a buffer, from an offset, how many bytes; 0
/// at the end.
fn scan(
    buffer: &mut [u8],
    read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    mut f: impl FnMut(&Mapping),
) -> io::Result<()> {
    for_each_line(buffer, read, |line| {
        f(&parse_line(line).ok_or(io::ErrorKind::InvalidData)?);
        Ok(())
    })
}

/// The same for text of any kind: calls `emit` with each line, without its end and cut to the
/// buffer's length.
pub(crate) fn for_each_line(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    mut emit: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut offset: u64 = 0;
    // The start of a line whose end has not been read yet: so many bytes at the front of the
    // buffer.
    let mut carried = 0;
    // The line was longer than the buffer: its mapping is known already, the rest of its name is
    // not wanted.
    let mut skipping = false;
    loop {
        let got = match read(&mut buffer[carried..], offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        if got == 0 {
            return if carried > 0 && !skipping { emit(&buffer[..carried]) } else { Ok(()) };
        }
        offset += got as u64;
        let filled = carried + got;
        let mut at = 0;
        // The carried part holds no end of line; only new bytes are searched.
        let mut search = carried;
        while let Some(length) = buffer[search..filled].iter().position(|byte| *byte == b'\n') {
            let end = search + length;
            if !std::mem::take(&mut skipping) {
                emit(&buffer[at..end])?;
            }
            at = end + 1;
            search = at;
        }
        carried = filled - at;
        if skipping {
            carried = 0;
        } else if carried == buffer.len() {
            emit(buffer)?;
            (skipping, carried) = (true, 0);
        } else {
            buffer.copy_within(at..filled, 0);
        }
    }
}

/// Reads one line without its end of line. A name that is cut short is told by its beginning.
/// `None` if the line is not in the kernel's format:
/// `start-end rwxp offset major:minor inode   name`.
#[must_use]
pub fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let start = number(&mut rest, b'-', 16)?;
    let end = number(&mut rest, b' ', 16)?;
    let [read, write, execute, shared, b' ', ..] = *rest else { return None };
    rest = &rest[5..];
    let flag = |byte, set| match byte {
        b'-' => Some(false),
        byte if byte == set => Some(true),
        _ => None,
    };
    let shared = match shared {
        b'p' => false,
        b's' => true,
        _ => return None,
    };
    let offset = number(&mut rest, b' ', 16)?;
    let major = number(&mut rest, b':', 16)?;
    let minor = number(&mut rest, b' ', 16)?;
    let inode = number(&mut rest, b' ', 10)?;
    (start < end).then_some(Mapping {
        start: usize::try_from(start).ok()?,
        end: usize::try_from(end).ok()?,
        read: flag(read, b'r')?,
        write: flag(write, b'w')?,
        execute: flag(execute, b'x')?,
        shared,
        offset,
        device: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        inode,
        kind: kind(rest.trim_ascii_start(), inode),
    })
}

/// Takes a number and the separator after it off the front. The end of the line separates too.
fn number(rest: &mut &[u8], separator: u8, radix: u32) -> Option<u64> {
    let digits = rest.iter().position(|byte| *byte == separator).unwrap_or(rest.len());
    let (mut value, text): (u64, _) = (0, rest.get(..digits).filter(|text| !text.is_empty())?);
    for byte in text {
        let digit = char::from(*byte).to_digit(radix)?;
        value = value.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))?;
    }
    *rest = rest.get(digits + 1..).unwrap_or_default();
    Some(value)
}

/// The beginnings of the names that the kernel gives to shared anonymous memory (and to mappings of
/// /dev/zero, which are the same), memfds, System V and POSIX shared memory.
const SHARED_MEMORY: [&[u8]; 4] = [b"/dev/zero", b"/memfd:", b"/SYSV", b"/dev/shm/"];

/// The beginnings of the names of our own files there: the counters file and the trace of
/// `pagoda run`, and the holds of a child on places of a file.
const OWN: [&[u8]; 3] = [b"/dev/shm/pagoda-", b"/memfd:pagoda-trace ", b"/memfd:pagoda-holds "];

fn kind(name: &[u8], inode: u64) -> MappingKind {
    // The inode first: a file may have any name, `[heap]` included. Some file systems number from
    // 0, hence the slash.
    if inode != 0 || name.starts_with(b"/") {
        let is_shared_memory = SHARED_MEMORY.iter().any(|start| name.starts_with(start));
        let is_shared_memory = is_shared_memory && !OWN.iter().any(|start| name.starts_with(start));
        return if is_shared_memory { MappingKind::SharedMemory } else { MappingKind::File };
    }
    match name {
        b"" => MappingKind::Anonymous,
        b"[heap]" => MappingKind::Heap,
        b"[stack]" => MappingKind::MainStack,
        name if name.starts_with(b"[anon:") => MappingKind::NamedAnonymous,
        _ => MappingKind::Special,
    }
}

#[cfg(test)]
#[path = "maps_test.rs"]
mod tests;
