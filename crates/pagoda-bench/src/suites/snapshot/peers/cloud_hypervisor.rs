//! A VMM that speaks Cloud Hypervisor's offload protocol: it listens, gets files with the memory,
//! and asks for pages.
//!
//! The tests of `pagoda serve` use it, too. This module must never write to the memory, nor wait
//! without a bound.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use pagoda_core::page::OS_PAGE;
use pagoda_linux::io::local_socket::{Awaited, receive, wait_any};

/// How long the other side may take for one step.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest payload that is taken.
const PAYLOAD_BYTES_MOST: u64 = 1 << 20;
const HEADER_BYTES: usize = 16;

/// The commands up to the state, but for the memory's.
const START: u16 = 1;
const CONFIG: u16 = 2;
const STATE: u16 = 3;
const MEMORY_FD: u16 = 7;
const PAGE_FAULT: u16 = 9;
/// The status of an answer that is no refusal.
pub const OK: u16 = 1;
/// The role of a connection that carries faults.
const ROLE_FAULT: [u8; 2] = [2, 0];

/// A slot of the VM's memory. All are of one zone.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Its number.
    pub number: u32,
    /// Its address in the guest.
    pub gpa: u64,
    /// Its length.
    pub pages: usize,
    /// Where it begins in its file.
    pub file_offset: u64,
}

/// `migration_config.json` of a snapshot with these slots.
pub fn config(slots: &[Slot]) -> String {
    let slot = |slot: &Slot| {
        format!(
            r#"{{"slot":{},"gpa":{},"size":{},"file_offset":{},"zone_id":"a"}}"#,
            slot.number,
            slot.gpa,
            slot.pages * OS_PAGE,
            slot.file_offset
        )
    };
    let slots: Vec<String> = slots.iter().map(slot).collect();
    format!(r#"{{"vm_config":{{}},"memory_manager_data":{{"guest_ram_mappings":[{}]}}}}"#, slots.join(","))
}

/// The VMM's side of a restore.
pub struct Vmm {
    listener: UnixListener,
    line: UnixStream,
    fault_line: Option<UnixStream>,
    /// The memory of each slot that came.
    pub memory: Vec<File>,
}

fn unexpected(what: impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("the peer sent {what:?} where the protocol has something else"))
}

fn await_input(at: &impl AsFd) -> io::Result<()> {
    let [ready] = wait_any([(at.as_fd(), Awaited::Input)], PATIENCE.as_micros() as u32);
    if ready.now { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    await_input(listener)?;
    let (line, _) = listener.accept()?;
    line.set_read_timeout(Some(PATIENCE))?;
    line.set_write_timeout(Some(PATIENCE))?;
    Ok(line)
}

impl Vmm {
    /// Waits for its peer.
    ///
    /// # Errors
    /// None has come in time.
    pub fn accept(listener: UnixListener) -> io::Result<Self> {
        let line = accept(&listener)?;
        Ok(Self { listener, line, fault_line: None, memory: Vec::new() })
    }

    /// The command of the next request, and its payload. A descriptor that comes with it is kept.
    ///
    /// # Errors
    /// None has come in time, or the connection has ended.
    pub fn request(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.line.read_exact(&mut header)?;
        let length = u64::from_le_bytes(*header.last_chunk().expect("16 bytes"));
        let command = u16::from_le_bytes([header[0], header[1]]);
        if length > PAYLOAD_BYTES_MOST {
            return Err(unexpected(header));
        }
        let mut payload = vec![0; length as usize];
        if command == MEMORY_FD {
            await_input(&self.line)?;
            let came = receive(&self.line, &mut payload)?.ok_or(io::ErrorKind::WouldBlock)?;
            self.memory.extend(came.descriptors.into_iter().map(File::from));
        } else {
            self.line.read_exact(&mut payload)?;
        }
        Ok((command, payload))
    }

    /// Answers a request.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn answer(&mut self, status: u16) -> io::Result<()> {
        let mut answer = [0; HEADER_BYTES];
        answer[..2].copy_from_slice(&status.to_le_bytes());
        self.line.write_all(&answer)
    }

    /// Takes everything up to the State, and answers all but that.
    ///
    /// # Errors
    /// The peer sent anything else, or ended.
    pub fn receive_all(&mut self, slots: &[Slot]) -> io::Result<()> {
        let numbers = slots.iter().map(|slot| (MEMORY_FD, Some(slot.number)));
        let expected = std::iter::once((START, None)).chain(numbers).chain([(CONFIG, None)]);
        for (number, (command, slot)) in expected.enumerate() {
            let (came, payload) = self.request()?;
            let is_right =
                slot.is_none_or(|slot| payload == slot.to_le_bytes() && self.memory.len() == number);
            if came != command || !is_right {
                return Err(unexpected((came, payload)));
            }
            self.answer(OK)?;
        }
        let mut fault_line = accept(&self.listener)?;
        let mut role = [0; 2];
        fault_line.read_exact(&mut role)?;
        self.fault_line = Some(fault_line);
        let (came, payload) = self.request()?;
        if role == ROLE_FAULT && came == STATE { Ok(()) } else { Err(unexpected((role, came, payload))) }
    }

    /// Asks for `len` bytes of the guest's. Returns the status: the content comes by the memory.
    ///
    /// # Errors
    /// There was no answer.
    pub fn fault(&mut self, gpa: u64, len: u64) -> io::Result<u16> {
        let mut bytes = [0; 2 * HEADER_BYTES];
        bytes[..2].copy_from_slice(&PAGE_FAULT.to_le_bytes());
        bytes[8..16].copy_from_slice(&16_u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&gpa.to_le_bytes());
        bytes[24..].copy_from_slice(&len.to_le_bytes());
        let line = self.fault_line.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        line.write_all(&bytes)?;
        let mut answer = [0; HEADER_BYTES];
        line.read_exact(&mut answer)?;
        if answer[8..] != [0; 8] {
            return Err(unexpected(answer));
        }
        Ok(u16::from_le_bytes([answer[0], answer[1]]))
    }
}
