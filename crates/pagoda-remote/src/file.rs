//! A remote file as an image reads it: from memory, from the cache on disk, or from the server.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagoda_core::size::Bytes;
use pagoda_image::RemoteFile;
use twox_hash::XxHash3_64;

use crate::address::Address;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::pieces::{FAILURE_LASTS, PIECE_BYTES, Piece, Pieces};
use crate::store::{Store, Version, Worker};

/// Pieces of one request. The others of a long read are asked for at the same time.
const REQUEST_PIECES: usize = 8;

/// The most that is asked for ahead of reads in order: 2 MiB.
const AHEAD_PIECES: u64 = 16;

/// The most that is waited for at a time: 8 MiB, in as many requests as run at once.
const BATCH_BYTES: usize = 64 * PIECE_BYTES;

/// How remote files are read.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a read may wait for the server, with all that is tried meanwhile.
    pub patience: Duration,
    /// A directory for pieces that were read, and how much it may hold.
    pub cache: Option<(PathBuf, Bytes)>,
}

/// What the files of one image share.
struct Shared {
    patience: Duration,
    worker: Arc<Worker>,
    disk: Option<Disk>,
}

struct File {
    address: Address,
    name: PathBuf,
    version: Version,
    store: Arc<Store>,
    pieces: Pieces,
    /// By which its pieces are known in the cache, if the server tells one content from another.
    number: Option<u64>,
    shared: Arc<Shared>,
}

/// Opens a file on a server. Its length and version are those of now.
///
/// # Errors
/// If the address is none, or the file can't be had.
pub fn open(address: &Path, options: &Options) -> Result<Box<dyn RemoteFile>, Failure> {
    let text = address.to_str().ok_or_else(|| Failure::Address("the address is no text".to_owned()))?;
    let address = Address::parse(text)?;
    let disk = options.cache.as_ref().map(|(directory, limit)| Disk::open(directory, *limit)).transpose()?;
    let shared = Shared { patience: options.patience, worker: Worker::start()?, disk };
    File::open(address, &Arc::new(shared)).map(|file| Box::new(file) as Box<dyn RemoteFile>)
}

impl File {
    fn open(address: Address, shared: &Arc<Shared>) -> Result<Self, Failure> {
        let store = Arc::new(Store::new(&address, shared.patience, Arc::clone(&shared.worker))?);
        let (first, its) = (Arc::new(Piece::default()), Arc::clone(&store));
        let (sender, opened) = std::sync::mpsc::channel();
        let piece = Arc::clone(&first);
        shared.worker.handle.spawn(async move {
            let mut bytes = Vec::new();
            let version = its.fetch(0..PIECE_BYTES as u64, None, |part| bytes.extend_from_slice(part)).await;
            if version.is_ok() {
                piece.set(Ok(bytes.into()));
            }
            let _ = sender.send(version);
        });
        // The request has the same bound; this one is for a thread that stands still.
        let version = opened.recv_timeout(shared.patience + Duration::from_secs(1));
        let version = version.map_err(|_| Failure::Late(shared.patience.as_secs()))??;
        let name = address.shown();
        let words = version.words().map(|words| format!("{}\n{words}", name.display()));
        let number = words.map(|words| XxHash3_64::oneshot(words.as_bytes()));
        let file = Self {
            address,
            name,
            version,
            store,
            pieces: Pieces::new(FAILURE_LASTS),
            number,
            shared: Arc::clone(shared),
        };
        file.pieces.put(0, first);
        Ok(file)
    }

    /// The pieces of the file.
    fn count(&self) -> u64 {
        self.version.len_bytes.div_ceil(PIECE_BYTES as u64)
    }

    fn bytes_of(&self, number: u64) -> u64 {
        (self.version.len_bytes - number * PIECE_BYTES as u64).min(PIECE_BYTES as u64)
    }

    fn on_disk(&self) -> Option<(&Disk, u64)> {
        Some((self.shared.disk.as_ref()?, self.number?))
    }

    /// Has pieces come: from the disk at once, the others by requests that go on by themselves.
    fn bring(&self, missing: Vec<(u64, Arc<Piece>)>, ahead_of: u64) {
        let mut run: Vec<(u64, Arc<Piece>)> = Vec::new();
        for (number, piece) in missing {
            let found = self.on_disk().and_then(|(disk, file)| disk.load(file, number));
            if let Some(bytes) = found.filter(|bytes| bytes.len() as u64 == self.bytes_of(number)) {
                piece.set(Ok(bytes.into()));
                continue;
            }
            // An awaited piece comes by itself.
            let goes_on = run.last().is_some_and(|(last, _)| last + 1 == number && number != ahead_of);
            if !goes_on || run.len() == REQUEST_PIECES {
                self.request(std::mem::take(&mut run));
            }
            run.push((number, piece));
        }
        self.request(run);
    }

