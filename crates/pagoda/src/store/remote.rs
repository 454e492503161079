//! The remote tier: objects at a Redis or Valkey server that several machines share.
//!
//! A batch of objects is written as one transaction: fields of one of this owner's hashes, and that hash's expiry with
//! them. So there is never content there without an expiry, and a live owner renews few keys however much it holds; one
//! that is gone leaves nothing behind. Bytes that come back are checked before anyone sees them. Every request ends by a
//! deadline, and nothing is given up here before the server has said that it has it. What it may have done without saying so
//! is deleted before the next batch; should it come to that later still, it is a field that nobody asks for, until its hash
//! expires.
//!
//! ```text
//! pagoda:OWNER:SHARD ─► { object number, batch number: bytes, … }     shard = batch number % 16
//! ```

mod address;
mod keep;
mod link;

use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::size::Bytes;
use pagoda_linux::lock::{Held, Lock};
use pagoda_linux::thread::{now_ns, sleep_us};
use redis::Value;

use super::file::{BATCH, Batch, checksum};
use super::objects::NOBODY;
use super::scratch::PIECE_MAX;
use super::{GetError, RemoteConfig};
pub use address::{AddressError, RemoteAddress};
use keep::Keeper;
pub use link::RemoteError;
use link::{Link, SMALL_ANSWER, pack_into, packed};

/// How long one request may take, connecting included: a MiB over a slow line, and a server that forks or rewrites a file.
const REQUEST_NS: u64 = 3_000_000_000;

/// How long a page that is wanted is asked for at most, over connections that break, and servers that start anew.
const FETCH_NS: u64 = 10_000_000_000;

/// The pause between two tries of a fetch, in microseconds.
const RETRY_US: u32 = 20_000;

/// How long nothing is written after a failure: twice as long after each in a row, within these bounds. Whoever needs room
/// meanwhile is told so at once.
const PAUSE_LEAST_NS: u64 = 500_000_000;
const PAUSE_MOST_NS: u64 = 8_000_000_000;

/// What a batch of middling objects takes as a request. One of many small ones takes more, once.
const REQUEST_BYTES: usize = BATCH + (64 << 10);

/// Connections for fetching, as many as there are threads that serve faults.
const READERS: usize = crate::engine::HANDLERS_MAX;

/// Hashes that one owner's content is spread over: each is deleted at one go when its owner is gone.
const SHARDS: u32 = 16;

/// Why a remote store can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteOpenError {
    /// It could not be reached, or did not answer.
    #[error("the remote store can't be used: {0}; check its address, password and that it is running")]
    Unusable(#[from] RemoteError),
    /// It throws content away when its memory is short.
    #[error(
        "the remote store evicts what is stored there when its memory is short; set its maxmemory-policy to noeviction"
    )]
    Evicts,
    /// It is a node of a cluster.
    #[error("the remote store is a node of a cluster, which is not supported; name a single server")]
    Cluster,
    /// Less room there than one batch takes.
    #[error("a remote store needs a limit of {least} at least, not {limit}; raise it")]
    Limit {
        /// What was asked for.
        limit: Bytes,
        /// What it needs.
        least: Bytes,
    },
}

/// A field that may be there and is nobody's.
#[derive(Clone, Copy)]
struct Stray {
    id: u32,
    batch: u32,
}

/// An object that is to be read with others.
pub(super) struct Wanted {
    pub id: u32,
    pub batch: u32,
    pub sum: u64,
    pub len: usize,
}

/// What only the one mover uses.
struct Writer {
    link: Link,
    /// The next batch's number.
    next: u32,
    /// What is deleted before the next batch is written; so never more than the objects of one.
    strays: Vec<Stray>,
    /// Nothing is written before this moment, for this reason.
    pause: Option<(u64, RemoteError)>,
    /// How long the next pause is.
    pause_ns: u64,
    /// One request at a time, made here.
    request: Vec<u8>,
}

pub(super) struct RemoteTier {
    names: Names,
    limit: u64,
    expiry_ms: u64,
    /// How long it pauses after a failure at most.
    pause_most_ns: u64,
    used: AtomicU64,
    failures: AtomicU64,
    writer: Lock<Writer>,
    readers: [Lock<Link>; READERS],
    keeper: Lock<Keeper>,
    /// Requests for content.
    #[cfg(test)]
    pub reads: AtomicU64,
}

