//! The store of content without a frame: compressed memory first, then an unlinked file, then a
//! server that several machines share.
//!
//! A page is put, and a handle returned. The store moves objects between its tiers on its own, and
//! a handle stays valid through that. All-zero pages are not stored, same-filled ones are encoded
//! in the handle itself. A store never decides what to evict or when to spill, never touches
//! managed memory except the page it is handed, and never gives back bytes that it can't vouch for.
//!
//! ```text
//! put ─► handle (same-filled)
//!     └► objects ─► memory: blocks of a byte store
//!                     │ spill, oldest first
//!                     ├► file: units of a direct file
//!                     │    │ cascade, oldest first
//!                     └────┴► remote; at once if there is no file
//! ```
//!
//! Locks, in order: `spiller` (one mover at a time) → `memory` (pool, ages, object numbers, every
//! change of an object's place) or `extents`; never both of the latter at once. The lock of the
//! loans comes before `extents`, and never with `memory`. A connection of the remote store has a
//! lock each. A holder of the writer's takes none of these, and a holder of a reader's takes no
//! other lock. The queues of `release` have a lock each, with which no other is taken.

mod block_digests;
mod cascade;
mod content_digests;
mod file;
mod handle;
#[cfg(feature = "image")]
mod image_source;
#[cfg_attr(not(feature = "image"), path = "images_none.rs")]
mod images;
mod lease;
mod maintenance;
mod memory;
mod objects;
mod packed;
mod promote;
mod readahead;
mod recompress;
mod refault;
mod release;
#[cfg_attr(not(feature = "redis"), path = "remote_none.rs")]
mod remote;
mod rewrite;
mod scratch;
mod slab_table;
mod spill;
mod tiered;

#[cfg(test)]
pub(crate) use tests::page_of;

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;
use pagoda_linux::io::direct_file::{DirectFileError, FileError};

pub use handle::Handle;
#[cfg(feature = "image")]
pub(crate) use handle::{IMAGE_PAGES_MOST, IMAGES_MOST};
#[cfg(feature = "image")]
pub(crate) use image_source::PlainFile;
#[cfg(feature = "image")]
pub(crate) use images::{OpenImage, OpenImageError};
pub(crate) use lease::{LENT_KEYS, Loan};
pub(crate) use readahead::NEIGHBOURS_MOST;
pub(crate) use release::{Closer, Freed, ReleaseHelp};
pub use remote::{AddressError, RemoteAddress, RemoteError, RemoteOpenError, forget};
pub use scratch::Scratch;
pub use tiered::TieredStore;

/// The outcome of storing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is all zero, and nothing is stored.
    Zero,
    /// It is in the store.
    Stored(Handle),
}

/// Why a page could not be put, or nothing spilled. Nothing is lost: stored pages still are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// Memory, file and remote store are at their limits, or the file system is full.
    #[error(
        "the store is full: memory is at its limit, and there is no file or remote store, or it or its disk is full"
    )]
    Full,
    /// The file could not be written.
    #[error("the store could not spill: {source}")]
    Io {
        /// How it failed.
        source: FileError,
    },
    /// The remote store did not take it.
    #[error("the store could not spill: {source}")]
    Remote {
        /// How it failed.
        source: RemoteError,
    },
}

/// Why a page could not be fetched. There is no other copy: a caller that needs it must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// The fetched bytes are not those of the page that was put, or nothing is stored by this
    /// handle.
    #[error("a stored page is damaged")]
    Corrupt,
    /// The file could not be read.
    #[error("a stored page could not be read: {source}")]
    Io {
        /// How it failed.
        source: FileError,
    },
    /// The remote store did not give it within 10 s.
    #[error("a stored page could not be fetched: {source}")]
    Remote {
        /// How it failed.
        source: RemoteError,
    },
}

