//! The index of an open image: all of it as it lies in the file, and which chunks were checked.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::image::digest::ROOT_BYTES;
use pagoda_core::image::entry::ENTRY_BYTES;
use pagoda_core::image::header::Header;
use pagoda_core::image::index::{ALL_ZERO, CHUNK_BLOCKS, CHUNK_BYTES, Layout};
use pagoda_core::image::{Entry, Key, runs};
use pagoda_core::page::OS_PAGE;

use crate::backing::Backing;
use crate::error::ImageError;

/// The longest index that is read into memory before its lengths are proven.
const UNPROVEN_MOST: usize = 16 << 20;

pub(super) struct Index {
    layout: Layout,
    bytes: Vec<u8>,
    /// Of each chunk of the image, which chunk of the index it is.
    places: Vec<Option<u32>>,
    /// A bit for each chunk of the index: it has its digest.
    checked: Box<[AtomicU64]>,
}

impl Index {
    /// Reads the index of the image with this header, and checks all but the chunks.
    pub(super) fn load(path: &Path, file: &Backing, header: &Header, key: &Key) -> Result<Self, ImageError> {
        let damaged = || ImageError::damaged(path, "its index");
        let unread = |error| file.unread(path, error);
        let file_bytes = file.len_bytes().map_err(unread)?;
        // Before memory is taken for it: a header can say anything.
        if header.index_at.checked_add(header.index_bytes).is_none_or(|end| end > file_bytes) {
            return Err(ImageError::damaged(path, "it is shorter than its header says"));
        }
        let layout = Layout::new(header).ok_or_else(damaged)?;
        let len = usize::try_from(header.index_bytes).map_err(|_| damaged())?;
        // And before its digest says that these are its lengths: a sparse file can be of any.
        if len > UNPROVEN_MOST && !has_root(file, header, &layout, key).map_err(unread)? {
            return Err(damaged());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| ImageError::System(io::ErrorKind::OutOfMemory.into()))?;
        bytes.resize(len, 0);
        file.read_exact_at(&mut bytes, header.index_at).map_err(unread)?;
        if header.root_of(key, &bytes[..layout.chunks_at]) != header.root {
            return Err(damaged());
        }
        let places = layout.places(&bytes[..layout.runs_at]).ok_or_else(damaged)?;
        let pages = header.len_bytes.div_ceil(OS_PAGE as u64);
        let runs = runs::decode(&bytes[layout.runs_at..layout.chunks_at], pages);
        if runs.into_iter().any(|run| run.is_none()) {
            return Err(damaged());
        }
        let checked = (0..layout.present.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let index = Self { layout, bytes, places, checked };
        // A bad answer of a server must be found while the index can still be had again.
        let chunks = 0..index.places.len() as u64;
        if file.is_remote()
            && !chunks
                .into_iter()
                .all(|chunk| index.entry(chunk * CHUNK_BLOCKS, header.block_bytes, key).is_some())
        {
            return Err(damaged());
        }
        Ok(index)
    }

    /// The received map's bytes.
    pub(super) fn runs(&self) -> &[u8] {
        &self.bytes[self.layout.runs_at..self.layout.chunks_at]
    }

    /// The entry of a block, which there is. None if it is damaged.
    pub(super) fn entry(&self, block: u64, block_bytes: u32, key: &Key) -> Option<Entry> {
        let chunk = (block / CHUNK_BLOCKS) as usize;
        let digest = &self.bytes[chunk * ROOT_BYTES..][..ROOT_BYTES];
        let Some(place) = self.places[chunk] else {
            return Some(if *digest == ALL_ZERO.0 { Entry::Zero } else { Entry::Base });
        };
        let place = place as usize;
        let entries = &self.bytes[self.layout.chunks_at + place * CHUNK_BYTES..][..CHUNK_BYTES];
        let (word, bit) = (&self.checked[place / 64], 1 << (place % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            (key.of_chunk(entries).0 == *digest).then_some(())?;
            // The bytes never change: a thread that does not see the bit yet checks them again.
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Entry::decode(entry_of(entries, block)?, block_bytes)
    }

    /// Whether the entry of a block, which there is, says that the block is in the file. It is not
    /// checked for that: the entry may be damaged.
    pub(super) fn names_a_place(&self, block: u64) -> bool {
        let place = self.places[(block / CHUNK_BLOCKS) as usize];
        let entries = place.map(|place| &self.bytes[self.layout.chunks_at + place as usize * CHUNK_BYTES..]);
        entries.and_then(|entries| entry_of(entries, block)).is_some_and(Entry::names_a_place)
    }
}

/// The entry of a block in its chunk.
fn entry_of(chunk: &[u8], block: u64) -> Option<&[u8; ENTRY_BYTES]> {
    chunk[(block % CHUNK_BLOCKS) as usize * ENTRY_BYTES..].first_chunk()
}

/// Whether the file has the header's root. Takes little memory, however long the index is.
fn has_root(file: &Backing, header: &Header, layout: &Layout, key: &Key) -> io::Result<bool> {
    let (mut root, mut part) = (header.begin_root(key), vec![0; 1 << 20]);
    for at in (0..layout.chunks_at).step_by(part.len()) {
        let part = &mut part[..(layout.chunks_at - at).min(1 << 20)];
        file.read_exact_at(part, header.index_at + at as u64)?;
        root.add(part);
    }
    Ok(root.end() == header.root)
}
