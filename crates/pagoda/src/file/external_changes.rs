//! Noticing changes by other programs to a mapped file: they truncate it, truncate and extend it,
//! or write to it.
//!
//! A file is known by its length, its change time and its blocks ([`FileState`]). Each call checks
//! them, each write-back does before it writes, and a thread of the region does ten times a second
//! for users of addresses. Our own writes change them, too: they are made one at a time, and each
//! enters the state that it left. A change by another is followed by a *round*:
//! - In a region that is only read all pages in memory are dropped, and read anew.
//! - In one that is written all pages in memory are compared with the file. A page that the file
//!   does not hold as it did is lost. It may be written by its address at the same time: that could
//!   not be told from the earlier content, so that it is never just read anew. One that was
//!   overwritten unread is the later write.
//!
//! Until the round is over each write-back compares first, too. One change goes unseen: a file that
//! is truncated and written again to its old length while a write of ours is on its way. This
//! module must never take a state for seen that memory does not know of.

use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_linux::io::direct_file::AlignedBuffer;
use pagoda_linux::io::mapped_file::FileState;
use pagoda_linux::process::thread::yield_now;

use super::page_file::{PageFile, Trouble, runs};
use crate::file::orders::Reader;
use crate::file::region::Inner;
use crate::file::seen::{Before, locked};

/// Whether only time has passed, or blocks were allocated for the same content.
fn is_still(now: &FileState, seen: &FileState) -> bool {
    (now.len, now.changed_ns) == (seen.len, seen.changed_ns) && now.blocks >= seen.blocks
}

impl PageFile {
    fn state(&self) -> Result<FileState, Trouble> {
        self.file.state().map_err(Trouble::from)
    }

    /// Whether the file is unchanged by others since memory knows of it.
    fn is_as_seen(&self) -> Result<bool, Trouble> {
        let is_as_seen = |now: &FileState| is_still(now, &locked(&self.seen.states).seen);
        if is_as_seen(&self.state()?) {
            return Ok(true);
        }
        // A write of ours may be on its way, which has looked before. But it makes nothing shorter;
        // and a round is waited for.
        let Some(_writing) = self.seen.unless_written() else {
            return Ok(self.state()?.len >= self.end() && !self.is_in_round());
        };
        Ok(is_as_seen(&self.state()?))
    }

    /// Begins a round, if it needs one: memory will know of the state that it finds.
    fn begin_round(&self) -> Result<bool, Trouble> {
        let _writing = locked(&self.seen.writing);
        let now = self.state()?;
        let mut states = locked(&self.seen.states);
        if is_still(&now, &states.seen) {
            return Ok(false);
        }
        states.next = Some(now);
        drop(states);
        self.shrink(now.len);
        Ok(true)
    }

    fn end_round(&self) {
        let mut states = locked(&self.seen.states);
        if let Some(next) = states.next.take() {
            states.seen = next;
        }
    }

    /// Whether memory is being compared with the file.
    pub(super) fn is_in_round(&self) -> bool {
        locked(&self.seen.states).next.is_some()
    }

    /// A write must not overwrite changes by others, nor make the file longer.
    pub(super) fn before_write(&self) -> Result<Before<'_>, Trouble> {
        let _writing = self.seen.write();
        let state = self.state()?;
        self.shrink(state.len);
        let is_as_seen = is_still(&state, &locked(&self.seen.states).seen);
        Ok(Before { _writing, state, is_as_seen })
    }

    /// Enters the state after a write of ours. A state that can't be read is another's.
    pub(super) fn after_write(&self, before: &Before<'_>) {
        let Ok(after) = self.state() else { return };
        if after.len != before.state.len || after.blocks < before.state.blocks {
            return;
        }
        let mut states = locked(&self.seen.states);
        if before.is_as_seen {
            states.seen = after;
        } else if states.next.is_some_and(|next| is_still(&before.state, &next)) {
            states.next = Some(after);
        }
    }

    /// The file ends at `now_len`, or did: pages beyond are lost, and the content of its last page
    /// is not known.
    fn shrink(&self, now_len: u64) {
        let end = self.end();
        if now_len >= end {
            return;
        }
        self.lose(now_len.div_ceil(OS_PAGE as u64)..end.div_ceil(OS_PAGE as u64), Trouble::Truncated);
        if !now_len.is_multiple_of(OS_PAGE as u64) {
            self.forget(now_len / OS_PAGE as u64);
        }
        self.end.store(now_len, Ordering::Release);
        if self.is_writable() {
            self.is_untold(Trouble::Truncated);
        }
    }

    /// Of those OS pages of `pages`, bits from page `first` on, that `content` begins with: the
    /// ones that the file does not hold as it did, which are lost, and those that it holds as they
    /// are in `content`.
    pub(super) fn compare(&self, first: u64, pages: u64, content: &[u8]) -> (u64, u64) {
        let (mut changed, mut same) = (0, 0);
        let mut buffer = AlignedBuffer::new(content.len());
        for (from, to) in runs(pages) {
            let (at, len) = (from as usize * OS_PAGE, (to - from) as usize * OS_PAGE);
            let found = self.read_at(first * OS_PAGE as u64 + at as u64, &mut buffer[at..at + len]);
            self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
            for bit in from..to {
                let page = first + u64::from(bit);
                let at = bit as usize * OS_PAGE;
                let wanted = self.bytes_in(page * OS_PAGE as u64, OS_PAGE);
                let trouble = match found {
                    Err(errno) => Some(errno.into()),
                    Ok(got) if got < at - from as usize * OS_PAGE + wanted => Some(Trouble::Truncated),
                    Ok(_) if buffer[at..at + wanted] == content[at..at + wanted] => {
                        self.note_page(page, &content[at..at + wanted]);
                        same |= 1 << bit;
                        None
                    }
                    Ok(_) if self.is_overwritten(page) => None,
                    Ok(_) if self.holds(page, &buffer[at..at + wanted]) => None,
                    Ok(_) => Some(Trouble::Changed),
                };
                if let Some(trouble) = trouble {
                    changed |= 1 << bit;
                    self.lose(page..page + 1, trouble);
                    self.is_untold(trouble);
                }
            }
        }
        (changed, same)
    }
}

