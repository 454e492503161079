//! How much memory this process holds, as the kernel counts it.
//!
//! Cheap enough to ask every millisecond. It must never allocate or use thread-local storage: it
//! runs in an engine thread inside another program.
//!
//! The kernel keeps these counts for each CPU and adds them up when asked. Before 6.17 it leaves
//! out counts that a CPU has not handed in yet: up to 2 × CPUs OS pages (at least 32) for each CPU,
//! in either direction.

use std::io;
use std::os::fd::OwnedFd;

use pagoda_core::page::OS_PAGE;
use rustix::fs::{Mode, OFlags};

/// The content of `/proc/thread-self/statm`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statm {
    /// Address space that is mapped, touched or not.
    pub size_bytes: usize,
    /// Memory present in the page tables, of any kind.
    pub resident_bytes: usize,
    /// The part of it that is page cache of files, or shared memory.
    pub file_and_shared_bytes: usize,
    /// Address space that is private and writable, or a stack, touched or not.
    pub data_bytes: usize,
}

impl Statm {
    /// The anonymous part of resident memory. Zero if the counts, taken one after the other,
    /// contradict each other.
    #[must_use]
    pub const fn anon_bytes(&self) -> usize {
        self.resident_bytes.saturating_sub(self.file_and_shared_bytes)
    }
}

/// `/proc/self/status` is about 1.5 KiB, and `RssAnon` is in the first: before it come 25 short
/// lines, a process name of at most 64 bytes and the list of groups. Only that list has no small
/// bound (65,536 groups); a process with more than fit here gets an error, not a wrong count.
pub(crate) const STATUS_BYTES: usize = 4096;

/// Reads the memory counts of this process, any number of times.
pub struct StatmReader {
    statm: OwnedFd,
    status: OwnedFd,
}

impl StatmReader {
    /// Opens the files, those of the calling thread: of a process whose main thread has ended,
    /// `/proc/self` counts nothing. Call it on a thread that lives as long as the reader, and has
    /// the file table of the thread that reads. After a fork the child needs a reader of its own:
    /// this one goes on showing the parent.
    ///
    /// # Errors
    /// Those of opening it: no `/proc` (`NotFound`), or no descriptor left.
    pub fn new() -> io::Result<Self> {
        let open = |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(Self { statm: open(c"/proc/thread-self/statm")?, status: open(c"/proc/thread-self/status")? })
    }

    /// The counts now. About a microsecond; takes no lock of the address space.
    ///
    /// # Errors
    /// Those of `pread`, or `InvalidData` for text that is not in the kernel's format.
    pub fn read(&self) -> io::Result<Statm> {
        let mut buffer = [0; 256];
        let text = read_start(&self.statm, &mut buffer)?;
        Ok(parse_statm(text).ok_or(io::ErrorKind::InvalidData)?)
    }

    /// Resident anonymous memory in bytes: [`Statm::anon_bytes`] of a fresh [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn anon_bytes(&self) -> io::Result<usize> {
        Ok(self.read()?.anon_bytes())
    }

    /// Resident anonymous memory in bytes as the kernel itself reports it (`RssAnon` of
    /// `/proc/self/status`), not computed as a difference. Several times the cost of
    /// [`read`](Self::read): for reconciliation.
    ///
    /// # Errors
    /// Those of `pread`, or `InvalidData` if the line isn't in the first 4,096 bytes.
    pub fn rss_anon_exact(&self) -> io::Result<usize> {
        let mut buffer = [0; STATUS_BYTES];
        let text = read_start(&self.status, &mut buffer)?;
        Ok(parse_rss_anon(text).ok_or(io::ErrorKind::InvalidData)?)
    }
}

pub(crate) fn read_start<'a>(file: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    loop {
        match rustix::io::pread(file, &mut *buffer, 0) {
            Err(rustix::io::Errno::INTR) => {}
            got => {
                let got = got?;
                return Ok(&buffer[..got]);
            }
        }
    }
}

/// `size resident shared text lib data dt`, in OS pages.
fn parse_statm(text: &[u8]) -> Option<Statm> {
    let mut fields = text.trim_ascii().split(|byte| *byte == b' ');
    let mut bytes = || decimal(fields.next()?)?.checked_mul(OS_PAGE);
    let (size_bytes, resident_bytes, file_and_shared_bytes) = (bytes()?, bytes()?, bytes()?);
    let [_text, _library, data_bytes] = [bytes()?, bytes()?, bytes()?];
    Some(Statm { size_bytes, resident_bytes, file_and_shared_bytes, data_bytes })
}

/// The line `RssAnon:     1234 kB`, whole.
fn parse_rss_anon(text: &[u8]) -> Option<usize> {
    let whole_lines = &text[..text.iter().rposition(|byte| *byte == b'\n')?];
    let value = whole_lines.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"RssAnon:"))?;
    decimal(value.strip_suffix(b" kB")?.trim_ascii())?.checked_mul(1024)
}

pub(crate) fn decimal(text: &[u8]) -> Option<usize> {
    let digits = (!text.is_empty()).then_some(text)?;
    digits.iter().try_fold(0usize, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| usize::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_exactly_or_not_at_all() {
        let statm = parse_statm(b"100 50 20 1 0 30 0\n").expect("statm");
        assert_eq!((statm.size_bytes, statm.anon_bytes()), (100 * OS_PAGE, 30 * OS_PAGE));
        assert_eq!(Statm { file_and_shared_bytes: usize::MAX, ..statm }.anon_bytes(), 0);
        for text in ["", "1 2", "1 x 3", "99999999999999999999 1 1", "1  2 3"] {
            assert_eq!(parse_statm(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_rss_anon(b"Name:\tx\nRssAnon:\t      12 kB\nRssFile:"), Some(12 << 10));
        for text in ["", "RssAnon:\t 12 kB", "RssAnon:\t 12\n", "Name:\tRssAnon: 12 kB\n"] {
            assert_eq!(parse_rss_anon(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn touched_memory_is_counted_and_given_back() {
        const TOUCHED: usize = 64 << 20;
        // Other tests of this process allocate meanwhile, but nowhere near so much.
        const SLACK: usize = 32 << 20;
        let reader = StatmReader::new().expect("open");
        let before = reader.anon_bytes().expect("before");
        let block = vec![1u8; TOUCHED];
        let during = reader.anon_bytes().expect("during");
        assert!(during >= before + TOUCHED - SLACK, "{before} {during}");
        assert!(reader.rss_anon_exact().expect("status").abs_diff(during) <= SLACK);
        assert!(reader.read().expect("statm").size_bytes > TOUCHED);
        drop(std::hint::black_box(block));
        assert!(reader.anon_bytes().expect("after") <= during - TOUCHED + SLACK);
    }
}
