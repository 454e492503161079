//! A base page as a store packs it: blocks of 4 KiB, each compressed on its own, behind their
//! lengths.
//!
//! LZ4 finds repeated strings only, and leaves hexadecimal digits or base 64 as long as they were.
//! So a block that it does not shrink by a quarter is compressed by Zstandard, which codes frequent
//! bytes by fewer bits, if the block is not noise. It takes three times as long; but a page that
//! does not shrink would lie in the file, from where it takes ten times as long to come. A block
//! that LZ4 shrinks by more stays as LZ4 made it: it is packing that faults wait for then.
//!
//! In a page of several blocks each takes whole units of [`UNIT`], so that a block that was written
//! can mostly be replaced in its place: it costs one percent of the packed bytes.
//!
//! A part of a page can be read, compared or replaced without unpacking all of it: a fault that
//! wants one OS page of a 64 KiB base page pays for that OS page. The ratio is that of zram, which
//! packs OS pages, too. A page that is cold can be packed as a whole instead, with a mark in place
//! of the lengths. Packed bytes may come from another host; unpacking never reads or writes out of
//! bounds, and fills its output exactly or fails.

use std::ops::Range;

use pagoda_core::page_entry::Granules;

use crate::codec::lz4::{self, Lz4};
use crate::codec::zstd::{Compressor, Decompressor};
use crate::mem::zero_scan::is_zero;

/// The bytes compressed at once.
pub const BLOCK: usize = 4 << 10;

/// A block's length in the header: 0 for one of zeroes, [`BLOCK`] for one that is kept as it is.
const LENGTH_BYTES: usize = 2;

/// The room of a block in a page of several is a multiple of this.
pub const UNIT: usize = 32;

/// The room that a block of this packed length takes in a page of so many bytes.
#[must_use]
pub fn room(length: usize, page: usize) -> usize {
    if page > BLOCK { length.next_multiple_of(UNIT) } else { length }
}

/// The length of a packed page's header.
#[must_use]
pub fn header_bytes(page: usize) -> usize {
    page.div_ceil(BLOCK) * LENGTH_BYTES
}

/// A block that LZ4 makes no longer than this stays so.
const SHORT_BYTES: usize = BLOCK / 4 * 3;

/// The first byte of a block that was compressed by Zstandard. LZ4 begins none with it: it stands
/// for no literals, and there is nothing yet that a match could repeat.
const ZSTD_MARK: u8 = 0;

/// The level of Zstandard for blocks: the fastest with entropy coding.
const BLOCK_LEVEL: i32 = 1;

/// Compresses blocks. One for each thread that packs; about 100 KiB.
pub struct BlockPacker {
    lz4: Lz4,
    zstd: Compressor,
    /// The output of Zstandard, which may be longer than that of LZ4.
    room: Box<[u8]>,
}

impl Default for BlockPacker {
    fn default() -> Self {
        let (lz4, zstd) = (Lz4::new(), Compressor::new(BLOCK, BLOCK_LEVEL));
        Self { lz4, zstd, room: vec![0; BLOCK].into_boxed_slice() }
    }
}

/// Packs `page` into the front of `into`. None if that takes more than all of it.
#[must_use]
pub fn pack(page: &[u8], into: &mut [u8], blocks: &mut BlockPacker) -> Option<usize> {
    pack_present(page, |_| true, into, blocks)
}

/// As [`pack`], of a page of which only some blocks are `present`. The others are zero, and are not
/// read.
#[must_use]
pub fn pack_present(
    page: &[u8],
    present: impl Fn(usize) -> bool,
    into: &mut [u8],
    blocks: &mut BlockPacker,
) -> Option<usize> {
    let mut packer = Packer::new(page.len(), into);
    for (i, block) in page.chunks(BLOCK).enumerate() {
        if present(i) { packer.add(block, blocks)? } else { packer.add_packed(&[])? }
    }
    Some(packer.at)
}

