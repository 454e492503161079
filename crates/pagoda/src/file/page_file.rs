//! A file as pages: the content that it holds of each entry, and which pages are out of date or
//! lost.
//!
//! A digest of each OS page with a secret key tells the file's content, taken when it was read or
//! written. So a page is *dirty* if it differs from the file, whichever thread wrote it and by
//! whatever address, and a clean one is dropped without a write. A file mapped to be read has no
//! digests: its pages are always dropped.
//!
//! A page that could not be read is *lost* for as long as the file is mapped: a reader gets an
//! error, and never earlier content. The caller has the busy bit of the entry. This module must
//! never take failed I/O for content, write beyond the file's end, or know an address.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use pagoda_core::migrate::pages::PageSet;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;
use pagoda_linux::io::mapped_file::{FileState, MappedFile};
use pagoda_linux::mem::words::zeroed_words;
use pagoda_linux::uffd::Errno as KernelErrno;

use crate::crypto::digest::Digester;
use crate::error::Errno;
use crate::file::dirty_map::Dirty;
use crate::file::orders::Orders;
use crate::file::refaults::Reads;
use crate::file::seen::Seen;
use crate::file::writeback::RUN_PARTS;

/// The digest of an OS page that was overwritten unread: the file's content is not known, and the
/// write is later. A page whose own digest is this, one in 2^64, is written back though it is
/// clean, and a change of it by others goes unseen.
pub(super) const OVERWRITTEN: u64 = u64::MAX;

/// How I/O on the file failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It is shorter than it was.
    Truncated,
    /// Another program changed it where it was in memory.
    Changed,
    /// The kernel's error.
    Os(Errno),
}

impl Trouble {
    const fn to_code(self) -> i32 {
        match self {
            Self::Truncated => -1,
            Self::Changed => -2,
            Self::Os(errno) => errno.0,
        }
    }
    const fn from_code(code: i32) -> Option<Self> {
        match code {
            0 => None,
            -1 => Some(Self::Truncated),
            -2 => Some(Self::Changed),
            errno => Some(Self::Os(Errno(errno))),
        }
    }
}

impl From<KernelErrno> for Trouble {
    fn from(errno: KernelErrno) -> Self {
        Self::Os(Errno(errno.raw_os_error()))
    }
}

/// A mapped file.
pub(crate) struct PageFile {
    pub(super) file: MappedFile,
    /// Its length when it was mapped, in bytes.
    len: u64,
    /// The least length that was seen since: pages beyond are lost, also if the file becomes longer
    /// again.
    pub(super) end: AtomicU64,
    pub(super) seen: Seen,
    entry_bytes: usize,
    writable: bool,
    /// The digest of each OS page in the file; 0 if it is not known, or [`OVERWRITTEN`]. None if
    /// it is only read.
    pub(super) digests: Arc<[AtomicU64]>,
    digester: Digester,
    /// OS pages that could not be read.
    lost: PageSet,
    /// Why the first of them could not.
    why_lost: AtomicI32,
    /// The reason of a failed write that no call has returned yet.
    untold: AtomicI32,
    /// Times the disk did not confirm that writes are safe.
    failed_flushes: AtomicU64,
    pub(super) orders: Orders,
    pub(super) reads: Reads,
    pub(super) dirty: Dirty,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) ahead_bytes: AtomicU64,
    #[cfg(test)]
    pub(super) failing: super::failing_test::Failing,
}

