//! The sides: the ways to restore a scattered part of saved memory.
//!
//! Each is a process's first use of the memory: mappings, managers and regions are made anew.
//! Making a manager is not timed: a process that restores has one. This module must never let a
//! side profit from another, but for the page cache.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_image::import::RawFile;
use pagoda_image::{Codec, Key, PackOptions, make_key, pack};
use pagoda_linux::io::file_mapping::{FileMapping, drop_cached};

use super::PIECE_BYTES;
use crate::load::data::{PAGE_BYTES, Pages, Random};
use crate::measure::memory::status_bytes;
use crate::measure::scratch::Scratch;

/// The working set is one of so many parts of the memory.
pub const SET_SHARE: u64 = 16;

const SEED: u64 = 29;

/// A way to have the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The raw file, mapped.
    Mmap,
    /// The same, with the working set populated first.
    Populate,
    /// The raw file, mapped privately and writable as a VM's memory, with the working set copied
    /// first.
    Private,
    /// The raw file, read first.
    Eager,
    /// A fault for each 4 KiB.
    Demand,
    /// The image.
    Image,
    /// The image, with its recorded working set.
    Recorded,
}

impl Side {
    pub const ALL: [Self; 7] =
        [Self::Mmap, Self::Populate, Self::Private, Self::Eager, Self::Demand, Self::Image, Self::Recorded];

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mmap => "mmap",
            Self::Populate => "mmap, populated",
            Self::Private => "private mmap, populated",
            Self::Eager => "read whole",
            Self::Demand => "demand by 4 KiB",
            Self::Image => "image",
            Self::Recorded => "image, working set",
        }
    }

    /// The key in the JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::Mmap => "mmap",
            Self::Populate => "populate",
            Self::Private => "populate_private",
            Self::Eager => "eager",
            Self::Demand => "demand_4k",
            Self::Image => "image",
            Self::Recorded => "recorded",
        }
    }
}

/// The memory in all its forms.
pub struct Files {
    scratch: Scratch,
    pages: Pages,
    len: usize,
    /// The offsets of the working set's pieces, in the order of their touches.
    places: Vec<usize>,
    /// Of all images.
    key: Key,
    pub image_bytes: u64,
    pub block_bytes: u32,
}

impl Files {
    /// Makes the raw file, its images and the working set.
    pub fn make(memory: Bytes, ratio: f64) -> anyhow::Result<Self> {
        let (scratch, pages) = (Scratch::new()?, Pages::new(SEED, ratio));
        let len = memory.as_usize() / PIECE_BYTES * PIECE_BYTES;
        if len / PIECE_BYTES < SET_SHARE as usize {
            bail!("{memory} is too little memory; give 1M or more");
        }
        let raw = File::create(scratch.file("raw"))?;
        let mut part = vec![0; 1 << 20];
        for at in (0..len).step_by(part.len()) {
            let part = &mut part[..(len - at).min(1 << 20)];
            pages.fill((at / PAGE_BYTES) as u64, part);
            raw.write_all_at(part, at as u64)?;
        }
        drop_cached(&raw)?;
        let mut places: Vec<usize> = (0..len / PIECE_BYTES).map(|piece| piece * PIECE_BYTES).collect();
        let mut random = Random::new(SEED);
        for at in (1..places.len()).rev() {
            places.swap(at, random.below(at as u64 + 1) as usize);
        }
        places.truncate(len / PIECE_BYTES / SET_SHARE as usize);
        let source = RawFile::open(&scratch.file("raw"))?;
        let go_on = &mut |_| ControlFlow::Continue(());
        // Beside the image, where `pagoda serve` looks for it.
        let key = make_key(&scratch.file("image"))?;
        let options = PackOptions::new(key.clone());
        let block_bytes = options.block_bytes;
        let written = pack(&source, &scratch.file("image"), options, go_on)?;
        let plain = PackOptions { codec: Codec::None, block_bytes: 4096, ..PackOptions::new(key.clone()) };
        pack(&source, &scratch.file("plain"), plain, go_on)?;
        let files = Self { scratch, pages, len, places, key, image_bytes: written.file_bytes, block_bytes };
        files.record()?;
        Ok(files)
    }

    /// A manager with room for all of it.
    pub fn manager(&self, base: Option<BasePage>, room: u64) -> anyhow::Result<Manager> {
        let budget = Bytes::new(self.len as u64 * room + (256 << 20));
        let builder = Manager::builder().budget(budget).user_mode_only(true);
        let builder = base.into_iter().fold(builder, |builder, base| builder.base_page(base));
        Ok(builder.build()?)
    }