/// The blocks of a packed page that are not zero, one bit each, lowest first. Its header is enough.
/// All of them where it was packed as a whole, or `packed` is no header.
#[must_use]
pub fn blocks_with_content(packed: &[u8], page: usize) -> Granules {
    let all = Granules::range(0, page.div_ceil(BLOCK) as u32);
    if is_dense(packed) {
        return all;
    }
    let is_zero = |block: &u32| length(packed, *block as usize) == Some(0);
    (0..page.div_ceil(BLOCK) as u32)
        .filter(is_zero)
        .fold(all, |rest, block| rest.without(Granules::range(block, block + 1)))
}

/// The header of a dense page: no length of a block.
const DENSE: [u8; 2] = [0xff; 2];

/// Packs `page` as a whole into the front of `into`: smaller, and only to be had as a whole. None
/// if it takes more.
pub fn pack_dense(page: &[u8], into: &mut [u8], compressor: &mut Compressor) -> Option<usize> {
    let (mark, room) = into.split_at_mut_checked(DENSE.len())?;
    mark.copy_from_slice(&DENSE);
    Some(DENSE.len() + compressor.compress(page, room)?)
}

/// Whether these bytes are of a page that was packed as a whole.
pub fn is_dense(packed: &[u8]) -> bool {
    packed.starts_with(&DENSE)
}

/// Unpacks pages, block by block or as a whole. One for each thread that unpacks; about 100 KiB.
pub struct PageUnpacker {
    zstd: Decompressor,
    /// A block of which a part is wanted.
    room: Box<[u8]>,
}

impl Default for PageUnpacker {
    fn default() -> Self {
        Self { zstd: Decompressor::new(), room: vec![0; BLOCK].into_boxed_slice() }
    }
}

impl PageUnpacker {
    /// Unpacks all of a page. None if neither [`pack`] nor [`pack_dense`] made these bytes of a
    /// page of this length; `page` may hold anything then.
    pub fn unpack(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        if is_dense(packed) {
            self.unpack_dense(packed, page)
        } else {
            self.unpack_part(packed, page.len(), 0, page)
        }
    }

    /// Unpacks all of a page that was packed as a whole. None if [`pack_dense`] did not make these
    /// bytes.
    pub fn unpack_dense(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        self.zstd.decompress(packed.strip_prefix(&DENSE)?, page)
    }

    /// Unpacks bytes `offset..offset + into.len()` of a page of `page` bytes. None if [`pack`] did
    /// not make these bytes.
    pub fn unpack_part(&mut self, packed: &[u8], page: usize, offset: usize, into: &mut [u8]) -> Option<()> {
        for block in blocks(packed, page, offset, into.len()) {
            let block = block?;
            let (from, to) = overlap(&block, offset, into.len());
            let part = &mut into[from - offset..to - offset];
            if part.len() == block.size {
                block.unpack(part, &mut self.zstd)?;
            } else {
                let room = &mut self.room[..block.size];
                block.unpack(room, &mut self.zstd)?;
                part.copy_from_slice(&room[from - block.start..to - block.start]);
            }
        }
        Some(())
    }

