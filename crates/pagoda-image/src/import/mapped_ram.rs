//! QEMU's migration file with the capability `mapped-ram`: each block of RAM has a bitmap of its
//! pages, and each page a fixed place in the file.
//!
//! ```text
//!   "QEVM", version 3
//!   configuration   machine name, subsections           (all numbers big-endian)
//!   section start   id, "ram", instance, version 4
//!     length of all blocks with the flag MEM_SIZE
//!     for each block: name, length, a header of mapped-ram;
//!                     then a bitmap, and its pages at a multiple of 1 MiB
//! ```
//!
//! A page whose bit is not set is zero. Only the part up to the last block's header is parsed; the
//! devices behind it are QEMU's own business.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagoda_core::page::OS_PAGE;
use rustix::io::Errno;

use super::RawMemory;
use crate::error::ImageError;
use crate::open_file::open_file;

const MAGIC: [u8; 4] = *b"QEVM";
const VERSION: u32 = 3;
const SECTION_START: u8 = 0x01;
const SUBSECTION: u8 = 0x05;
const CONFIGURATION: u8 = 0x07;
/// In the first word of the section: its other bits are the length of all blocks.
const FLAG_MEM_SIZE: u64 = 0x04;
const MAPPED_RAM_VERSION: u32 = 1;
/// QEMU's machines have a handful.
const BLOCKS_MOST: usize = 1024;
/// The longest machine name and subsection that are skipped, in bytes.
const TEXT_MOST: u64 = 4096;
/// The most capabilities that are parsed: QEMU has fewer.
const CAPABILITIES_MOST: u32 = 64;
const TOO_LONG: &str = "its configuration is too long; use a QEMU from 9.0 on";
/// The longest bitmap: that of 16 TiB.
const BITMAP_MOST_BYTES: u64 = 512 << 20;

/// One block of a machine's RAM, in a migration file.
#[derive(Debug)]
pub struct MappedRam {
    file: File,
    path: PathBuf,
    name: String,
    len_bytes: u64,
    pages_at: u64,
    /// A bit for each page, in QEMU's order: words of the machine, little-endian.
    bitmap: Vec<u8>,
}

/// A block as the file tells of it.
struct Block {
    name: String,
    len_bytes: u64,
    bitmap_at: u64,
    pages_at: u64,
}

/// Whether a file begins as a migration file of QEMU's.
///
/// # Errors
/// If it can't be read.
pub fn is_mapped_ram(path: &Path) -> Result<bool, ImageError> {
    let mut begin = [0; MAGIC.len()];
    match open_file(path).and_then(|file| file.read_exact_at(&mut begin, 0)) {
        Ok(()) => Ok(begin == MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        // No file that has places, as a pipe: opening it as a raw file tells.
        Err(error) if error.raw_os_error() == Some(Errno::SPIPE.raw_os_error()) => Ok(false),
        Err(error) => Err(ImageError::read(path, error)),
    }
}

impl MappedRam {
    /// Opens the block called `block`, or else the longest one: the machine's main memory.
    ///
    /// # Errors
    /// If the file is no such file, or has no such block.
    pub fn open(path: &Path, block: Option<&str>) -> Result<Self, ImageError> {
        let import = |reason: String| ImageError::Import { path: path.to_owned(), reason };
        let file = open_file(path).map_err(|error| ImageError::read(path, error))?;
        let file_bytes = file.metadata().map_err(|error| ImageError::read(path, error))?.len();
        let blocks = Parser { file: &file, at: 0 }.blocks().map_err(import)?;
        let names: Vec<_> = blocks.iter().map(|block| block.name.clone()).collect();
        let chosen = match block {
            Some(name) => blocks.into_iter().find(|block| block.name == name),
            None => blocks.into_iter().max_by_key(|block| block.len_bytes),
        };
        let chosen =
            chosen.ok_or_else(|| import(format!("it has no such block; it has {}", names.join(", "))))?;
        let pages = chosen.len_bytes.div_ceil(OS_PAGE as u64);
        let bitmap_bytes = pages.div_ceil(64) * 8;
        let ends = [(chosen.bitmap_at, bitmap_bytes), (chosen.pages_at, 0)];
        if bitmap_bytes > BITMAP_MOST_BYTES
            || ends.iter().any(|(at, len)| at.checked_add(*len).is_none_or(|end| end > file_bytes))
        {
            return Err(import("it is shorter than it says; migrate to a file again".to_owned()));
        }
        let mut bitmap = vec![0; bitmap_bytes as usize];
        file.read_exact_at(&mut bitmap, chosen.bitmap_at).map_err(|error| ImageError::read(path, error))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            name: chosen.name,
            len_bytes: chosen.len_bytes,
            pages_at: chosen.pages_at,
            bitmap,
        })
    }

    /// The name of the block.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn has(&self, page: u64) -> bool {
        self.bitmap[(page / 8) as usize] >> (page % 8) & 1 == 1
    }
}