impl PageFile {
    pub(super) fn new(
        file: MappedFile,
        state: FileState,
        entry_bytes: usize,
        writable: bool,
    ) -> io::Result<Self> {
        let len = state.len;
        let pages = len.div_ceil(OS_PAGE as u64);
        let digests = if writable { pages } else { 0 };
        let entries = len.div_ceil(entry_bytes as u64);
        Ok(Self {
            file,
            len,
            end: AtomicU64::new(len),
            seen: Seen::new(state),
            entry_bytes,
            writable,
            digests: zeroed_words(Bytes::new(digests).as_usize()),
            digester: Digester::random()?,
            lost: PageSet::new(zeroed_words(Bytes::new(PageSet::words_for(pages)).as_usize())),
            why_lost: AtomicI32::new(0),
            untold: AtomicI32::new(0),
            failed_flushes: AtomicU64::new(0),
            orders: Orders::new(entry_bytes, entries),
            reads: Reads::new(entries),
            dirty: Dirty::new(Bytes::new(entries).as_usize()),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            ahead_bytes: AtomicU64::new(0),
            #[cfg(test)]
            failing: super::failing_test::Failing::default(),
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Where it ends: never further than it did.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// How many bytes of it lie in `offset..offset + bytes`.
    pub(super) fn bytes_in(&self, offset: u64, bytes: usize) -> usize {
        self.end().saturating_sub(offset).min(bytes as u64) as usize
    }
    fn offset(&self, index: usize) -> u64 {
        index as u64 * self.entry_bytes as u64
    }
    fn first_page(&self, index: usize) -> u64 {
        self.offset(index) / OS_PAGE as u64
    }

    /// Reads entry `index`: the file's content, and zeroes behind its end. A page that can't be
    /// read is zero and lost.
    pub(super) fn read(&self, index: usize, into: &mut [u8]) {
        let offset = self.offset(index);
        let wanted = self.bytes_in(offset, into.len());
        match self.read_at(offset, &mut into[..wanted.next_multiple_of(OS_PAGE)]) {
            Ok(got) if got >= wanted => into[wanted..].fill(0),
            // Only pages that are really bad become lost.
            _ => {
                for at in (0..wanted).step_by(OS_PAGE) {
                    self.read_page(offset + at as u64, &mut into[at..at + OS_PAGE]);
                }
                into[wanted.next_multiple_of(OS_PAGE)..].fill(0);
            }
        }
        self.read_bytes.fetch_add(wanted as u64, Ordering::Relaxed);
        self.reads.note_read(index, wanted);
        self.note_content(index, into);
    }

    /// Reads granules `from..to` of entry `index` in the same way.
    pub(super) fn read_granules(&self, index: usize, (from, to): (u32, u32), into: &mut [u8]) {
        let first = self.first_page(index);
        for (granule, page) in (from..to).zip(into.chunks_exact_mut(OS_PAGE)) {
            let number = first + u64::from(granule);
            let offset = number * OS_PAGE as u64;
            let wanted = self.bytes_in(offset, OS_PAGE);
            if wanted == 0 {
                page.fill(0);
                continue;
            }
            self.read_page(offset, page);
            self.read_bytes.fetch_add(wanted as u64, Ordering::Relaxed);
            if self.writable && !self.lost.has(number) {
                self.note_page(number, &page[..wanted]);
            }
        }
    }

    fn read_page(&self, offset: u64, into: &mut [u8]) {
        let wanted = self.bytes_in(offset, OS_PAGE);
        let trouble = match self.read_at(offset, into) {
            Ok(got) if got >= wanted => return into[wanted..].fill(0),
            // It was cut within this page: the next look has it end there.
            Ok(got) if got > 0 => return into[got..].fill(0),
            Ok(_) => Trouble::Truncated,
            Err(errno) => errno.into(),
        };
        into.fill(0);
        let page = offset / OS_PAGE as u64;
        self.lose(page..page + 1, trouble);
    }

    /// Reads entries from `index` on, all or nothing: a page that can't be read is left to a fault
    /// of its own.
    pub(super) fn read_several(&self, index: usize, into: &mut [&mut [u8]]) -> bool {
        let offset = self.offset(index);
        let room = into.iter().map(|part| part.len()).sum();
        let wanted = self.bytes_in(offset, room);
        let mut left = wanted.next_multiple_of(OS_PAGE);
        let mut slices: Vec<IoSliceMut<'_>> = Vec::with_capacity(into.len());
        for part in into.iter_mut() {
            let here = left.min(part.len());
            left -= here;
            slices.push(IoSliceMut::new(&mut part[..here]));
        }
        if !self.read_all_at(offset, &mut slices).is_ok_and(|got| got >= wanted) {
            return false;
        }
        drop(slices);
        let mut at = 0;
        for (i, part) in into.iter_mut().enumerate() {
            let here = wanted.saturating_sub(at).min(part.len());
            part[here..].fill(0);
            at += part.len();
            self.reads.note_read(index + i, here);
            self.note_content(index + i, part);
        }
        self.read_bytes.fetch_add(wanted as u64, Ordering::Relaxed);
        true
    }

    fn digest(&self, content: &[u8]) -> u64 {
        self.digester.of(content)
    }

    /// The OS pages of `content`, from entry `index` on, that the file has something of: their
    /// number, and their bytes.
    fn pages<'a>(&self, index: usize, content: &[&'a [u8]]) -> impl Iterator<Item = (u64, &'a [u8])> {
        let room = content.iter().map(|part| part.len()).sum();
        let wanted = self.bytes_in(self.offset(index), room);
        (self.first_page(index)..).zip(within(content, 0..wanted).flat_map(|part| part.chunks(OS_PAGE)))
    }

    /// The file holds this of an entry.
    fn note_content(&self, index: usize, content: &[u8]) {
        if self.writable {
            for (page, bytes) in self.pages(index, &[content]) {
                self.note_page(page, bytes);
            }
        }
    }

    /// The file holds this of an OS page.
    pub(super) fn note_page(&self, page: u64, bytes: &[u8]) {
        self.digests[page as usize].store(self.digest(bytes), Ordering::Relaxed);
    }

    /// Whether the file holds these bytes of an OS page, as far as is known.
    pub(super) fn holds(&self, page: u64, bytes: &[u8]) -> bool {
        let known = self.digests[page as usize].load(Ordering::Relaxed);
        known != OVERWRITTEN && known == self.digest(bytes)
    }

    /// The file's content of an OS page is not known any more.
    pub(super) fn forget(&self, page: u64) {
        if self.writable {
            self.digests[page as usize].store(0, Ordering::Relaxed);
        }
    }

    /// Writes the OS pages of `wanted`, bits from the first of entry `index` on, that differ from
    /// the file in `content`, which is all of some entries, in parts of whole OS pages; it `stays`
    /// in memory or not. Pages beyond the end of a truncated file are lost, and so are those that
    /// others have changed.
    ///
    /// If it fails a part may be written, and no page is taken for written that is not.
    pub(super) fn write_back(
        &self,
        index: usize,
        wanted: u64,
        content: &[&[u8]],
        stays: bool,
    ) -> Result<(), Trouble> {
        if !self.writable {
            return Ok(());
        }
        let first = self.first_page(index);
        // A page that stays must be the file's, written or not.
        let compares_all = stays && self.is_in_round();
        let mut dirty = self.differing(index, wanted, content);
        if dirty == 0 && !compares_all {
            return Ok(());
        }
        let before = self.before_write().inspect_err(|trouble| self.is_untold(*trouble))?;
        // It may end elsewhere by now.
        dirty = self.known_pages(index, dirty, content);
        if !before.is_as_seen {
            let compared = if compares_all { self.known_pages(index, wanted, content) } else { dirty };
            let (changed, same) = self.compare(first, compared, &content.concat());
            dirty &= !(changed | same);
        }
        let mut outcome = Ok(());
        for (from, to) in runs(dirty) {
            let bytes = from as usize * OS_PAGE..to as usize * OS_PAGE;
            let at = self.offset(index) + bytes.start as u64;
            let len = self.bytes_in(at, bytes.len());
            let content = || within(content, bytes.start..bytes.start + len);
            let flushes = self.failed_flushes.load(Ordering::SeqCst);
            let written = self.write_at(at, content(), len);
            self.written_bytes.fetch_add(len as u64, Ordering::Relaxed);
            let note = |is_known: bool| {
                let pages = content().flat_map(|part| part.chunks(OS_PAGE));
                for (page, bytes) in (first + u64::from(from)..).zip(pages) {
                    let digest = if is_known { self.digest(bytes) } else { 0 };
                    self.digests[page as usize].store(digest, Ordering::SeqCst);
                }
            };
            note(written.is_ok());
            // A failed flush forgets the pages that it finds: it may not have found this one.
            if self.failed_flushes.load(Ordering::SeqCst) != flushes {
                note(false);
            }
            if let Err(errno) = written {
                self.is_untold(errno.into());
                outcome = Err(errno.into());
            }
        }
        if dirty != 0 {
            self.after_write(&before);
        }
        outcome
    }

    /// Of `wanted` those that the file has, and that are not lost.
    fn known_pages(&self, index: usize, wanted: u64, content: &[&[u8]]) -> u64 {
        let first = self.first_page(index);
        let pages = self.pages(index, content).map(|(page, _)| page);
        pages.filter(|page| !self.lost.has(*page)).fold(0, |known, page| known | 1 << (page - first)) & wanted
    }

    /// Of those the ones that the file does not hold as they are in `content`.
    pub(super) fn differing(&self, index: usize, wanted: u64, content: &[&[u8]]) -> u64 {
        let (first, known) = (self.first_page(index), self.known_pages(index, wanted, content));
        let differs =
            |(page, bytes): &(u64, &[u8])| known >> (page - first) & 1 != 0 && !self.holds(*page, bytes);
        self.pages(index, content).filter(differs).fold(0, |dirty, (page, _)| dirty | 1 << (page - first))
    }

    /// Writes parts of `len` bytes together.
    fn write_at<'a>(
        &self,
        offset: u64,
        parts: impl Iterator<Item = &'a [u8]>,
        len: usize,
    ) -> Result<(), KernelErrno> {
        #[cfg(test)]
        self.failing.write()?;
        let (mut slices, mut count, mut end) = ([IoSlice::new(&[]); RUN_PARTS], 0, &[][..]);
        for part in parts {
            // Less than an OS page is only there where the file ends.
            let whole;
            (whole, end) = part.split_at(part.len() / OS_PAGE * OS_PAGE);
            if !whole.is_empty() {
                slices[count] = IoSlice::new(whole);
                count += 1;
            }
        }
        self.file.write_at(offset, &mut slices[..count])?;
        if !end.is_empty() {
            self.file.write_end(offset + (len - end.len()) as u64, end)?;
        }
        Ok(())
    }