impl GetError {
    /// The kernel's error number; 0 where there was none.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::Corrupt => 0,
            Self::Io { source } => source.raw_errno(),
            Self::Remote { source } => source.raw_errno(),
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Less memory than one segment takes.
    #[error("a store needs {least} of memory at least, not {limit}; give it more memory")]
    MemoryLimit {
        /// The limit that was asked for.
        limit: Bytes,
        /// The least limit.
        least: Bytes,
    },
    /// Less room in the file than one batch takes.
    #[error("a spill file needs a limit of {least} at least, not {limit}; raise it, or do without a file")]
    FileLimit {
        /// The limit that was asked for.
        limit: Bytes,
        /// The least limit.
        least: Bytes,
    },
    /// The address space could not be reserved.
    #[error("can't reserve {bytes} of address space for the compressed store: {source}; raise `ulimit -v`")]
    Reserve {
        /// How much.
        bytes: Bytes,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The kernel gave no random numbers, which a store needs for its secret keys.
    #[error("can't draw a store's secret keys: {source}; let the filter of system calls pass getrandom(2)")]
    Random {
        /// Its words.
        source: std::io::Error,
    },
    /// The spill file could not be created.
    #[error(transparent)]
    File(#[from] DirectFileError),
    /// The remote store can't be used.
    #[error(transparent)]
    Remote(#[from] RemoteOpenError),
}

/// A place for pages. All calls may come from many threads at once, each with a [`Scratch`] of its
/// own.
///
/// The caller owes that a handle is freed once, and neither fetched nor freed by others from then
/// on.
pub trait Store: Send + Sync {
    /// Stores a page of [`TieredStore::page_bytes`]. May block for the disk when memory is at its
    /// limit, and for the remote store, a few seconds at most.
    ///
    /// # Errors
    /// See [`PutError`]; the page is not stored then.
    ///
    /// # Panics
    /// If the page has another length.
    fn put(&self, page: &[u8], scratch: &mut Scratch) -> Result<Put, PutError> {
        self.put_present(page, Granules::range(0, (page.len() / OS_PAGE) as u32), scratch)
    }

    /// The same of a page of which only some OS pages are `present`. The others are zero, and are
    /// not read.
    ///
    /// # Errors
    /// See [`PutError`]; the page is not stored then.
    ///
    /// # Panics
    /// If the page has another length.
    fn put_present(&self, page: &[u8], present: Granules, scratch: &mut Scratch) -> Result<Put, PutError>;

    /// Fetches `into.len()` bytes of a page from `offset` on; the handle stays valid. Allocates
    /// nothing, waits for no lock; blocks for the disk if the page is there. Only one that is at
    /// the remote store allocates its reply, and waits for a connection and the server, 10 s at
    /// most.
    ///
    /// # Errors
    /// See [`GetError`]; `into` may hold anything then.
    ///
    /// # Panics
    /// If that reaches beyond the page's end.
    fn get(
        &self,
        handle: Handle,
        offset: usize,
        into: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), GetError>;

    /// Whether a page has these bytes from `offset` on: of a whole page by its digest, of a part by
    /// comparison. Of a page on the disk nothing is read: false also of a part of one that was
    /// never in memory since.
    ///
    /// # Errors
    /// See [`GetError`].
    ///
    /// # Panics
    /// If that reaches beyond the page's end.
    fn holds(
        &self,
        handle: Handle,
        offset: usize,
        content: &[u8],
        scratch: &mut Scratch,
    ) -> Result<bool, GetError>;

    /// Stores a page anew that differs from a stored one in the runs `changed`, which are those of
    /// `content`; of the rest of `content` nothing is read. The old handle stays valid. None if
    /// that is not possible (it is on the disk, is dense, or does not compress, or there is no
    /// room): then the whole page has to be put.
    ///
    /// # Errors
    /// See [`GetError`].
    ///
    /// # Panics
    /// If `content` has another length than a page, or a run reaches beyond its end.
    fn put_changed(
        &self,
        handle: Handle,
        changed: &[Range<usize>],
        content: &[u8],
        scratch: &mut Scratch,
    ) -> Result<Option<Handle>, GetError>;

    /// Gives the room of a page back.
    fn free(&self, handle: Handle);
}

/// The configuration of a [`TieredStore`].
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The base page; a 2 MiB one is put as 32 pages of 64 KiB.
    pub base: BasePage,
    /// The most that compressed pages and their block table may take in memory.
    pub memory_limit: Bytes,
    /// The file tier, if there shall be one.
    pub file: Option<FileConfig>,
    /// The remote tier, if there shall be one.
    pub remote: Option<RemoteConfig>,
}

/// The file tier of a store.
#[derive(Clone, Debug)]
pub struct FileConfig {
    /// A directory on a disk.
    pub directory: PathBuf,
    /// The most that the file may take.
    pub limit: Bytes,
    /// Several requests may be in flight at once, by io_uring, where the kernel and no filter
    /// forbid it.
    pub io_uring: bool,
}

/// The remote tier of a store: a Redis or Valkey server, or a cluster.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Where it is; of a cluster, any node.
    pub address: RemoteAddress,
    /// The most that this store may hold there, in bytes of its objects; the server adds some 100
    /// bytes to each.
    pub limit: Bytes,
    /// The server forgets this store's content after so long without renewal. A live store renews
    /// it four times as often.
    pub expiry: Duration,
}

/// The current content of a store. Each number is right, two of them may be a moment apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Uncompressed bytes of all objects, without their OS pages of zeroes.
    pub raw_bytes: Bytes,
    /// Bytes of blocks in use, their inner waste included.
    pub memory_used_bytes: Bytes,
    /// Bytes of the objects in those blocks, without the waste. One that is being moved is left
    /// out.
    pub memory_packed_bytes: Bytes,
    /// Of them, bytes of objects that were tried to be made smaller because they are cold.
    pub memory_dense_bytes: Bytes,
    /// Bytes of segments that are committed and hold nothing, without those that are kept ready for
    /// the next puts.
    pub memory_spare_bytes: Bytes,
    /// Bytes that stand behind the store: segments, tables and the spill buffer.
    pub memory_committed_bytes: Bytes,
    /// Bytes of the file in use.
    pub file_bytes: Bytes,
    /// Requests to the file that one thread can have in flight at once: 1 without io_uring, 0
    /// without a file.
    pub file_requests_at_once: u64,
    /// Bytes of objects at the remote store, those included that are still to be deleted there.
    pub remote_bytes: Bytes,
    /// Failed requests to the remote store.
    pub remote_failures: u64,
    /// Objects: stored pages that are not same-filled.
    pub objects: u64,
}

impl StoreUsage {
    /// Whether a quarter of its segments and more holds nothing, so that [`TieredStore::trim`]
    /// gains.
    #[must_use]
    pub fn memory_is_sparse(&self) -> bool {
        self.memory_spare_bytes.get() > self.memory_used_bytes.get() / 3
    }

    /// The bytes of blocks in memory beyond the objects in them, in percent of these; 0 if there
    /// are none.
    #[must_use]
    pub fn waste_percent(&self) -> f64 {
        let [used, packed] =
            [self.memory_used_bytes, self.memory_packed_bytes].map(|bytes| bytes.get() as f64);
        if packed == 0.0 { 0.0 } else { (used - packed) / packed * 100.0 }
    }
}

#[cfg(test)]
mod cascade_test;
#[cfg(test)]
mod fault_injection;
#[cfg(test)]
mod fault_injection_test;
#[cfg(test)]
mod lease_test;
#[cfg(test)]
mod present_test;
#[cfg(test)]
mod secrets_test;
#[cfg(test)]
mod spill_test;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk_test;
