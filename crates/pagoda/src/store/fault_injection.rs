//! Injected faults, at every call of a store to its tiers: memory, file, server. Only in tests.
//!
//! Drawn from a seed, so that a failed run can be repeated as far as its threads allow. A fault is
//! one that the real tier can have: an error, half of a write, a delay, a connection that breaks
//! before or after the server has done its work, and other bytes than were written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagoda_linux::io::direct_file::{AlignedBuffer, DirectFile, FileError};
use pagoda_linux::io::ring::{Ring, Transfer};
use pagoda_linux::process::lock::Lock;
use pagoda_linux::process::thread::sleep_us;

use super::file::do_all;
use super::tests::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Error,
    Short,
    Delay,
    Disconnect,
    Corrupt,
}

const ALL: [Fault; 5] = [Fault::Error, Fault::Short, Fault::Delay, Fault::Disconnect, Fault::Corrupt];

pub(super) struct Plan {
    random: Lock<Random>,
    per_mille: AtomicU32,
    /// Nothing but delays, so long.
    delay_us: Option<u32>,
    /// The next fault, whatever is drawn.
    next: Lock<Option<Fault>>,
    happened: [AtomicU64; ALL.len()],
    /// Bytes that were written other than they were given: they are lost for good.
    pub spoilt: AtomicU64,
}

impl Plan {
    pub fn new(seed: u64, per_mille: u32) -> Arc<Self> {
        Arc::new(Self {
            random: Lock::new(Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)),
            per_mille: AtomicU32::new(per_mille),
            delay_us: None,
            next: Lock::new(None),
            happened: Default::default(),
            spoilt: AtomicU64::new(0),
        })
    }

    /// Everything works, and each call takes so much longer.
    pub fn slow(delay_us: u32) -> Arc<Self> {
        let plan = Arc::into_inner(Self::new(0, 1000)).expect("no other thread has it");
        Arc::new(Self { delay_us: Some(delay_us), ..plan })
    }

    /// The next call fails so, and no other.
    pub fn once(fault: Fault) -> Arc<Self> {
        let plan = Self::new(0, 0);
        *plan.next.lock() = Some(fault);
        plan
    }

    /// From now on everything works.
    pub fn end(&self) {
        self.per_mille.store(0, Ordering::Relaxed);
    }

    pub fn happened(&self) -> [u64; ALL.len()] {
        self.happened.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    fn draw(&self) -> Option<Fault> {
        let next = self.next.lock().take();
        if next.is_some() {
            return next;
        }
        let mut random = self.random.lock();
        if random.below(1000) >= u64::from(self.per_mille.load(Ordering::Relaxed)) {
            return None;
        }
        let drawn = random.below(ALL.len() as u64) as usize;
        // One of each kind first: a test of all of them has met all of them.
        let at = self.happened.iter().position(|count| count.load(Ordering::Relaxed) == 0).unwrap_or(drawn);
        self.happened[at].fetch_add(1, Ordering::Relaxed);
        Some(ALL[at])
    }
}

/// A tier's part of a plan; nothing at first.
#[derive(Clone, Default)]
pub(super) struct Faults(pub Option<Arc<Plan>>);

impl Faults {
    /// The fault to happen now. Delays have happened already.
    pub fn draw(&self) -> Option<Fault> {
        let plan = self.0.as_ref()?;
        if let Some(delay_us) = plan.delay_us {
            sleep_us(delay_us);
            return None;
        }
        let fault = plan.draw();
        if fault == Some(Fault::Delay) {
            sleep_us(500);
            return None;
        }
        fault
    }

    fn spoil(&self) {
        if let Some(plan) = &self.0 {
            plan.spoilt.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A fault is drawn for each of them. Those that have none are done first, at once, and are
    /// done whatever becomes of the others.
    pub fn transfer(
        &self,
        ring: &mut Option<Ring>,
        transfers: &mut [Transfer<'_>],
    ) -> Result<usize, FileError> {
        let (mut whole, mut failing) = (Vec::new(), Vec::new());
        for transfer in transfers {
            let again = match transfer {
                Transfer::Read { file, offset, into } => Transfer::Read { file, offset: *offset, into },
                Transfer::Write { file, offset, from } => Transfer::Write { file, offset: *offset, from },
            };
            match self.draw() {
                None => whole.push(again),
                fault => failing.push((fault, again)),
            }
        }
        let outcome = do_all(ring, &mut whole);
        for (fault, transfer) in failing {
            match transfer {
                Transfer::Read { file, offset, into } => read_with(fault, file, offset, into)?,
                Transfer::Write { file, offset, from } => self.write_with(fault, file, offset, from)?,
            }
        }
        outcome
    }

    fn write_with(
        &self,
        fault: Option<Fault>,
        file: &DirectFile,
        offset: u64,
        from: &[u8],
    ) -> Result<(), FileError> {
        match fault {
            Some(Fault::Error) => Err(FileError::Full),
            Some(Fault::Short) => {
                file.write_at(offset, &from[..from.len() / 2 / 4096 * 4096])?;
                Err(FileError::Full)
            }
            Some(Fault::Disconnect) => Err(broken(file)),
            Some(Fault::Corrupt) => {
                self.spoil();
                let mut other = AlignedBuffer::new(from.len());
                other.copy_from_slice(from);
                other[from.len() / 2] ^= 0x10;
                file.write_at(offset, &other)
            }
            Some(Fault::Delay) | None => file.write_at(offset, from),
        }
    }

    pub fn read(&self, file: &DirectFile, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        read_with(self.draw(), file, offset, into)
    }

    pub fn discard(&self, file: &DirectFile, offset: u64, len: u64) -> Result<(), FileError> {
        match self.draw() {
            Some(Fault::Error | Fault::Disconnect) => Err(broken(file)),
            // A part of it is given back, and that it failed is said.
            Some(Fault::Short) => {
                file.discard(offset, len / 2 / 4096 * 4096)?;
                Err(broken(file))
            }
            // Nothing is there that could be another.
            Some(Fault::Corrupt | Fault::Delay) | None => file.discard(offset, len),
        }
    }

    /// A server that can't be connected to now.
    pub fn connect(&self) -> bool {
        !matches!(self.draw(), Some(Fault::Error | Fault::Short | Fault::Disconnect))
    }

    /// Bytes that are sent to be stored, perhaps with one of them changed.
    pub fn sent(&self, bytes: &mut [u8]) {
        if self.draw() == Some(Fault::Corrupt) {
            self.spoil();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
        }
    }
}

fn read_with(fault: Option<Fault>, file: &DirectFile, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
    match fault {
        Some(Fault::Error | Fault::Disconnect) => Err(broken(file)),
        Some(Fault::Short) => Err(FileError::Short),
        Some(Fault::Corrupt) => {
            file.read_at(offset, into)?;
            into.iter_mut().for_each(|byte| *byte ^= 0x10);
            Ok(())
        }
        Some(Fault::Delay) | None => file.read_at(offset, into),
    }
}

/// A real error of the kernel: no file is that long.
fn broken(file: &DirectFile) -> FileError {
    file.read_at(1 << 63, &mut [0]).expect_err("it is no offset")
}