    pub(super) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, KernelErrno> {
        #[cfg(test)]
        self.failing.read()?;
        self.file.read_at(offset, into)
    }

    fn read_all_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, KernelErrno> {
        #[cfg(test)]
        self.failing.read()?;
        self.file.read_all_at(offset, into)
    }

    /// Returns when all writes are on stable storage. If the disk does not confirm that, the file's
    /// content is not known any more: the next sync writes all pages in memory anew, for the kernel
    /// tells once that it lost some.
    pub(super) fn flush(&self) -> Result<(), KernelErrno> {
        let outcome = self.sync_file();
        if outcome.is_err() {
            self.failed_flushes.fetch_add(1, Ordering::SeqCst);
            self.digests.iter().for_each(|digest| digest.store(0, Ordering::SeqCst));
        }
        outcome
    }

    fn sync_file(&self) -> Result<(), KernelErrno> {
        #[cfg(test)]
        self.failing.flush()?;
        self.file.sync()
    }

    /// OS pages can't be had any more.
    pub(super) fn lose(&self, pages: Range<u64>, why: Trouble) {
        let _ = self.why_lost.compare_exchange(0, why.to_code(), Ordering::AcqRel, Ordering::Acquire);
        self.lost.add(pages);
    }

    /// The first run of OS pages from `from` on that can't be had.
    pub(super) fn next_lost(&self, from: u64) -> Option<Range<u64>> {
        if self.why_lost.load(Ordering::Acquire) == 0 {
            return None;
        }
        let end = self.len.div_ceil(OS_PAGE as u64);
        let first = (from..end).find(|page| self.lost.has(*page))?;
        let last = (first..end).find(|page| !self.lost.has(*page));
        Some(first..last.unwrap_or(end))
    }

