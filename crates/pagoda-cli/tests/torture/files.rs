//! Managed memory as the buffer of system calls: files, direct I/O, pipes, vectors.
//!
//! All of it copies the content of whole OS pages to other ones, and the shadow with it.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, IoSliceMut, PipeReader, PipeWriter, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::area::Area;
use crate::support::content::Stamp;
use crate::support::memory::PAGE;
use crate::support::random::Random;

/// Pages in each file.
const FILE_PAGES: usize = 256;

/// Pages that go through a pipe at once: the default capacity of a pipe, so that its only user
/// never waits for itself.
const PIPE_PAGES: usize = 16;

/// Files and a pipe of one thread.
pub struct Files {
    buffered: File,
    direct: Option<File>,
    shadow: Vec<Stamp>,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Files {
    /// Files in the current directory, which no other process uses.
    pub fn new(id: usize) -> Self {
        let path = format!("file{id}");
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .open(&path)
        };
        let buffered = open(0).expect("a file");
        buffered.set_len((FILE_PAGES * PAGE) as u64).expect("its length");
        // A file system without direct I/O tests the rest.
        let direct = open(libc::O_DIRECT).ok();
        std::fs::remove_file(&path).expect("removed");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        Self { buffered, direct, shadow: vec![Stamp::ZERO; FILE_PAGES], reader, writer }
    }

    fn file(&self, random: &mut Random) -> &File {
        match &self.direct {
            Some(direct) if random.one_in(2) => direct,
            _ => &self.buffered,
        }
    }

    /// Writes pages of `area` to the file.
    pub fn write(&mut self, area: &Area, random: &mut Random) {
        let pages = random.range(area.pages().min(FILE_PAGES));
        let at = random.below(FILE_PAGES - pages.len() + 1);
        let bytes = area.mapping.bytes(pages.clone());
        self.file(random).write_all_at(bytes, (at * PAGE) as u64).expect("written");
        self.shadow[at..at + pages.len()].copy_from_slice(&area.shadow[pages]);
    }
    /// Reads pages of `area` from the file.
    pub fn read(&mut self, area: &mut Area, random: &mut Random) {
        let pages = random.range(area.pages().min(FILE_PAGES));
        let at = random.below(FILE_PAGES - pages.len() + 1);
        let bytes = area.mapping.bytes_mut(pages.clone());
        self.file(random).read_exact_at(bytes, (at * PAGE) as u64).expect("read");
        area.shadow[pages.clone()].copy_from_slice(&self.shadow[at..at + pages.len()]);
    }

    /// Sends pages of `area` through the pipe to other pages of it, in vectors of several pieces.
    pub fn pipe(&mut self, area: &mut Area, random: &mut Random) {
        let from = random.range(area.pages().min(PIPE_PAGES));
        let to = random.below(area.pages() - from.len() + 1);
        let to = to..to + from.len();
        let cut = random.between(from.start, from.end);
        let [first, second] = [from.start..cut, cut..from.end].map(|part| area.mapping.bytes(part));
        let mut slices = [IoSlice::new(first), IoSlice::new(second)];
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let written = self.writer.write_vectored(rest).expect("written to the pipe");
            IoSlice::advance_slices(&mut rest, written);
        }
        let sent: Vec<Stamp> = area.shadow[from].to_vec();
        self.receive(area, to.clone(), random);
        area.shadow[to].copy_from_slice(&sent);
    }

    fn receive(&mut self, area: &mut Area, to: Range<usize>, random: &mut Random) {
        let cut = random.between(0, to.len()) * PAGE;
        let (first, second) = area.mapping.bytes_mut(to).split_at_mut(cut);
        let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let read = self.reader.read_vectored(rest).expect("read from the pipe");
            IoSliceMut::advance_slices(&mut rest, read);
        }
    }

    /// A buffer that is not managed at all can read the file's content, too.
    pub fn check(&self) -> Result<(), String> {
        let mut words = [0u64; PAGE / 8];
        let mut bytes = [0u8; PAGE];
        for (page, stamp) in self.shadow.iter().enumerate() {
            self.buffered.read_exact_at(&mut bytes, (page * PAGE) as u64).expect("read");
            for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_ne_bytes(chunk.try_into().expect("eight bytes"));
            }
            if let Some(wrong) = stamp.wrong(&words) {
                return Err(format!("page {page} of the file: {wrong}"));
            }
        }
        Ok(())
    }
}