impl Inner {
    /// Notices changes by others. No call that begins afterwards sees earlier content.
    pub(super) fn look(&self) -> Result<(), Trouble> {
        if self.file.is_as_seen()? {
            return Ok(());
        }
        let mut known_end = locked(&self.looking);
        if !self.file.begin_round()? {
            return Ok(());
        }
        if self.file.is_writable() {
            self.write_all_back();
        }
        // The holder of a busy entry has no earlier content when it gives it back: it read before
        // the round began or after.
        self.drop_lost();
        let end = self.file.end();
        if end < *known_end {
            self.clear_behind(end);
            *known_end = end;
        }
        self.file.end_round();
        Ok(())
    }

    /// Drops pages in memory that must not be seen. A page that can't be dropped, because its user
    /// has locked it for example, goes when memory gets short, and no call shows it.
    fn drop_lost(&self) {
        let len = self.range.len();
        if !self.file.is_writable() {
            if self.memory().discard(0, len).is_err() {
                self.file.lose(0..self.file.len().div_ceil(OS_PAGE as u64), Trouble::Changed);
            }
            return;
        }
        let mut from = 0;
        while let Some(lost) = self.file.next_lost(from) {
            let (start, end) = (lost.start as usize * OS_PAGE, lost.end as usize * OS_PAGE);
            let _ = self.memory().discard(start, end.min(len) - start);
            from = lost.end;
        }
    }

    /// The OS page in which the file ends now reads zero behind that, as every file's last one
    /// does.
    fn clear_behind(&self, end: u64) {
        let zeroes = [0; OS_PAGE];
        let rest = end.next_multiple_of(OS_PAGE as u64) - end;
        // One that is lost has nothing behind its end either.
        let _ = self.each_part(end as usize, rest as usize, |at, part, is_gone| {
            self.bring_in(at, is_gone, Reader::InRegion)?;
            let copied = self.memory().write_what_is_there(at, &zeroes[part]);
            if copied == 0 {
                yield_now();
            }
            Ok(copied)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use pagoda_core::page::BasePage;
    use pagoda_linux::testing::skip::skip_without_moves;
    use pagoda_linux::testing::wait::until;

    use super::*;
    use crate::file::tests::mapped;

    /// Else a call would end before the pages beyond the new end are cleared.
    #[test]
    fn a_round_is_waited_for_also_while_something_is_written() {
        if skip_without_moves("a round beside a write") {
            return;
        }
        let (path, _manager, region) = mapped(BasePage::K64);
        let file = &region.inner().file;
        assert_eq!(file.is_as_seen().ok(), Some(true));
        // The region's own thread has to wait.
        let _looking = locked(&region.inner().looking);
        let other = std::fs::File::options().write(true).open(path.path()).expect("it is ours");
        other.set_len(file.len() - 1).expect("shorter");
        assert_eq!(file.begin_round().ok(), Some(true));
        let writing = file.seen.write();
        assert_eq!(file.is_as_seen().ok(), Some(false));
        file.end_round();
        assert_eq!(file.is_as_seen().ok(), Some(true));
        drop(writing);
    }

    /// Else a call that met the region's own thread would show earlier content.
    #[test]
    fn of_two_concurrent_looks_both_see_the_changes_by_others() {
        if skip_without_moves("two looks at once") {
            return;
        }
        let (path, _manager, region) = mapped(BasePage::K64);
        let file = &region.inner().file;
        let _looking = locked(&region.inner().looking);
        let other = std::fs::File::options().write(true).open(path.path()).expect("it is ours");
        let other_looks = locked(&file.seen.writing);
        other.set_len(file.len() - 1).expect("shorter");
        other.set_len(file.len()).expect("as long as before");
        let looks = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                looks.store(true, Ordering::Release);
                file.is_as_seen().ok()
            });
            until("a thread looks", || looks.load(Ordering::Acquire));
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(other_looks);
            assert_eq!(looker.join().expect("no panic"), Some(false));
        });
    }
}