    /// Why the OS page at `offset` can't be had, if so.
    pub(super) fn why_lost(&self, offset: u64) -> Option<Trouble> {
        if !self.lost.has(offset.min(self.len - 1) / OS_PAGE as u64) {
            return None;
        }
        Trouble::from_code(self.why_lost.load(Ordering::Acquire))
    }

    /// The granules of an entry that can't be had.
    pub(crate) fn lost_granules(&self, index: usize) -> Granules {
        if self.why_lost.load(Ordering::Acquire) == 0 {
            return Granules::NONE;
        }
        let (first, end) = (self.first_page(index), self.len.div_ceil(OS_PAGE as u64));
        let pages = first..(first + (self.entry_bytes / OS_PAGE) as u64).min(end);
        pages.filter(|page| self.lost.has(*page)).fold(Granules::NONE, |lost, page| {
            let granule = (page - first) as u32;
            lost.or(Granules::range(granule, granule + 1))
        })
    }

    /// A write failed: the next sync tells, whatever comes of it. Lost pages go before kept ones.
    pub(super) fn is_untold(&self, trouble: Trouble) {
        let code = trouble.to_code();
        let is_worse = |known: i32| (known == 0 || code < 0 && known > 0).then_some(code);
        let _ = self.untold.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_worse);
    }

    /// The failed writes since the last call.
    pub(super) fn take_untold(&self) -> Option<Trouble> {
        Trouble::from_code(self.untold.swap(0, Ordering::AcqRel))
    }
}

/// The bytes `range` of some parts, one after another; none of them is empty.
fn within<'a>(parts: &[&'a [u8]], range: Range<usize>) -> impl Iterator<Item = &'a [u8]> {
    let mut at = 0;
    parts.iter().filter_map(move |part| {
        let [from, to] = [range.start, range.end].map(|end| end.saturating_sub(at).min(part.len()));
        at += part.len();
        (from < to).then(|| &part[from..to])
    })
}

/// The runs of set bits, lowest first, as `(first, one past the last)`.
pub(super) fn runs(mut bits: u64) -> impl Iterator<Item = (u32, u32)> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let from = bits.trailing_zeros();
        let to = from + (bits >> from).trailing_ones();
        bits &= u64::MAX.checked_shl(to).unwrap_or(0);
        Some((from, to))
    })
}

impl std::fmt::Debug for PageFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a file of {} bytes", self.len)
    }
}
