//! Packing memory from elsewhere into an image.

use std::ops::ControlFlow;
use std::path::Path;

use pagoda_core::page::OS_PAGE;

use super::{PackOptions, Writer, Written};
use crate::error::ImageError;
use crate::import::RawMemory;

/// Bytes that are read at once: a multiple of every block.
const READ_BYTES: u64 = 1 << 20;

/// How far work on an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of content that are done, holes included.
    pub done_bytes: u64,
    /// Of so many.
    pub of_bytes: u64,
}

impl Progress {
    /// So far.
    #[must_use]
    pub const fn new(done_bytes: u64, of_bytes: u64) -> Self {
        Self { done_bytes, of_bytes }
    }
}

/// Packs `memory` into an image that is to be `path`; one that is there is replaced when all is on
/// disk. Only data is read, and not holes. With a base, blocks that are the base's are left out.
/// Calls `progress` for about each MiB; it may end the work.
///
/// # Errors
/// If the memory can't be read or the image not be written, or [`ImageError::Cancelled`]; then
/// nothing has changed at `path`.
pub fn pack(
    memory: &dyn RawMemory,
    path: &Path,
    options: PackOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Written, ImageError> {
    let len_bytes = memory.len_bytes();
    let has_base = options.base.is_some();
    let mut writer = Writer::create(path, len_bytes, options)?;
    let block_bytes = writer.block_bytes();
    let mut content = vec![0; READ_BYTES as usize];
    for at in (0..len_bytes).step_by(READ_BYTES as usize) {
        if progress(Progress::new(at, len_bytes)).is_break() {
            return Err(ImageError::Cancelled);
        }
        let end = len_bytes.min(at + READ_BYTES);
        let first = at / block_bytes as u64;
        let blocks = (end - at).div_ceil(block_bytes as u64);
        let mut is_data = false;
        let mut from = at;
        while let Some(data) = memory.data_in(from..end)? {
            if !is_data {
                content.fill(0);
                is_data = true;
            }
            let own = (data.start - at) as usize..(data.end - at) as usize;
            memory.read_at(data.start, &mut content[own])?;
            writer.mark_received(data.start / OS_PAGE as u64, data.end.div_ceil(OS_PAGE as u64));
            from = data.end;
        }
        for (block, content) in (first..first + blocks).zip(content.chunks(block_bytes)) {
            if is_data {
                writer.put(block, content)?;
            } else if has_base {
                writer.put_zeroes(block);
            }
        }
    }
    // Nothing can be taken back from here on.
    let _ = progress(Progress::new(len_bytes, len_bytes));
    writer.finish()
}