impl RawMemory for MappedRam {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn data_in(&self, range: Range<u64>) -> Result<Option<Range<u64>>, ImageError> {
        let page = OS_PAGE as u64;
        let last = range.end.div_ceil(page);
        let Some(first) = (range.start / page..last).find(|page| self.has(*page)) else { return Ok(None) };
        let end = (first..last).find(|page| !self.has(*page)).unwrap_or(last);
        Ok(Some((first * page).max(range.start)..(end * page).min(range.end)))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let at = self.pages_at.checked_add(offset).ok_or(io::ErrorKind::UnexpectedEof.into());
        at.and_then(|at| self.file.read_exact_at(into, at))
            .map_err(|error| ImageError::read(&self.path, error))
    }
}

/// Reads the file from its beginning on. Errors are the reason and the remedy.
struct Parser<'a> {
    file: &'a File,
    at: u64,
}

impl Parser<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.file
            .read_exact_at(&mut bytes, self.at)
            .map_err(|error| format!("it ends too early ({error}); migrate to a file again"))?;
        self.at += N as u64;
        Ok(bytes)
    }
    fn u8(&mut self) -> Result<u8, String> {
        self.bytes().map(u8::from_be_bytes)
    }
    fn u32(&mut self) -> Result<u32, String> {
        self.bytes().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Result<u64, String> {
        self.bytes().map(u64::from_be_bytes)
    }
    fn skip(&mut self, bytes: u64) -> Result<(), String> {
        if bytes > TEXT_MOST {
            return Err(TOO_LONG.to_owned());
        }
        self.at += bytes;
        Ok(())
    }
    fn text(&mut self) -> Result<String, String> {
        let len = self.u8()?;
        let text: Result<Vec<u8>, String> = (0..len).map(|_| self.u8()).collect();
        Ok(String::from_utf8_lossy(&text?).escape_debug().to_string())
    }

    fn blocks(mut self) -> Result<Vec<Block>, String> {
        if self.bytes()? != MAGIC || self.u32()? != VERSION {
            return Err("it is no migration file of version 3; use a QEMU from 9.0 on".to_owned());
        }
        let mut kind = self.u8()?;
        if kind == CONFIGURATION {
            let name = u64::from(self.u32()?);
            self.skip(name)?;
            kind = self.configuration_end()?;
        }
        if kind != SECTION_START {
            return Err("its memory does not come first; migrate with the capability mapped-ram".to_owned());
        }
        self.u32()?;
        if self.text()? != "ram" {
            return Err("another section comes before its memory; detach dirty bitmaps first".to_owned());
        }
        let (_instance, _version) = (self.u32()?, self.u32()?);
        let total = self.u64()?;
        if total & FLAG_MEM_SIZE == 0 {
            return Err("its memory has no sizes; migrate with the capability mapped-ram".to_owned());
        }
        self.ram(total & !(OS_PAGE as u64 - 1))
    }

    /// Skips the subsections of the configuration, whose layout depends on their names. Returns the
    /// kind of what follows.
    fn configuration_end(&mut self) -> Result<u8, String> {
        loop {
            let kind = self.u8()?;
            if kind != SUBSECTION {
                return Ok(kind);
            }
            let name = self.text()?;
            self.u32()?;
            match name.as_str() {
                "configuration/target-page-bits" => {
                    if self.u32()? != OS_PAGE.trailing_zeros() {
                        return Err("its pages are not of 4 KiB; no other are imported".to_owned());
                    }
                }
                "configuration/capabilities" => {
                    let count = self.u32()?;
                    if count > CAPABILITIES_MOST {
                        return Err(TOO_LONG.to_owned());
                    }
                    for _ in 0..count {
                        let name = self.text()?;
                        if name == "x-ignore-shared" {
                            return Err(
                                "shared memory was left out; migrate without x-ignore-shared".to_owned()
                            );
                        }
                    }
                }
                "configuration/uuid" => self.skip(16)?,
                _ => {
                    return Err(format!(
                        "its configuration has {name}, which is not known; please report this"
                    ));
                }
            }
        }
    }

    fn ram(&mut self, mut left: u64) -> Result<Vec<Block>, String> {
        let mut blocks = Vec::new();
        while left > 0 {
            if blocks.len() == BLOCKS_MOST {
                return Err(format!("it has more than {BLOCKS_MOST} blocks of memory; please report this"));
            }
            let name = self.text()?;
            let len_bytes = self.u64()?;
            if len_bytes == 0 || len_bytes > left {
                return Err(
                    "the sizes of its memory contradict each other; migrate to a file again".to_owned()
                );
            }
            left -= len_bytes;
            let (version, page_bytes) = (self.u32()?, self.u64()?);
            let (bitmap_at, pages_at) = (self.u64()?, self.u64()?);
            if version != MAPPED_RAM_VERSION || page_bytes != OS_PAGE as u64 {
                return Err("it has no mapped-ram of version 1 with pages of 4 KiB; migrate with the \
                            capability mapped-ram alone"
                    .to_owned());
            }
            self.at = pages_at.checked_add(len_bytes).ok_or("a place in it is out of reach")?;
            blocks.push(Block { name, len_bytes, bitmap_at, pages_at });
        }
        Ok(blocks)
    }
}
