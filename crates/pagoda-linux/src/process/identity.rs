//! The identity of a process: its number and when it started, because the kernel reuses numbers.
//!
//! Both fit one word, so that a place in shared memory can be taken and given up by
//! compare-and-swap. Other processes are only looked at through `/proc`, whose answers are those of
//! one PID namespace and one time namespace: identities are compared within them ([`namespaces`]).
//! Nothing here allocates, blocks, or uses thread-local storage.

use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use pagoda_core::page::OS_PAGE;

/// Process numbers are below 4,194,304 on 64-bit Linux (`PID_MAX_LIMIT`).
const PID_BITS: u32 = 22;

/// A process. Never 0 as a word, and never with the highest bit set: 42 bits of clock ticks are
/// 1,394 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64);

impl Identity {
    /// The calling process.
    ///
    /// # Errors
    /// There is no `/proc`, or no descriptor left.
    pub fn of_self() -> io::Result<Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        let mut text = [0; 1024];
        let Stat { start, .. } =
            parse_stat(read(c"/proc/self/stat", &mut text)?).ok_or(io::ErrorKind::InvalidData)?;
        Self::new(pid, start).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Of a process number and a start in clock ticks since boot; `None` if they can't be those of
    /// a process.
    #[must_use]
    pub fn new(pid: u32, start: u64) -> Option<Self> {
        let fits = pid > 0 && pid < 1 << PID_BITS && start < 1 << (63 - PID_BITS);
        fits.then_some(Self(start << PID_BITS | u64::from(pid)))
    }

    /// As a word that is not 0.
    #[must_use]
    pub fn word(self) -> u64 {
        self.0
    }

    /// Reads a word; `None` if no identity has it.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let pid = u32::try_from(word & ((1 << PID_BITS) - 1)).ok()?;
        Self::new(pid, word >> PID_BITS)
    }

    /// The number of the process.
    #[must_use]
    pub fn pid(self) -> u32 {
        (self.0 & ((1 << PID_BITS) - 1)) as u32
    }

    /// Whether this process still holds memory: it is there, it is not another one with its number,
    /// and a thread of it runs, though perhaps not the main thread. A process whose `/proc` files
    /// can't be read counts as alive.
    #[must_use]
    pub fn is_alive(self) -> bool {
        if !self.may_be_alive() {
            return false;
        }
        let mut text = [0; 1024];
        let mut path = [0; 32];
        match read(proc_path(self.pid(), b"stat", &mut path), &mut text) {
            Ok(text) => parse_stat(text)
                .is_none_or(|stat| stat.runs() && Self::new(self.pid(), stat.start) == Some(self)),
            // It ended between the two looks, or `/proc` does not show it.
            Err(_) => self.may_be_alive(),
        }
    }

    /// Whether a process has this number: one system call. A zombie has one.
    #[must_use]
    pub fn may_be_alive(self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid().cast_signed()) else { return false };
        rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
    }

    /// The resident anonymous memory of the process with this number, in bytes; `None` if it can't
    /// be seen.
    #[must_use]
    pub fn anon_bytes(self) -> Option<u64> {
        let mut path = [0; 32];
        let of_main = anon_of(proc_path(self.pid(), b"statm", &mut path))?;
        if of_main.is_some() {
            return of_main;
        }
        // The main thread has ended; any other has the count.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tasks = rustix::fs::open(proc_path(self.pid(), b"task", &mut path), flags, Mode::empty()).ok()?;
        let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
        let mut entries = rustix::fs::RawDir::new(&tasks, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            let thread = decimal(entry.file_name().to_bytes()).and_then(|number| u32::try_from(number).ok());
            if let Some(thread) = thread
                && let Some(Some(anon)) = anon_of(proc_path(thread, b"statm", &mut path))
            {
                return Some(anon);
            }
        }
        Some(0)
    }
}

/// The resident anonymous memory by a `statm` file, in bytes. The inner `None` is of a thread that
/// has no memory any more.
fn anon_of(statm: &std::ffi::CStr) -> Option<Option<u64>> {
    let mut text = [0; 256];
    let text = read(statm, &mut text).ok()?;
    let mut fields = text.trim_ascii().split(|byte| *byte == b' ');
    let mut pages = || decimal(fields.next()?);
    let (size, resident, file) = (pages()?, pages()?, pages()?);
    Some((size > 0).then(|| resident.saturating_sub(file).saturating_mul(OS_PAGE as u64)))
}

/// A number for the namespaces that this process sees others in: equal numbers mean that identities
/// can be compared.
///
/// # Errors
/// There is no `/proc`.
pub fn namespaces() -> io::Result<u64> {
    let of = |path| rustix::fs::stat(path).map(|stat| stat.st_ino);
    // A kernel without time namespaces has one time.
    Ok(of(c"/proc/self/ns/pid")? << 32 ^ of(c"/proc/self/ns/time").unwrap_or(0))
}

