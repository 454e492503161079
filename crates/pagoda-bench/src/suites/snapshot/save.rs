//! The pause of a region's writers while it is saved.
//!
//! The writer is this thread. Asked to stop, it writes a number of pages all over the region: the
//! most that it could have written since the last round. The pause must never include these writes.

use pagoda::Bytes;

use super::sides::Files;
use crate::load::data::PAGE_BYTES;

/// Pages written last, of 1 GiB; of less memory, as large a share.
const DIRTY_PAGES: u64 = 4096;

/// One save.
pub struct Pause {
    pub ms: f64,
    pub dirty_pages: u64,
}

/// Saves a region of `memory`.
pub fn pause(files: &Files, memory: Bytes) -> anyhow::Result<Pause> {
    let manager = files.manager(None, 2)?;
    let region = manager.region(memory).create()?;
    files.fill(&region)?;
    let pages = memory.get() / PAGE_BYTES as u64;
    let dirty = ((DIRTY_PAGES * memory.get()) >> 30).clamp(1, pages);
    let mut written = Ok(());
    let write_last = || {
        for page in (0..dirty).map(|page| page * (pages / dirty)) {
            written = region.write_words(page as usize * PAGE_BYTES, &page.to_le_bytes());
            if written.is_err() {
                return;
            }
        }
    };
    let saved = region.snapshot(files.saved(), files.save_options(), write_last, || {})?;
    written?;
    Ok(Pause { ms: saved.pause.as_secs_f64() * 1e3, dirty_pages: saved.pages_in_pause })
}