    fn request(&self, run: Vec<(u64, Arc<Piece>)>) {
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { return };
        let part = first * PIECE_BYTES as u64..last * PIECE_BYTES as u64 + self.bytes_of(*last);
        let (store, version, shared, number) =
            (Arc::clone(&self.store), self.version.clone(), Arc::clone(&self.shared), self.number);
        let len_bytes = self.version.len_bytes;
        self.shared.worker.handle.spawn(async move {
            let mut arrivals = Arrivals { run: &run, len_bytes, bytes: Vec::new(), done: 0 };
            let disk = shared.disk.as_ref().zip(number);
            let outcome = store.fetch(part, Some(&version), |bytes| arrivals.add(bytes, disk)).await;
            let failure = outcome.err().unwrap_or(Failure::Cut);
            // Those that are here stay.
            run.iter().for_each(|(_, piece)| piece.set(Err(failure.clone())));
        });
    }

    fn numbers(range: Range<u64>) -> Range<u64> {
        range.start / PIECE_BYTES as u64..range.end.div_ceil(PIECE_BYTES as u64)
    }

    fn read_batch(&self, into: &mut [u8], at: u64) -> Result<(), Failure> {
        let until = Instant::now() + self.shared.patience;
        let numbers = Self::numbers(at..at + into.len() as u64);
        let claim = self.pieces.claim(numbers.clone(), self.count(), AHEAD_PIECES);
        self.bring(claim.missing, numbers.end);
        let (mut rest, mut from) = (into, (at % PIECE_BYTES as u64) as usize);
        for piece in claim.pieces {
            let bytes = piece.wait(until, self.shared.patience)?;
            let own = bytes.get(from..).unwrap_or_default();
            let (part, more) = rest.split_at_mut(own.len().min(rest.len()));
            part.copy_from_slice(&own[..part.len()]);
            (rest, from) = (more, 0);
        }
        if rest.is_empty() { Ok(()) } else { Err(Failure::Wrong("it ends before its length")) }
    }
}

/// The pieces of one request, while their bytes come.
struct Arrivals<'a> {
    run: &'a [(u64, Arc<Piece>)],
    len_bytes: u64,
    bytes: Vec<u8>,
    done: usize,
}

impl Arrivals<'_> {
    fn add(&mut self, mut more: &[u8], disk: Option<(&Disk, u64)>) {
        while let (false, Some((number, piece))) = (more.is_empty(), self.run.get(self.done)) {
            let len = (self.len_bytes - number * PIECE_BYTES as u64).min(PIECE_BYTES as u64) as usize;
            let (part, rest) = more.split_at((len - self.bytes.len()).min(more.len()));
            self.bytes.extend_from_slice(part);
            more = rest;
            if self.bytes.len() == len {
                if let Some((disk, file)) = disk {
                    disk.keep(file, *number, &self.bytes);
                }
                piece.set(Ok(std::mem::take(&mut self.bytes).into()));
                self.done += 1;
            }
        }
    }
}

impl RemoteFile for File {
    fn name(&self) -> &Path {
        &self.name
    }

    fn len_bytes(&self) -> u64 {
        self.version.len_bytes
    }

    fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        if at.checked_add(into.len() as u64).is_none_or(|end| end > self.len_bytes()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (index, batch) in into.chunks_mut(BATCH_BYTES).enumerate() {
            self.read_batch(batch, at + (index * BATCH_BYTES) as u64)?;
        }
        Ok(())
    }

    fn announce(&self, range: Range<u64>) {
        let numbers = Self::numbers(range.start..range.end.min(self.len_bytes()));
        self.bring(self.pieces.announce(numbers), u64::MAX);
    }

    fn forget(&self, range: Range<u64>) {
        let numbers = Self::numbers(range.start..range.end.min(self.len_bytes()));
        self.pieces.forget(&numbers);
        if let Some((disk, file)) = self.on_disk() {
            disk.forget(file, numbers);
        }
    }

    fn open_beside(&self, name: &OsStr) -> io::Result<Box<dyn RemoteFile>> {
        Ok(Box::new(Self::open(self.address.beside(name)?, &self.shared)?))
    }

    fn open_suffixed(&self, suffix: &str) -> io::Result<Box<dyn RemoteFile>> {
        Ok(Box::new(Self::open(self.address.suffixed(suffix), &self.shared)?))
    }
}
