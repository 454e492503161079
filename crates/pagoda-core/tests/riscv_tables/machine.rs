//! A RISC-V machine with Svnapot, as a process of QEMU, and the program that it runs.
//!
//! The program (`machine.c`) is built by the cross compiler of the machine that tests. It does one
//! access for each command. Every answer is waited for with a limit, and the program ends the
//! machine when no command comes. This file must never leave a process behind.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use pagoda_core::geometry::change::Group;
use pagoda_core::geometry::entry::{Format, Mapping, Reach};
use pagoda_core::geometry::riscv::Svnapot;

use super::tables::{ROOT, Tables};

const COMPILER: &str = "riscv64-unknown-elf-gcc";
const MACHINE: &str = "qemu-system-riscv64";
/// For one command, on a machine that is busy with other tests.
const ANSWER: Duration = Duration::from_secs(40);

/// The frame of the code that makes accesses (`machine.ld`), and where each mode sees it.
const PROBE_PAGE: u64 = 0x80010;
const PROBES: [u64; 2] = [0x10_0000_0000, 0x10_0001_0000];

/// `ecall`: what a frame begins with, so that a jump to it comes back.
const ECALL: u64 = 0x73;

/// The mode that an access is made in, by its number in the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    User,
    Supervisor,
}

/// A page fault's kind, by its number in mcause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Fetch = 12,
    Load = 13,
    Store = 15,
}

pub struct Machine {
    child: Child,
    to: RefCell<ChildStdin>,
    from: Receiver<String>,
    numbers: Cell<u64>,
}

/// The program, or why there is none.
fn program() -> &'static Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        for tool in [COMPILER, MACHINE] {
            let answers = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
            if !answers.is_ok_and(|status| status.success()) {
                return Err(format!("{tool} is not installed"));
            }
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/riscv_tables");
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let new = place.join(format!("riscv-{}.elf", std::process::id()));
        let built = Command::new(COMPILER)
            .args([
                "-march=rv64ima_zicsr",
                "-mabi=lp64",
                "-mcmodel=medany",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
            ])
            .args(["-ffreestanding", "-nostdlib", "-Wl,--build-id=none"])
            .arg("-T")
            .arg(source.join("machine.ld"))
            .arg("-o")
            .arg(&new)
            .arg(source.join("machine.c"))
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        // In one step, and with one file left: another process may be at it, too.
        let program = place.join("riscv.elf");
        std::fs::rename(&new, &program).unwrap();
        Ok(program)
    })
}

/// Says that `what` is not tested here, past the capture of what passing tests print.
fn skip(what: &str, why: &str) {
    assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here: {what}: {why}");
    let _ = writeln!(std::io::stderr(), "SKIPPED {what}: {why}");
}

