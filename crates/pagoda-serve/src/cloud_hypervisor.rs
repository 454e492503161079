//! Cloud Hypervisor's offload protocol: a VM is restored by the peer of its local migration.
//!
//! Here this side connects and owns the memory: a file in memory for each slot, which the VMM maps.
//! The VM's configuration and state are sent as they were saved. Then the VMM asks on a second
//! connection for each page before it maps it, and this side writes the page into the file.
//!
//! ```text
//!   Start, MemoryFd of each slot, Config,  role "fault" on a second connection,  State, Complete
//!   request: u16 command, 6 bytes, u64 length;   answer: u16 status, 6 bytes, u64 length
//! ```
//!
//! A page is the guest's from the first answer about it: this module must never write it again.
//! And it must never take one away: the VMM asks for every page by itself, in order, and ends its
//! userfaultfd after the last one. From then on a page that is missing in the file reads zero.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_linux::io::local_socket::{connect_to, send};
use pagoda_linux::io::shared_file::memory_file;
use serde::{Deserialize, Serialize};

use crate::source::Source;

const START: u16 = 1;
const CONFIG: u16 = 2;
const STATE: u16 = 3;
const COMPLETE: u16 = 5;
const ABANDON: u16 = 6;
const MEMORY_FD: u16 = 7;
const COMPLETE_PAUSED: u16 = 8;
const PAGE_FAULT: u16 = 9;
const OK: u16 = 1;
const ERROR: u16 = 2;
/// The role of a connection that carries faults.
const ROLE_FAULT: u16 = 2;
const HEADER_BYTES: usize = 16;

/// How long the VMM may take for one answer: it makes the VM meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// Slots of a VM: its zones and hotplugged parts, with room.
const SLOTS_MOST: usize = 4096;

/// The longest configuration or state that is sent.
const PAYLOAD_BYTES_MOST: u64 = 256 << 20;

/// How long the VMM may still ask for a page again after it had the last one.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that are written ahead at a time.
const STEP_BYTES: usize = 64 << 10;

/// Why a VM could not be restored, in a user's words.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file of the snapshot.
    #[error(
        "{0} can't be read ({1}); give the directory of a snapshot, with migration_config.json, state.json and a memory-N for each slot"
    )]
    File(String, io::Error),
    /// The configuration.
    #[error("migration_config.json is not Cloud Hypervisor's: {0}")]
    Config(String),
    /// The connection.
    #[error("{0} ({1}); start receive-migration with memory_mode=postcopy first")]
    Connection(&'static str, io::Error),
    /// An answer.
    #[error("the VMM has refused {0}; its log says why")]
    Refused(&'static str),
    /// The VMM does something that the protocol has not.
    #[error("the VMM sent {0}")]
    Unexpected(String),
    /// Content.
    #[error("{0}; the VM is ended")]
    Content(crate::source::SourceError),
    /// Memory for the VM.
    #[error("the VM's memory can't be had ({0})")]
    Memory(io::Error),
}

/// A slot of the VM's memory, as its configuration names it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mapping {
    slot: u32,
    pub(crate) gpa: u64,
    pub(crate) size: u64,
    pub(crate) file_offset: u64,
}

#[derive(Deserialize)]
struct Config {
    memory_manager_data: MemoryData,
}

#[derive(Deserialize)]
struct MemoryData {
    guest_ram_mappings: Vec<Mapping>,
}