    /// Whether bytes `offset..offset + content.len()` of a page of `page` bytes are `content`.
    /// Looks no further than the first block that differs. None if [`pack`] did not make these
    /// bytes.
    pub fn is_packed(&mut self, packed: &[u8], page: usize, offset: usize, content: &[u8]) -> Option<bool> {
        for block in blocks(packed, page, offset, content.len()) {
            let block = block?;
            let (from, to) = overlap(&block, offset, content.len());
            let room = &mut self.room[..block.size];
            block.unpack(room, &mut self.zstd)?;
            if room[from - block.start..to - block.start] != content[from - offset..to - offset] {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Unpacks one packed block, all of it. None if [`pack_block`] did not make these bytes of a
    /// block of this length.
    pub fn unpack_block(&mut self, packed: &[u8], into: &mut [u8]) -> Option<()> {
        Block { start: 0, size: into.len(), packed }.unpack(into, &mut self.zstd)
    }
}

/// Unpacks all of a page. None if [`pack`] or [`join`] did not make these bytes of a page of this
/// length; `page` may hold anything then.
pub fn unpack_blocks(packed: &[u8], page: &mut [u8], zstd: &mut Decompressor) -> Option<()> {
    let len = page.len();
    for (block, into) in blocks(packed, len, 0, len).zip(page.chunks_mut(BLOCK)) {
        block?.unpack(into, zstd)?;
    }
    Some(())
}

/// Packs a page of `page` bytes whose blocks are packed already, in order, into the front of
/// `into`. None if that takes more than all of it.
///
/// # Panics
/// If there are fewer or more of them than the page has.
#[must_use]
pub fn join<'a>(packed: impl IntoIterator<Item = &'a [u8]>, page: usize, into: &mut [u8]) -> Option<usize> {
    let mut packer = Packer::new(page, into);
    packed.into_iter().try_for_each(|block| packer.add_packed(block))?;
    assert_eq!(packer.blocks, page.div_ceil(BLOCK), "all of its blocks");
    Some(packer.at)
}

/// Packs a page anew: its `changed` runs are those of `content`, and the rest is as `packed`. Only
/// blocks with a change are unpacked and packed again. None if it takes more than all of `into`, or
/// `packed` is not the work of [`pack`].
#[must_use]
pub fn repack(
    packed: &[u8],
    changed: &[Range<usize>],
    content: &[u8],
    into: &mut [u8],
    unpacker: &mut PageUnpacker,
    blocks_packer: &mut BlockPacker,
) -> Option<usize> {
    let page = content.len();
    let mut packer = Packer::new(page, into);
    for block in blocks(packed, page, 0, page) {
        let block = block?;
        let end = block.start + block.size;
        let runs = || changed.iter().filter(|run| run.start < end && run.end > block.start);
        if runs().next().is_none() {
            packer.add_packed(block.packed)?;
            continue;
        }
        let room = &mut unpacker.room[..block.size];
        block.unpack(room, &mut unpacker.zstd)?;
        for run in runs() {
            let (from, to) = (run.start.max(block.start), run.end.min(end));
            room[from - block.start..to - block.start].copy_from_slice(&content[from..to]);
        }
        packer.add(room, blocks_packer)?;
    }
    Some(packer.at)
}

/// The place of a block in a page's packed bytes, of which the header is enough, and its length
/// there. None if that is no header.
#[must_use]
pub fn place_of_block(packed: &[u8], page: usize, block: usize) -> Option<(usize, usize)> {
    let at = (0..block).try_fold(header_bytes(page), |at, i| Some(at + room(length(packed, i)?, page)))?;
    Some((at, length(packed, block)?))
}

/// Enters the length of a block that was replaced in its place into a page's header.
///
/// # Panics
/// If the header has no such block, or a block can't have that length.
pub fn set_length(header: &mut [u8], block: usize, len: usize) {
    let len = u16::try_from(len).expect("a block's length fits its field");
    header[block * LENGTH_BYTES..][..LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// Packs one block, as it is in a packed page. None if `into` is too short for it. The same content
/// gives the same bytes, where `into` is no shorter than the block.
#[must_use]
pub fn pack_block(block: &[u8], into: &mut [u8], packer: &mut BlockPacker) -> Option<usize> {
    if is_zero(block) {
        return Some(0);
    }
    let by_lz4 = packer.lz4.compress(block, first_of(into, block.len() / 8 * 7));
    let len = by_lz4.unwrap_or(block.len());
    if len > SHORT_BYTES
        && block.len() == BLOCK
        && !is_noise(block)
        // It costs more to unpack, too: it has to save a quarter.
        && let Some(shorter) = packer.zstd.compress(block, &mut packer.room[..len / 4 * 3])
    {
        let (mark, rest) = into.get_mut(..=shorter)?.split_first_mut()?;
        *mark = ZSTD_MARK;
        rest.copy_from_slice(&packer.room[..shorter]);
        return Some(1 + shorter);
    }
    if by_lz4.is_none() {
        into.get_mut(..block.len())?.copy_from_slice(block);
    }
    Some(len)
}

/// Whether too many values occur in the block for an entropy coder to shrink it by much. Looks at
/// every sixteenth byte, at another place of each sixteen.
fn is_noise(block: &[u8]) -> bool {
    let mut seen = [0u64; 4];
    for (i, sixteen) in block.as_chunks::<16>().0.iter().enumerate() {
        let byte = sixteen[i % 16];
        seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }
    // Noise has 162 different ones of 256, base 64 has 64.
    seen.iter().map(|word| word.count_ones()).sum::<u32>() > 96
}

/// The blocks of a packed page as they are packed, in order. A block is None if [`pack`] did not
/// make its bytes.
pub fn packed_blocks(packed: &[u8], page: usize) -> impl Iterator<Item = Option<&[u8]>> {
    blocks(packed, page, 0, page).map(|block| block.map(|block| block.packed))
}

/// Where a page is being packed.
struct Packer<'a> {
    into: &'a mut [u8],
    page: usize,
    blocks: usize,
    at: usize,
}

impl<'a> Packer<'a> {
    fn new(page: usize, into: &'a mut [u8]) -> Self {
        Self { into, page, blocks: 0, at: header_bytes(page) }
    }

    fn add(&mut self, block: &[u8], blocks: &mut BlockPacker) -> Option<()> {
        let len = pack_block(block, self.into.get_mut(self.at..)?, blocks)?;
        self.added(len)
    }

    fn add_packed(&mut self, packed: &[u8]) -> Option<()> {
        self.into.get_mut(self.at..self.at + packed.len())?.copy_from_slice(packed);
        self.added(packed.len())
    }

    fn added(&mut self, len: usize) -> Option<()> {
        let end = self.at + room(len, self.page);
        // Packed bytes are a function of the content.
        self.into.get_mut(self.at + len..end)?.fill(0);
        let length = u16::try_from(len).expect("a block's length fits its field").to_le_bytes();
        self.into[self.blocks * LENGTH_BYTES..][..LENGTH_BYTES].copy_from_slice(&length);
        self.blocks += 1;
        self.at = end;
        Some(())
    }
}

fn first_of(bytes: &mut [u8], len: usize) -> &mut [u8] {
    let len = len.min(bytes.len());
    &mut bytes[..len]
}

/// One block of a packed page.
struct Block<'a> {
    /// Where it begins in the page, and its length there.
    start: usize,
    size: usize,
    /// As it is packed.
    packed: &'a [u8],
}

impl Block<'_> {
    /// Unpacks it, all of it. None if [`pack`] did not make these bytes.
    fn unpack(&self, into: &mut [u8], zstd: &mut Decompressor) -> Option<()> {
        match self.packed {
            [] => into.fill(0),
            packed if packed.len() == self.size => into.copy_from_slice(packed),
            [ZSTD_MARK, rest @ ..] => zstd.decompress(rest, into)?,
            packed => lz4::decompress(packed, into)?,
        }
        Some(())
    }
}

/// Where the blocks that hold bytes `offset..offset + len` of a page lie in its packed bytes, of
/// which the header is enough. None if that is no header.
#[must_use]
pub fn extent(packed: &[u8], page: usize, offset: usize, len: usize) -> Option<Range<usize>> {
    let mut at = header_bytes(page);
    let mut from = at;
    for (i, start) in (0..page).step_by(BLOCK).enumerate() {
        if start >= offset + len {
            break;
        }
        let room = room(length(packed, i)?, page);
        if start + BLOCK <= offset {
            from += room;
        }
        at += room;
    }
    Some(from..at)
}

fn length(packed: &[u8], block: usize) -> Option<usize> {
    let length = packed.get(block * LENGTH_BYTES..)?.get(..LENGTH_BYTES)?;
    Some(usize::from(u16::from_le_bytes(length.try_into().ok()?)))
}

/// The blocks of a page that hold any of bytes `offset..offset + len`, each None if [`pack`] did
/// not make its bytes.
fn blocks(packed: &[u8], page: usize, offset: usize, len: usize) -> impl Iterator<Item = Option<Block<'_>>> {
    let mut at = header_bytes(page);
    (0..page).step_by(BLOCK).enumerate().filter_map(move |(i, start)| {
        let Some(len_packed) = length(packed, i) else { return Some(None) };
        let from = at;
        at += room(len_packed, page);
        let size = BLOCK.min(page - start);
        let wanted = start < offset + len && offset < start + size;
        wanted.then(|| Some(Block { start, size, packed: packed.get(from..from + len_packed)? }))
    })
}

fn overlap(block: &Block<'_>, offset: usize, len: usize) -> (usize, usize) {
    (offset.max(block.start), (offset + len).min(block.start + block.size))
}

#[cfg(test)]
#[path = "pack_test.rs"]
mod tests;
