//! The writes to a mapping, as the kernel's page table tells them: of memory of any kind, as its
//! owner uses it.
//!
//! The descriptor asks for asynchronous write protection alone. So no thread ever waits for it, no
//! message comes, and no content changes. It sees writes by this mapping, of threads and of the
//! kernel, also those of a guest of KVM. It does not see those by another mapping of the same
//! memory, by another process, or by a device that has the pages pinned.

use std::io;
use std::ops::Range;

use super::{Errno, Mode, REGISTER_MODE_WP, Uffd, feature};
use crate::mem::range::PageRange;
use crate::procfs::pagemap::PagemapScanner;

/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`: shared memory can be protected (Linux 5.19).
const WP_SHARED: u64 = 1 << 12;

/// Tracks the writes to a range as long as it lives.
pub struct WriteLog {
    uffd: Uffd,
    scanner: PagemapScanner,
    range: PageRange,
}

impl WriteLog {
    /// Begins to track writes to `range`, which is mapped. Nothing of it is protected yet: the
    /// first [`take`](Self::take) tells all that is in the page table.
    ///
    /// # Errors
    /// `EBUSY`: a part has a userfaultfd. `EPERM` or `ENOENT` and others: this process may have
    /// none. `EINVAL`: the kernel can't track writes to such memory, or a part is not mapped. Those
    /// of opening `/proc/self/pagemap`.
    pub fn start(range: PageRange) -> io::Result<Self> {
        let features = feature::WP_ASYNC | WP_SHARED;
        // Faults of the kernel are let through by itself as well: it needs no right to hold them.
        let uffd = Uffd::open(Mode::UserOnly, features).or_else(|_| Uffd::open(Mode::Full, features))?;
        uffd.register_mode(range, REGISTER_MODE_WP)?;
        Ok(Self { uffd, scanner: PagemapScanner::new()?, range })
    }

    /// Calls `written` with each run of pages that is in the page table and was written since it
    /// was protected, and protects it. Then calls `absent` with each run that is not in the page
    /// table, and not protected either. A page of shared memory may hold something all the same,
    /// and have lost its mark: [`protect`](Tracked::protect) it and take it as written.
    ///
    /// # Errors
    /// `EPERM`: a part of the range is another mapping now. `Unsupported` before Linux 6.7. That of
    /// `absent`.
    pub fn take(
        &mut self,
        mut written: impl FnMut(Range<usize>),
        mut absent: impl FnMut(&Tracked<'_>, Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Self { uffd, scanner, range } = self;
        scanner.take_only_written(range.start(), range.end(), |run, _| written(run))?;
        let (tracked, mut done) = (Tracked { uffd, range: *range }, Ok(()));
        scanner.absent_runs(range.start(), range.end(), |run| {
            if done.is_ok() {
                done = absent(&tracked, run);
            }
        })?;
        done
    }
}

/// The tracked range.
pub struct Tracked<'a> {
    uffd: &'a Uffd,
    range: PageRange,
}

impl Tracked<'_> {
    /// Protects `pages`, whether they are in the page table or not: the next write to one shows.
    ///
    /// # Errors
    /// The kernel's: a part is another mapping now, or there is no memory for page tables.
    ///
    /// # Panics
    /// If they are not of the range.
    pub fn protect(&self, pages: Range<usize>) -> io::Result<()> {
        let pages = PageRange::at(pages.start, pages.len());
        assert_eq!(self.range.intersection(pages), Some(pages), "pages of the range that is tracked");
        loop {
            match self.uffd.protect(pages) {
                // Only descriptors with events see this; no wait is needed.
                Err(Errno::AGAIN) => crate::process::thread::yield_now(),
                done => return Ok(done?),
            }
        }
    }
}

#[cfg(test)]
#[path = "write_log_test.rs"]
mod tests;