/// The slots of a configuration, none of which overlaps another.
pub(crate) fn mappings_of(config: &[u8]) -> Result<Vec<Mapping>, Failure> {
    let config: Config =
        serde_json::from_slice(config).map_err(|error| Failure::Config(error.to_string()))?;
    let mut mappings = config.memory_manager_data.guest_ram_mappings;
    mappings.sort_by_key(|mapping| mapping.gpa);
    let aligned = |mapping: &Mapping| {
        let words = [mapping.gpa, mapping.size, mapping.file_offset];
        mapping.size > 0 && words.iter().all(|word| word.is_multiple_of(OS_PAGE as u64))
    };
    let ends = |mapping: &Mapping| {
        mapping.file_offset.checked_add(mapping.size)?;
        mapping.gpa.checked_add(mapping.size)
    };
    let apart = |pair: &[Mapping]| ends(&pair[0]).is_some_and(|end| end <= pair[1].gpa);
    let is_right = mappings.iter().all(|mapping| aligned(mapping) && ends(mapping).is_some())
        && mappings.windows(2).all(apart)
        && (1..=SLOTS_MOST).contains(&mappings.len());
    if is_right { Ok(mappings) } else { Err(Failure::Config("its memory slots make no sense".to_owned())) }
}

/// A slot that is served: its file, and the pages that the guest may have.
struct Slot {
    mapping: Mapping,
    file: File,
    source: Box<dyn Source>,
    /// A bit for each page that was written to the file.
    given: Mutex<Pages>,
}

/// A bit for each page of a slot.
struct Pages(Vec<u64>);

impl Pages {
    fn new(len_bytes: u64) -> Self {
        Self(vec![0; (len_bytes / OS_PAGE as u64).div_ceil(64) as usize])
    }

    fn has(&self, page: usize) -> bool {
        self.0[page / 64] & (1 << (page % 64)) != 0
    }

    /// Sets the bits of `pages`, and returns how many were not set.
    fn set(&mut self, pages: Range<usize>) -> u64 {
        let new = pages.clone().filter(|&page| !self.has(page)).count();
        pages.for_each(|page| self.0[page / 64] |= 1 << (page % 64));
        new as u64
    }
}

fn pages_of(offset: u64, len_bytes: usize) -> Range<usize> {
    let first = offset as usize / OS_PAGE;
    first..first + len_bytes / OS_PAGE
}

impl Slot {
    fn open(
        mapping: Mapping,
        open: &dyn Fn(u32) -> Result<Box<dyn Source>, Failure>,
    ) -> Result<Self, Failure> {
        let source = open(mapping.slot)?;
        let file = memory_file(c"pagoda-vm", mapping.file_offset + mapping.size).map_err(Failure::Memory)?;
        let given = Mutex::new(Pages::new(mapping.size));
        Ok(Self { mapping, file, source, given })
    }

    /// Writes the pages of this part that were not written yet, and returns how many these were.
    /// A page that was written meanwhile is left out: it may be the guest's.
    fn give(&self, offset: u64, len: usize, buffer: &mut Vec<u8>) -> Result<u64, Failure> {
        let pages = pages_of(offset, len);
        {
            let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
            if pages.clone().all(|page| given.has(page)) {
                return Ok(0);
            }
        }
        buffer.resize(len, 0);
        self.source.read_at(offset, buffer).map_err(Failure::Content)?;
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut count, mut at) = (0, pages.start);
        while at < pages.end {
            let run = (at..pages.end).take_while(|&page| !given.has(page)).count();
            let bytes = &buffer[(at - pages.start) * OS_PAGE..][..run * OS_PAGE];
            // Zeroes, too: the VMM can map only a page that the file has.
            let to = self.mapping.file_offset + (at * OS_PAGE) as u64;
            self.file.write_all_at(bytes, to).map_err(Failure::Memory)?;
            count += given.set(at..at + run);
            at += run.max(1);
        }
        Ok(count)
    }

    /// The offset of these bytes of the guest's in this slot.
    fn offset_of(&self, gpa: u64, len: u64) -> Option<u64> {
        let offset = gpa.checked_sub(self.mapping.gpa)?;
        (offset.checked_add(len)? <= self.mapping.size).then_some(offset)
    }
}

/// What a restore has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Restored {
    /// The VM's memory in bytes.
    pub memory_bytes: u64,
    /// Requests of the VMM that were answered.
    pub faults: u64,
    /// Bytes that were written before they were asked for.
    pub prefetched_bytes: u64,
    /// From the connection to the VM's start.
    pub started_ms: f64,
}