impl Machine {
    /// Starts a machine with these tables loaded and in use. None, with a word on standard error,
    /// if the tools are missing.
    pub fn start(what: &str, mut tables: Tables) -> Option<Self> {
        let program = match program() {
            Ok(program) => program,
            Err(why) => {
                skip(&format!("RISC-V tables, {what}"), why);
                return None;
            }
        };
        for (address, user) in PROBES.into_iter().zip([true, false]) {
            let probe = Mapping { first_page: PROBE_PAGE, write: false, execute: true, ..data(0, user) };
            tables.map_words(address, &[Svnapot.encode(0, probe, Reach::Page)]);
        }
        let image = program.with_extension(format!("{what}.{}.tables", std::process::id()));
        std::fs::write(&image, tables.bytes()).unwrap();
        let mut child = Command::new(MACHINE)
            .args(["-machine", "virt", "-cpu", "rv64,svnapot=on", "-m", "128M", "-display", "none"])
            .args(["-monitor", "none", "-serial", "stdio", "-bios", "none", "-kernel"])
            .arg(program)
            .arg("-device")
            .arg(format!("loader,file={},addr={ROOT:#x},force-raw=on", image.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (lines, from) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        // It ends with the machine: nothing else writes to the pipe.
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let machine =
            Self { to: RefCell::new(child.stdin.take().unwrap()), from, numbers: Cell::new(0), child };
        machine.answer("the start");
        let _ = std::fs::remove_file(&image);
        machine.command('a', &[tables.satp()]);
        Some(machine)
    }

    fn command(&self, letter: char, numbers: &[u64]) -> (u64, u64) {
        let mut line = letter.to_string();
        for number in numbers {
            line += &format!(" {number:x}");
        }
        self.to.borrow_mut().write_all(format!("{line}\n").as_bytes()).expect("the machine ended");
        self.answer(&line)
    }

    fn answer(&self, line: &str) -> (u64, u64) {
        let answer =
            self.from.recv_timeout(ANSWER).unwrap_or_else(|why| panic!("no answer to {line}: {why}"));
        let numbers = answer.trim().split_once(' ').map(|(cause, value)| {
            let number = |digits| u64::from_str_radix(digits, 16).ok();
            (number(cause), number(value))
        });
        let Some((Some(cause), Some(value))) = numbers else { panic!("{line} is answered by {answer:?}") };
        (cause, value)
    }

    /// A value that was not written before.
    fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// Reads physical memory.
    pub fn read(&self, address: u64) -> u64 {
        self.command('r', &[address]).1
    }

    /// Swaps physical memory in one step.
    pub fn swap(&self, address: u64, value: u64) -> u64 {
        self.command('s', &[address, value]).1
    }

    /// Invalidates the cached translations of one address.
    pub fn invalidate(&self, address: u64) {
        self.command('f', &[address]);
    }

    pub fn load(&self, mode: Mode, address: u64) -> Result<u64, Fault> {
        self.access(mode, address, 'l', &[mode as u64, PROBES[mode as usize], address])
    }

    pub fn store(&self, mode: Mode, address: u64, value: u64) -> Result<(), Fault> {
        let numbers = [mode as u64, PROBES[mode as usize], address, value];
        self.access(mode, address, 't', &numbers).map(drop)
    }

    /// Runs the code at an address: a frame of ours begins with a call back.
    pub fn jump(&self, mode: Mode, address: u64) -> Result<(), Fault> {
        self.access(mode, address, 'x', &[mode as u64, address]).map(drop)
    }

    fn access(&self, mode: Mode, address: u64, letter: char, numbers: &[u64]) -> Result<u64, Fault> {
        let (cause, value) = self.command(letter, numbers);
        let fault = match cause {
            // A call from user mode, and from supervisor mode.
            8 | 9 => {
                assert_eq!(cause, 8 + mode as u64, "the access was made in another mode");
                return Ok(value);
            }
            12 => Fault::Fetch,
            13 => Fault::Load,
            15 => Fault::Store,
            _ => panic!("trap {cause} at {value:#x} by {letter} {numbers:x?}"),
        };
        assert_eq!(value, address, "{fault:?} at an address that was not asked for");
        Err(fault)
    }

    /// Makes the frames of a group tell their number, and come back from a jump.
    pub fn fill(&self, first_page: u64) {
        for page in first_page..first_page + 16 {
            self.swap(page << 12, page << 32 | ECALL);
        }
    }

    /// Which frame is found at an address.
    pub fn frame(&self, mode: Mode, address: u64) -> Result<u64, Fault> {
        self.load(mode, address & !0xfff).map(|word| word >> 32)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = writeln!(self.to.borrow_mut(), "q");
        for _ in 0..100 {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A writable mapping without marks.
pub fn data(first_page: u64, user: bool) -> Mapping {
    Mapping { first_page, write: true, execute: false, user, marks: Default::default() }
}

/// The entries of a group in the machine's memory. Before each step a program writes to a page of
/// the group, and gets its frame or a fault.
pub struct Live<'a> {
    pub machine: &'a Machine,
    /// The virtual address of the group.
    pub address: u64,
    /// The physical address of its entries.
    pub entries: u64,
    /// The first pages of the frames that it may meet.
    pub frames: Vec<u64>,
    pub steps: u64,
    /// The pages that were written since this was made, and the first pages of their frames.
    pub written: Vec<(usize, u64)>,
}

impl Live<'_> {
    pub fn all(&self) -> Vec<u64> {
        (0..16).map(|i| self.get(i)).collect()
    }

    /// Writes all entries while the program rests, so that none has a mark that it was not given.
    pub fn set(&self, entries: &[u64]) {
        for (i, &entry) in entries.iter().enumerate() {
            self.machine.swap(self.entries + i as u64 * 8, entry);
        }
        (0..16).for_each(|page| self.machine.invalidate(self.address + page * 4096));
    }

    fn busy(&mut self) {
        self.steps += 1;
        // A stride that meets pages before and behind the one that is changed.
        let page = self.steps * 7 % 16;
        let address = self.address + page * 4096;
        let value = self.machine.number();
        if self.machine.store(Mode::User, address + 8, value).is_ok() {
            let frames = self.frames.iter();
            let now: Vec<_> = frames.map(|first| self.machine.read((first + page) * 4096 + 8)).collect();
            let reached: Vec<_> = (0..now.len()).filter(|&i| now[i] == value).collect();
            assert_eq!(reached.len(), 1, "step {}: a write to page {page} reached {reached:?}", self.steps);
            self.written.push((page as usize, self.frames[reached[0]]));
        }
    }
}

impl Group for Live<'_> {
    fn get(&self, i: usize) -> u64 {
        self.machine.read(self.entries + i as u64 * 8)
    }

    fn take(&mut self, i: usize) -> u64 {
        self.busy();
        self.machine.swap(self.entries + i as u64 * 8, 0)
    }

    fn invalidate(&mut self) {
        self.busy();
        (0..16).for_each(|page| self.machine.invalidate(self.address + page * 4096));
    }

    fn put(&mut self, i: usize, entry: u64) {
        self.busy();
        assert_eq!(self.machine.swap(self.entries + i as u64 * 8, entry), 0, "entry {i} was not empty");
    }
}