/// What this owner's things are called there.
struct Names {
    owner: u128,
}

impl Names {
    fn key(&self, batch: u32) -> String {
        self.key_of_shard(batch % SHARDS)
    }
    fn key_of_shard(&self, shard: u32) -> String {
        format!("pagoda:{:032x}:{shard}", self.owner)
    }
    fn field(id: u32, batch: u32) -> [u8; 8] {
        (u64::from(id) << 32 | u64::from(batch)).to_be_bytes()
    }
    /// Says whose bytes they are, too: another owner's have another sum even if they are intact.
    fn checksum(&self, id: u32, batch: u32, bytes: &[u8]) -> u64 {
        checksum(u64::from(id) << 32 | u64::from(batch), bytes) ^ self.owner as u64
    }
}

fn deadline_ns() -> u64 {
    now_ns() + REQUEST_NS
}

impl RemoteTier {
    /// Asks the server whether it can be used.
    pub fn open(config: RemoteConfig) -> Result<Self, RemoteOpenError> {
        let least = Bytes::new(BATCH as u64);
        if config.limit < least {
            return Err(RemoteOpenError::Limit { limit: config.limit, least });
        }
        let link = || Link::new(config.address.clone());
        let mut writer = link();
        check_server(&mut writer)?;
        let random = pagoda_linux::process::random_u64;
        let strays = Vec::with_capacity(BATCH / pagoda_core::extents::UNIT);
        Ok(Self {
            names: Names { owner: u128::from(random()) << 64 | u128::from(random()) },
            limit: config.limit.get(),
            expiry_ms: config.expiry.as_millis() as u64,
            pause_most_ns: PAUSE_MOST_NS,
            used: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            writer: Lock::new(Writer {
                link: writer,
                next: 0,
                strays,
                pause: None,
                pause_ns: PAUSE_LEAST_NS,
                request: Vec::with_capacity(REQUEST_BYTES),
            }),
            readers: std::array::from_fn(|_| Lock::new(link())),
            keeper: Lock::new(Keeper::new(link(), config.expiry)),
            #[cfg(test)]
            reads: AtomicU64::new(0),
        })
    }

    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
    fn note<T>(&self, outcome: Result<T, RemoteError>) -> Result<T, RemoteError> {
        if outcome.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Whether a batch fits the limit.
    pub fn has_room(&self, batch: &Batch) -> bool {
        self.used_bytes() + bytes_of(batch) <= self.limit
    }

    /// Whether there is room for objects that are in memory, too: seven eighths are taken at most.
    pub fn has_room_for_copies(&self) -> bool {
        self.used_bytes() <= self.limit - self.limit / 8
    }

    /// Whether nothing is written for a while, because it has failed.
    pub fn is_pausing(&self) -> bool {
        self.writer.lock().pause.is_some_and(|(until, _)| now_ns() < until)
    }

    /// Writes all of a batch, and returns its number: each item has its checksum then. On an error nothing is stored, or will
    /// be deleted before anything else is written.
    pub fn write(&self, batch: &mut Batch) -> Result<u32, RemoteError> {
        if !self.has_room(batch) {
            return Err(RemoteError::Full);
        }
        let mut writer = self.writer.lock();
        if let Some((_, error)) = writer.pause.filter(|(until, _)| now_ns() < *until) {
            return Err(error);
        }
        let outcome = self.note(self.write_now(&mut writer, batch));
        match outcome {
            Ok(_) => {
                writer.pause = None;
                writer.pause_ns = PAUSE_LEAST_NS;
                self.used.fetch_add(bytes_of(batch), Ordering::Relaxed);
            }
            Err(error) => {
                let pause_ns = writer.pause_ns.min(self.pause_most_ns);
                writer.pause = Some((now_ns() + pause_ns, error));
                writer.pause_ns = (2 * pause_ns).max(PAUSE_LEAST_NS);
            }
        }
        outcome
    }

    fn write_now(&self, writer: &mut Writer, batch: &mut Batch) -> Result<u32, RemoteError> {
        self.delete_strays(writer)?;
        let number = writer.next;
        // All but the one that says that there is none.
        writer.next = (writer.next + 1) % NOBODY;
        let key = self.names.key(number);
        let mut store = redis::Cmd::with_capacity(2 + 2 * batch.items.len(), BATCH + 16 * batch.items.len());
        store.arg("HSET").arg(&key);
        for index in 0..batch.items.len() {
            let mut item = batch.items[index];
            let bytes = batch.bytes_of(&item);
            item.checksum = self.names.checksum(item.id, number, bytes);
            #[cfg(test)]
            writer.link.faults.sent(bytes);
            store.arg(&Names::field(item.id, number)).arg(&*bytes);
            batch.items[index] = item;
        }
        let expire = redis::cmd("PEXPIRE").arg(&key).arg(self.expiry_ms).clone();
        writer.request.clear();
        pack_into(&mut writer.request, &[redis::cmd("MULTI"), store, expire, redis::cmd("EXEC")]);
        let answers = writer.link.ask(&writer.request, 4, 4 * SMALL_ANSWER, deadline_ns());
        let stored = batch.items.len() as i64;
        match answers.as_ref().map(|answers| answers.last()) {
            Ok(Some(Value::Array(done))) if *done == [Value::Int(stored), Value::Int(1)] => Ok(number),
            other => {
                // Perhaps it is there all the same, or will be.
                writer.strays.extend(batch.items.iter().map(|item| Stray { id: item.id, batch: number }));
                Err(other.err().copied().unwrap_or(RemoteError::Refused))
            }
        }
    }

    fn delete_strays(&self, writer: &mut Writer) -> Result<(), RemoteError> {
        if writer.strays.is_empty() {
            return Ok(());
        }
        let delete = |stray: &Stray| self.delete_request(stray.id, stray.batch);
        let requests: Vec<_> = writer.strays.iter().map(delete).collect();
        let count = requests.len();
        writer.link.ask(&packed(&requests), count, count * 64 + SMALL_ANSWER, deadline_ns())?;
        writer.strays.clear();
        Ok(())
    }

    fn delete_request(&self, id: u32, batch: u32) -> redis::Cmd {
        redis::cmd("HDEL").arg(self.names.key(batch)).arg(&Names::field(id, batch)).clone()
    }

    /// An object of the last batch, which the one mover wrote, is not needed there.
    pub fn abandon(&self, id: u32, batch: u32, len: usize) {
        self.used.fetch_sub(len as u64, Ordering::Relaxed);
        self.writer.lock().strays.push(Stray { id, batch });
    }

    /// Reads an object's bytes if they are what was written. Tries for 10 s.
    pub fn read(&self, id: u32, batch: u32, sum: u64, into: &mut [u8]) -> Result<(), GetError> {
        let mut fetch = redis::cmd("HGET");
        let request = packed(&[fetch.arg(self.names.key(batch)).arg(&Names::field(id, batch)).clone()]);
        let end = now_ns() + FETCH_NS;
        let mut is_doubted = false;
        loop {
            #[cfg(test)]
            self.reads.fetch_add(1, Ordering::Relaxed);
            let outcome = match self.reader(end) {
                Some(mut link) => {
                    let outcome = self.note(read_once(&mut link, &request, into, end));
                    if let Ok(is_as_long) = outcome {
                        if is_as_long && self.names.checksum(id, batch, into) == sum {
                            return Ok(());
                        }
                        // What is there may be right, and have come wrong: it is asked for once more, by another connection.
                        link.close();
                    }
                    outcome
                }
                None => Err(RemoteError::TimedOut),
            };
            match outcome {
                Ok(_) if is_doubted => return Err(GetError::Corrupt),
                Ok(_) => is_doubted = true,
                Err(source @ RemoteError::Gone) => return Err(GetError::Remote { source }),
                Err(source) if now_ns() >= end => return Err(GetError::Remote { source }),
                Err(_) => sleep_us(RETRY_US),
            }
        }
    }

    /// Reads objects by one request, which is tried once: of each its bytes, if they are what was written.
    pub fn read_many(&self, wanted: &[Wanted]) -> Vec<Option<Vec<u8>>> {
        let requests: Vec<_> = wanted
            .iter()
            .map(|of| {
                redis::cmd("HGET").arg(self.names.key(of.batch)).arg(&Names::field(of.id, of.batch)).clone()
            })
            .collect();
        let end = deadline_ns();
        let bytes_most = wanted.iter().map(|of| of.len + 64).sum::<usize>() + SMALL_ANSWER;
        #[cfg(test)]
        self.reads.fetch_add(1, Ordering::Relaxed);
        let answers = self.reader(end).and_then(|mut link| {
            let answers = link.ask(&packed(&requests), wanted.len(), bytes_most, end);
            // Who wants one of them in earnest asks for it.
            self.note(answers).ok()
        });
        let mut answers = answers.unwrap_or_default().into_iter();
        let is_right = |of: &Wanted, bytes: &[u8]| {
            bytes.len() == of.len && self.names.checksum(of.id, of.batch, bytes) == of.sum
        };
        wanted
            .iter()
            .map(|of| match answers.next() {
                Some(Value::BulkString(bytes)) if is_right(of, &bytes) => Some(bytes),
                _ => None,
            })
            .collect()
    }

    /// A connection that nobody uses, waited for until `end`.
    fn reader(&self, end: u64) -> Option<Held<'_, Link>> {
        loop {
            if let Some(link) = self.readers.iter().find_map(Lock::try_lock) {
                return Some(link);
            }
            if now_ns() >= end {
                return None;
            }
            sleep_us(50);
        }
    }
}