/// Restores a VM: one that has `socket` for its migration. Returns when it has all of its memory,
/// or has ended. `open` opens the memory of a slot.
///
/// # Errors
/// Why it could not be restored.
pub fn restore(
    directory: &Path,
    socket: &Path,
    resumes: bool,
    open: &dyn Fn(u32) -> Result<Box<dyn Source>, Failure>,
) -> Result<Restored, Failure> {
    let begin = Instant::now();
    let config = payload(directory, "migration_config.json")?;
    let state = payload(directory, "state.json")?;
    let slots: Vec<Slot> = mappings_of(&config)?
        .into_iter()
        .map(|mapping| Slot::open(mapping, open))
        .collect::<Result<_, _>>()?;
    let mut line = connect(socket)?;
    request(&mut line, START, &[], "Start")?;
    for slot in &slots {
        send_memory(&mut line, slot)?;
    }
    request(&mut line, CONFIG, &config, "Config")?;
    // Its faults come from the State on.
    let mut fault_line = connect(socket)?;
    fault_line
        .write_all(&ROLE_FAULT.to_le_bytes())
        .and_then(|()| fault_line.set_read_timeout(None))
        .map_err(|error| Failure::Connection("the connection for faults failed", error))?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&mut fault_line, &slots));
        let ahead = scope.spawn(|| write_ahead(&slots));
        let sent = request(&mut line, STATE, &state, "State").and_then(|()| {
            let complete = if resumes { COMPLETE } else { COMPLETE_PAUSED };
            request(&mut line, complete, &[], "Complete")
        });
        let started_ms = begin.elapsed().as_secs_f64() * 1e3;
        if sent.is_err() {
            // The VMM may keep its end open: the thread must not wait for it.
            let _ = line.shutdown(std::net::Shutdown::Both);
        }
        let faults = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let prefetched_pages = ahead.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent?;
        Ok(Restored {
            memory_bytes: slots.iter().map(|slot| slot.mapping.size).sum(),
            faults: faults?,
            prefetched_bytes: prefetched_pages * OS_PAGE as u64,
            started_ms,
        })
    })
}