    /// The path of one of the files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.file(name)
    }

    /// The length of the memory.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The OS pages of the working set, in order.
    pub fn set_pages(&self) -> impl Iterator<Item = usize> {
        const PIECE_PAGES: usize = PIECE_BYTES / PAGE_BYTES;
        self.places.iter().flat_map(|place| (0..PIECE_PAGES).map(move |page| place / PAGE_BYTES + page))
    }

    /// An OS page that is not in the working set.
    pub fn page_of_no_set(&self) -> usize {
        let pieces = (0..self.len).step_by(PIECE_BYTES);
        pieces
            .map(|place| place / PAGE_BYTES)
            .find(|page| !self.places.contains(&(page * PAGE_BYTES)))
            .unwrap_or(0)
    }

    /// Compares the first word of an OS page.
    pub fn check_word(&self, page: usize, word: u64) -> anyhow::Result<()> {
        if word != self.pages.first_word(page as u64, 0) {
            bail!("the memory differs at {}", page * PAGE_BYTES);
        }
        Ok(())
    }

    fn record(&self) -> anyhow::Result<()> {
        let manager = self.manager(None, 1)?;
        let mut region = manager.restore(self.path("image")).key(self.key.clone()).create()?;
        self.touch_region(&mut region)?;
        Ok(region.record_working_set()?)
    }

    /// Compares one word of each OS page of the working set.
    fn check(&self, mut word: impl FnMut(usize) -> u64) -> anyhow::Result<()> {
        self.set_pages().try_for_each(|page| self.check_word(page, word(page * PAGE_BYTES)))
    }

    fn touch_region(&self, region: &mut Region) -> anyhow::Result<()> {
        let words = region.words_mut();
        self.check(|at| words[at / 8])
    }

    fn forget(&self, name: &str) -> anyhow::Result<()> {
        let path = self.scratch.file(name);
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        Ok(drop_cached(&file)?)
    }

    /// Reads a file, so that all of it is in the page cache.
    pub fn warm(&self, name: &str) -> anyhow::Result<()> {
        let mut file = File::open(self.scratch.file(name))?;
        let mut part = vec![0; 1 << 20];
        while file.read(&mut part)? > 0 {}
        Ok(())
    }

    /// Milliseconds until the working set was touched.
    pub fn touch(&self, side: Side, is_cold: bool) -> anyhow::Result<f64> {
        let names: &[&str] = match side {
            Side::Mmap | Side::Populate | Side::Private | Side::Eager => &["raw"],
            Side::Demand => &["plain"],
            Side::Image => &["image"],
            Side::Recorded => &["image", "image.ws"],
        };
        for name in names {
            if is_cold { self.forget(name)? } else { self.warm(name)? }
        }
        let ms = |begin: Instant| begin.elapsed().as_secs_f64() * 1e3;
        Ok(match side {
            Side::Mmap | Side::Populate | Side::Private => {
                let begin = Instant::now();
                let file = File::open(self.scratch.file("raw"))?;
                let mapping = match side {
                    Side::Private => FileMapping::map_private(&file, self.len)?,
                    _ => FileMapping::map(&file, self.len)?,
                };
                if side != Side::Mmap {
                    for place in &self.places {
                        mapping.populate(*place, PIECE_BYTES)?;
                    }
                }
                self.check(|at| {
                    let mut word = [0; 8];
                    mapping.read_at(at, &mut word);
                    u64::from_le_bytes(word)
                })?;
                ms(begin)
            }
            Side::Eager => {
                let begin = Instant::now();
                let mut memory = Vec::with_capacity(self.len);
                File::open(self.scratch.file("raw"))?.read_to_end(&mut memory)?;
                self.check(|at| u64::from_le_bytes(*memory[at..].first_chunk().unwrap_or(&[0; 8])))?;
                ms(begin)
            }
            Side::Demand | Side::Image | Side::Recorded => {
                let (base, name) = match side {
                    Side::Demand => (Some(BasePage::K4), "plain"),
                    _ => (None, "image"),
                };
                let manager = self.manager(base, 1)?;
                let begin = Instant::now();
                let restore = manager.restore(self.scratch.file(name)).key(self.key.clone());
                let mut region = restore.prefetch(side == Side::Recorded).create()?;
                self.touch_region(&mut region)?;
                ms(begin)
            }
        })
    }

    /// Milliseconds until the first byte of a restored region, from the page cache.
    pub fn first_byte(&self, place: usize) -> anyhow::Result<f64> {
        self.warm("image")?;
        let manager = self.manager(None, 1)?;
        let at = self.places[place % self.places.len()];
        let begin = Instant::now();
        let mut region =
            manager.restore(self.path("image")).key(self.key.clone()).prefetch(false).create()?;
        let word = region.words_mut()[at / 8];
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        self.check_word(at / PAGE_BYTES, word)?;
        Ok(ms)
    }

    /// The growth of the process in MiB for each of so many regions of the image, with the working
    /// set touched.
    pub fn resident_each(&self, count: usize) -> anyhow::Result<f64> {
        let manager = self.manager(None, count as u64)?;
        let held = || status_bytes("self", "VmRSS:").context("reading the size of this process");
        let before = held()?;
        let mut regions = Vec::new();
        for _ in 0..count {
            let mut region = manager.restore(self.path("image")).key(self.key.clone()).create()?;
            self.touch_region(&mut region)?;
            regions.push(region);
        }
        regions.iter().for_each(Region::wait_for_prefetch);
        let each = held()?.saturating_sub(before) as f64 / count as f64;
        Ok(each / f64::from(1 << 20))
    }

    /// The path that a region is saved to.
    pub fn saved(&self) -> PathBuf {
        self.scratch.file("saved")
    }

    /// The options of saving.
    pub fn save_options(&self) -> PackOptions {
        PackOptions::new(self.key.clone())
    }

    /// Fills a region with the memory.
    pub fn fill(&self, region: &Region) -> anyhow::Result<()> {
        let mut part = vec![0; 1 << 20];
        for at in (0..self.len).step_by(part.len()) {
            let part = &mut part[..(self.len - at).min(1 << 20)];
            self.pages.fill((at / PAGE_BYTES) as u64, part);
            region.write_words(at, part)?;
        }
        Ok(())
    }
}