/// One try. False if it has another length than it had.
fn read_once(link: &mut Link, request: &[u8], into: &mut [u8], end: u64) -> Result<bool, RemoteError> {
    let answers = link.ask(request, 1, PIECE_MAX + SMALL_ANSWER, deadline_ns().min(end))?;
    match answers.first() {
        Some(Value::BulkString(bytes)) if bytes.len() == into.len() => {
            into.copy_from_slice(bytes);
            Ok(true)
        }
        Some(Value::BulkString(_)) => Ok(false),
        Some(Value::Nil) => Err(RemoteError::Gone),
        _ => Err(RemoteError::Refused),
    }
}

fn bytes_of(batch: &Batch) -> u64 {
    batch.items.iter().map(|item| item.len as u64).sum()
}

/// Whether it keeps what it is given. Its policy may still be changed under way; what is missing then is an error.
fn check_server(link: &mut Link) -> Result<(), RemoteOpenError> {
    let answers = link.ask(&packed(&[redis::cmd("INFO")]), 1, 256 << 10, deadline_ns())?;
    let text = match answers.first() {
        Some(Value::BulkString(text)) => String::from_utf8_lossy(text),
        _ => return Err(RemoteError::Refused.into()),
    };
    let says = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
    if says("cluster_enabled:") == "1" {
        return Err(RemoteOpenError::Cluster);
    }
    if !matches!(says("maxmemory:"), "" | "0") && says("maxmemory_policy:") != "noeviction" {
        return Err(RemoteOpenError::Evicts);
    }
    Ok(())
}

#[cfg(test)]
impl RemoteTier {
    /// Lets every connection fail by a plan, and pauses be short.
    pub fn inject(&mut self, faults: &super::faults::Faults) {
        let mut writer = self.writer.lock();
        writer.link.faults = faults.clone();
        drop(writer);
        self.readers.iter().for_each(|reader| reader.lock().faults = faults.clone());
        self.keeper.lock().inject(faults);
        self.pause_most_ns = 2_000_000;
    }
    /// Deletes what is nobody's without waiting for the next batch.
    pub fn delete_strays_now(&self) -> Result<(), RemoteError> {
        self.delete_strays(&mut self.writer.lock())
    }
    /// Fields that this owner has at the server.
    pub fn fields(&self) -> i64 {
        let lengths: Vec<_> =
            (0..SHARDS).map(|shard| redis::cmd("HLEN").arg(self.names.key_of_shard(shard)).clone()).collect();
        let answers = self.writer.lock().link.ask(&packed(&lengths), lengths.len(), 1 << 20, deadline_ns());
        let count = |value| if let Value::Int(count) = value { count } else { -1 };
        answers.expect("it works").into_iter().map(count).sum()
    }
}

#[cfg(test)]
mod tests;