fn payload(directory: &Path, name: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::File(name.to_owned(), error);
    let file = File::open(directory.join(name)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(PAYLOAD_BYTES_MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > PAYLOAD_BYTES_MOST {
        return Err(failed(io::Error::other("it is longer than 256 MiB")));
    }
    Ok(bytes)
}

fn connect(socket: &Path) -> Result<UnixStream, Failure> {
    let failed = |error| Failure::Connection("the VMM can't be connected to", error);
    let stream = UnixStream::from(connect_to(socket).map_err(failed)?);
    stream.set_nonblocking(false).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    Ok(stream)
}

fn header(word: u16, length: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..2].copy_from_slice(&word.to_le_bytes());
    bytes[8..].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Reads a header: its first word, and its length. None at the end of the connection.
fn read_header(line: &mut UnixStream) -> io::Result<Option<(u16, u64)>> {
    let mut bytes = [0; HEADER_BYTES];
    match line.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u64::from_le_bytes(*bytes.last_chunk().expect("16 bytes"));
    Ok(Some((u16::from_le_bytes([bytes[0], bytes[1]]), length)))
}

fn request(line: &mut UnixStream, command: u16, payload: &[u8], name: &'static str) -> Result<(), Failure> {
    let sent = line.write_all(&header(command, payload.len() as u64)).and_then(|()| line.write_all(payload));
    sent.map_err(|error| Failure::Connection("a request could not be sent", error))?;
    expect_ok(line, name)
}

fn expect_ok(line: &mut UnixStream, name: &'static str) -> Result<(), Failure> {
    match read_header(line).map_err(|error| Failure::Connection("no answer came", error))? {
        Some((OK, 0)) => Ok(()),
        _ => Err(Failure::Refused(name)),
    }
}

fn send_memory(line: &mut UnixStream, slot: &Slot) -> Result<(), Failure> {
    let failed = |error| Failure::Connection("memory could not be sent", error);
    line.write_all(&header(MEMORY_FD, 4)).map_err(failed)?;
    let begin = Instant::now();
    while !send(&*line, &slot.mapping.slot.to_le_bytes(), &[slot.file.as_fd()]).map_err(failed)? {
        if begin.elapsed() > PATIENCE {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    expect_ok(line, "MemoryFd")
}

/// Answers faults until the VMM needs no more. Returns how many there were.
fn serve(line: &mut UnixStream, slots: &[Slot]) -> Result<u64, Failure> {
    let (mut faults, mut buffer) = (0, Vec::new());
    let mut answered: Vec<Pages> = slots.iter().map(|slot| Pages::new(slot.mapping.size)).collect();
    let mut left: u64 = slots.iter().map(|slot| slot.mapping.size / OS_PAGE as u64).sum();
    let failed = |error| Failure::Connection("the connection for faults failed", error);
    let is_late =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    loop {
        match read_header(line) {
            // It has every page, and keeps its end open for as long as the VM lives.
            Err(error) if left == 0 && is_late(&error) => return Ok(faults),
            Err(error) => return Err(failed(error)),
            Ok(None) => return Ok(faults),
            Ok(Some((PAGE_FAULT, 16))) => {
                let mut range = [0; 16];
                line.read_exact(&mut range).map_err(failed)?;
                let [gpa, len] =
                    [0, 8].map(|at| u64::from_le_bytes(*range[at..].first_chunk().expect("8 bytes")));
                let page = answer(slots, gpa, len, &mut buffer);
                let status = if page.is_ok() { OK } else { ERROR };
                line.write_all(&header(status, 0)).map_err(failed)?;
                let (slot, pages) = page?;
                faults += 1;
                left -= answered[slot].set(pages);
                if left == 0 {
                    line.set_read_timeout(Some(LAST_PATIENCE)).map_err(failed)?;
                }
            }
            Ok(Some((ABANDON, _))) => {
                line.write_all(&header(OK, 0)).map_err(failed)?;
                return Ok(faults);
            }
            Ok(Some((command, length))) => {
                return Err(Failure::Unexpected(format!(
                    "command {command} with {length} bytes where a page fault was expected"
                )));
            }
        }
    }
}

/// Has these bytes of the guest's written. Returns the slot that they are in, and their pages.
fn answer(
    slots: &[Slot],
    gpa: u64,
    len: u64,
    buffer: &mut Vec<u8>,
) -> Result<(usize, Range<usize>), Failure> {
    let is_page = (1..=HUGE_FRAME as u64).contains(&len)
        && [gpa, len].iter().all(|word| word.is_multiple_of(OS_PAGE as u64));
    let slot = slots.iter().position(|slot| is_page && slot.offset_of(gpa, len).is_some());
    let Some((slot, offset)) = slot.and_then(|slot| Some((slot, slots[slot].offset_of(gpa, len)?))) else {
        return Err(Failure::Unexpected(format!(
            "a page fault of {len} bytes at {gpa:#x}, in no slot of the VM"
        )));
    };
    slots[slot].give(offset, len as usize, buffer)?;
    Ok((slot, pages_of(offset, len as usize)))
}

/// Writes what will be asked for: the working set, then all in the VMM's order. Ends with the first
/// part that can't be read: the VMM's request tells of it. Returns the pages that it wrote.
fn write_ahead(slots: &[Slot]) -> u64 {
    let (mut pages, mut buffer) = (0, Vec::new());
    for slot in slots {
        let len_bytes = slot.mapping.size;
        let whole = std::iter::once(0..len_bytes);
        for part in slot.source.working_set().into_iter().chain(whole) {
            let mut at = part.start / OS_PAGE as u64 * OS_PAGE as u64;
            let end = part.end.next_multiple_of(OS_PAGE as u64).min(len_bytes);
            while at < end {
                let len = (end - at).min(STEP_BYTES as u64);
                match slot.give(at, len as usize, &mut buffer) {
                    Ok(count) => pages += count,
                    Err(_) => return pages,
                }
                at += len;
            }
        }
    }
    pages
}