/// Whether a thread of any process is stopped, by a signal or by a debugger. False if that can't be
/// known.
#[must_use]
pub fn is_stopped(thread: u32) -> bool {
    matches!(state(thread), Some(b'T' | b't'))
}

/// Whether a signal has stopped a thread of any process. False if that can't be known.
#[must_use]
pub fn is_stopped_by_signal(thread: u32) -> bool {
    state(thread) == Some(b'T')
}

/// The letter of a thread's state, as proc(5) lists them.
fn state(thread: u32) -> Option<u8> {
    let (mut path, mut text) = ([0; 32], [0; 1024]);
    let stat = read(proc_path(thread, b"stat", &mut path), &mut text);
    stat.ok().and_then(parse_stat).map(|stat| stat.state)
}

/// `/proc/PID/NAME`, with its terminator; 32 bytes hold any.
fn proc_path<'a>(pid: u32, name: &[u8], buffer: &'a mut [u8; 32]) -> &'a std::ffi::CStr {
    let mut digits = [0; 10];
    let mut at = digits.len();
    let mut rest = pid;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let mut end = 0;
    for part in [b"/proc/".as_slice(), &digits[at..], b"/", name, b"\0"] {
        buffer[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    std::ffi::CStr::from_bytes_until_nul(&buffer[..]).expect("the terminator was just written")
}

fn read<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let got = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *buffer))?;
    Ok(&buffer[..got])
}

/// The content of `/proc/PID/stat` for a process's main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: u8,
    /// Threads that have not ended, and the main one in any case.
    pub(crate) threads: u64,
    pub(crate) start: u64,
    /// As wait(2) would give it of the main thread; 0 while that runs, or to a process that may not
    /// know it.
    pub(crate) exit_code: Option<u64>,
}

impl Stat {
    /// Whether the main thread has ended.
    pub(crate) fn is_main_gone(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Whether any thread runs. A main thread that has ended counts as one until its process ends.
    fn runs(&self) -> bool {
        !self.is_main_gone() || self.threads > 1
    }
}

/// Of `PID (NAME) STATE …`; the name may hold anything, so its end is the last parenthesis.
pub(crate) fn parse_stat(text: &[u8]) -> Option<Stat> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(name_end + 2..)?.trim_ascii().split(|byte| *byte == b' ');
    // The state is the third of all fields, the threads are the 20th, the start the 22nd, the exit
    // code the 52nd.
    let state = *fields.next()?.first()?;
    let threads = decimal(fields.nth(16)?)?;
    let start = decimal(fields.nth(1)?)?;
    Some(Stat { state, threads, start, exit_code: fields.nth(29).and_then(decimal) })
}

fn decimal(text: &[u8]) -> Option<u64> {
    let text = (!text.is_empty()).then_some(text)?;
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_itself_until_it_ends_and_no_other() {
        let own = Identity::of_self().expect("proc");
        assert_eq!((own.pid(), own.is_alive()), (std::process::id(), true));
        assert_eq!(Identity::from_word(own.word()), Some(own));
        let reused = Identity::new(own.pid(), 1).expect("fits");
        assert!(reused.may_be_alive() && !reused.is_alive(), "an earlier process of this number");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        let mut path = [0; 32];
        let mut text = [0; 1024];
        let stat = read(proc_path(child.id(), b"stat", &mut path), &mut text).expect("it runs");
        let identity = Identity::new(child.id(), parse_stat(stat).expect("stat").start).expect("fits");
        assert!(identity.is_alive() && identity.anon_bytes().is_some());
        child.kill().expect("killed");
        while identity.is_alive() {
            std::thread::yield_now();
        }
        assert!(identity.may_be_alive(), "a zombie has its number");
        child.wait().expect("ended");
        assert!(!identity.may_be_alive() && !identity.is_alive());
    }

    #[test]
    fn a_name_may_hold_parentheses_and_spaces() {
        let text = b"7 (a) S 1 (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21\n";
        let stat = Stat { state: b'R', threads: 17, start: 4242, exit_code: None };
        assert_eq!(parse_stat(text), Some(stat));
        for text in [b"7 (a) R 1 2".as_slice(), b"", b")", b"7 (a)"] {
            assert_eq!(parse_stat(text), None);
        }
    }

    #[test]
    fn an_impossible_process_is_none() {
        assert!(
            [Identity::from_word(0), Identity::new(0, 1), Identity::new(1 << 22, 1)]
                .iter()
                .all(Option::is_none)
        );
        assert_eq!(namespaces().expect("proc"), namespaces().expect("proc"));
        let mut buffer = [0; 32];
        assert_eq!(proc_path(4_194_303, b"statm", &mut buffer), c"/proc/4194303/statm");
    }
}
