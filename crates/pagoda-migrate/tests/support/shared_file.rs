//! Shared by the tests of `SharedMemory`, also those with regions: a memfd of which a part moves,
//! and logs of its writes.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Mutex;

use pagoda_core::size::Bytes;
use pagoda_linux::io::shared_file::memory_file;
use pagoda_linux::io::sparse_file::make_hole;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::shared::SharedMapping;
use pagoda_migrate::{DirtyLog, DirtyPages, SharedMemory};

pub const PAGE: usize = 4096;
/// The length of the part that moves, if nothing else is said.
pub const LEN: usize = 24 << 20;

/// Pages of the file on each side of the part that moves.
pub const BESIDE: usize = 3;
const MARK: u8 = 0xb5;

/// A memfd of which a part moves, with a mapping of that part, and a log of the writes by it.
pub struct Shared {
    pub file: File,
    pub mapping: SharedMapping,
    log: Mutex<Vec<u64>>,
}

impl Shared {
    /// All zero; the pages beside it are not.
    pub fn new(len: usize) -> Self {
        Self::of(memory_file(c"guest", Self::file_len(len)).expect("a memfd"), len)
    }

    /// The length of the file of which `len` bytes move.
    pub const fn file_len(len: usize) -> u64 {
        (len + 2 * BESIDE * PAGE) as u64
    }

    /// The same in a file of that length, all zero.
    pub fn of(file: File, len: usize) -> Self {
        for at in [0, (len + BESIDE * PAGE) as u64] {
            file.write_all_at(&[MARK; BESIDE * PAGE], at).expect("written");
        }
        let mapping = SharedMapping::of(&file, (BESIDE * PAGE) as u64, len).expect("mapped");
        Self { file, mapping, log: Mutex::new(vec![0; (len / PAGE).div_ceil(64)]) }
    }

    /// The same with content that is to be gone.
    pub fn used(len: usize) -> Self {
        let shared = Self::new(len);
        shared.file.write_all_at(&vec![0xe7; len], shared.offset(0)).expect("written");
        shared
    }

    /// The same with content that takes time to send.
    pub fn noisy(len: usize) -> Self {
        let (shared, mut random) = (Self::new(len), Random::new(1, 1));
        let content: Vec<u8> = (0..len / 8).flat_map(|_| random.next().to_ne_bytes()).collect();
        shared.file.write_all_at(&content, shared.offset(0)).expect("written");
        shared
    }

    pub fn offset(&self, at: usize) -> u64 {
        (BESIDE * PAGE + at) as u64
    }

    pub fn memory(&self) -> SharedMemory {
        let len = Bytes::new(self.bytes() as u64);
        SharedMemory::new(self.file.try_clone().expect("a descriptor"), self.offset(0), len)
            .expect("shared memory")
    }

    /// The pages that it holds, without those beside it.
    pub fn held(&self) -> u64 {
        self.file.metadata().expect("metadata").blocks() * 512 / PAGE as u64 - 2 * BESIDE as u64
    }

    pub fn check_beside(&self, context: &str) {
        for at in [0, self.offset(self.bytes())] {
            let mut beside = [0; BESIDE * PAGE];
            self.file.read_exact_at(&mut beside, at).expect("read");
            assert!(beside.iter().all(|byte| *byte == MARK), "{context}: beside it, at {at}");
        }
    }

    pub fn is_all(&self, byte: u8) -> bool {
        let mut content = vec![!byte; self.bytes()];
        self.file.read_exact_at(&mut content, self.offset(0)).expect("read");
        content.iter().all(|found| *found == byte)
    }

    pub fn bytes(&self) -> usize {
        self.mapping.range().len()
    }

    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.mapping.read(offset, into);
    }

    /// Writes, and then marks the pages in the log.
    pub fn write(&self, offset: usize, words: &[u8]) {
        self.mapping.write(offset, words);
        self.mark(offset, words.len());
    }

    /// Makes it a hole, and then marks the pages in the log.
    pub fn discard(&self, offset: usize, len: usize) {
        make_hole(&self.file, self.offset(offset)..self.offset(offset + len)).expect("a hole");
        self.mark(offset, len);
    }

    fn mark(&self, offset: usize, len: usize) {
        let mut log = self.log.lock().expect("no panic");
        (offset / PAGE..(offset + len).div_ceil(PAGE)).for_each(|page| log[page / 64] |= 1 << (page % 64));
    }
}

impl DirtyLog for &Shared {
    fn take(&mut self, dirty: &mut DirtyPages<'_>) -> io::Result<()> {
        let mut log = self.log.lock().expect("no panic");
        assert_eq!(dirty.pages(), (self.bytes() / PAGE) as u64);
        dirty.add_bitmap(0, &log);
        log.fill(0);
        Ok(())
    }
}

/// Does something at each look, with its number, and adds its pages.
pub struct Looks<F>(u32, F);

impl<F: FnMut(u32, &mut DirtyPages<'_>) -> io::Result<()> + Send> Looks<F> {
    pub const fn new(look: F) -> Self {
        Self(0, look)
    }
}

impl<F: FnMut(u32, &mut DirtyPages<'_>) -> io::Result<()> + Send> DirtyLog for Looks<F> {
    fn take(&mut self, dirty: &mut DirtyPages<'_>) -> io::Result<()> {
        self.0 += 1;
        (self.1)(self.0, dirty)
    }
}

/// Memory that is not written.
pub fn unwritten() -> impl DirtyLog {
    Looks::new(|_, _: &mut DirtyPages<'_>| Ok(()))
}
