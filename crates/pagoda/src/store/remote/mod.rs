//! The remote tier: objects at a Redis or Valkey server, or a cluster of them, that several
//! machines share.
//!
//! A batch of objects is written as one transaction: fields of one of this owner's hashes, and that
//! hash's expiry with them. So there is never content there without an expiry, and a live owner
//! renews few keys however much it holds; one that is gone leaves nothing behind. The server is not
//! trusted: each object is sealed for its place ([`crate::crypto::sealing`]), and no caller sees
//! bytes that do not open. Every request ends by a deadline, and no place is given up here before
//! the server has confirmed the object. A write that the server may have done without confirming it
//! is deleted before the next batch. If the write happens later still, it is a field that is never
//! asked for, until its hash expires.
//!
//! ```text
//! pagoda:OWNER:SHARD ─► { object number, batch number: sealed bytes and tag, … }
//! SHARD = batch number % 16
//! ```
//!
//! A cluster has each of these hashes at one of its nodes, and a batch is of one hash. So each
//! statement here about the server holds for each node and its hashes (`routes`, `links`).

mod address;
mod error;
mod fitness;
mod keep;
mod link;
mod links;
mod routes;

use std::borrow::Cow;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use fitness::check_server;
use keep::{Keeper, all_done};
use link::{SMALL_ANSWER, pack_into};
use links::{Links, Outcome, Part};
use pagoda_core::size::Bytes;
use pagoda_linux::process::lock::{Held, Lock};
use pagoda_linux::process::thread::{ran_ns, sleep_us};
use redis::{RedisWrite as _, Value};
use routes::Routes;

use super::file::{BATCH, Batch};
use super::objects::NOBODY;
use super::scratch::PIECE_MAX;
use super::{GetError, RemoteConfig};
use crate::crypto::sealing::{Sealer, TAG, Version};
use crate::store::remote::routes::SHARDS;

pub use address::{AddressError, RemoteAddress};
pub use error::{RemoteError, RemoteOpenError};
pub use keep::forget;

/// How long one request may take, connecting included: a MiB over a slow line, and a server that
/// forks or rewrites a file.
const REQUEST_NS: u64 = 3_000_000_000;

/// How long a page that is wanted is asked for at most, over connections that break, and servers
/// that start anew.
const FETCH_NS: u64 = 10_000_000_000;

/// The pause between two tries of a fetch, in microseconds.
const RETRY_US: u32 = 20_000;

/// How long nothing is written after a failure: twice as long after each in a row, within these
/// bounds. A caller that needs room meanwhile gets an error at once.
const PAUSE_LEAST_NS: u64 = 500_000_000;
const PAUSE_MOST_NS: u64 = 8_000_000_000;

/// The bytes of a request for a batch of middling objects. One of many small ones takes more, once.
const REQUEST_BYTES: usize = BATCH + (64 << 10);

/// Connections for fetching, as many as there are threads that serve faults.
const READERS: usize = crate::state::pending::HANDLERS_MAX;

/// A field that may be there and has no owner.
#[derive(Clone, Copy)]
struct Stray {
    id: u32,
    batch: u32,
}

/// An object that is to be read with others.
pub(super) struct Wanted {
    pub id: u32,
    pub batch: u32,
    pub version: Version,
    pub len: usize,
}

/// State that only the one mover uses.
struct Writer {
    links: Links,
    /// The next batch's number.
    next: u32,
    /// Fields that are deleted before the next batch is written; so never more than the objects of
    /// one.
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
    sealer: Sealer,
    routes: Routes,
    limit: u64,
    expiry_ms: AtomicU64,
    /// How long it pauses after a failure at most.
    pause_most_ns: u64,
    /// How long a page is asked for at most.
    fetch_ns: u64,
    used: AtomicU64,
    failures: AtomicU64,
    writer: Lock<Writer>,
    readers: [Lock<Links>; READERS],
    keeper: Lock<Keeper>,
    /// Requests for content.
    #[cfg(test)]
    pub reads: AtomicU64,
}

/// The names of this owner's keys there.
struct Names {
    owner: u128,
}

impl Names {
    fn key(&self, batch: u32) -> String {
        self.key_of_shard(shard_of(batch))
    }
    fn key_of_shard(&self, shard: u32) -> String {
        format!("pagoda:{:032x}:{shard}", self.owner)
    }
    fn field(id: u32, batch: u32) -> [u8; 8] {
        (u64::from(id) << 32 | u64::from(batch)).to_be_bytes()
    }
}

/// Which of its owner's hashes a batch is of.
fn shard_of(batch: u32) -> u32 {
    batch % SHARDS
}

fn deadline_ns() -> u64 {
    ran_ns() + REQUEST_NS
}

impl RemoteTier {
    /// Asks the server whether it can be used, and of a cluster each node that will have something.
    pub fn open(config: RemoteConfig, sealer: Sealer) -> Result<Self, RemoteOpenError> {
        let least = Bytes::new(BATCH as u64);
        if config.limit < least {
            return Err(RemoteOpenError::Limit { limit: config.limit, least });
        }
        let links = || Links::new(config.address.clone());
        let socket = config.address.socket;
        // The server tells its kind in any database.
        let mut first = Links::new(RemoteAddress { database: 0, ..config.address.clone() });
        let is_cluster = check_server(&mut first, socket)?;
        drop(first);
        if is_cluster && config.address.database != 0 {
            return Err(RemoteOpenError::ClusterDatabase);
        }
        let random = pagoda_linux::process::child::random_u64;
        // Never 0, which stands for none.
        let names = Names { owner: u128::from(random()) << 64 | u128::from(random()) | 1 };
        let routes = Routes::new(socket, is_cluster);
        let mut writer = links();
        // Where the hashes will be, and that they can be asked for.
        let length =
            |shard| Part::counting(shard, redis::cmd("HLEN").arg(names.key_of_shard(shard)), i64::MAX);
        let lengths: Vec<_> = (0..SHARDS).map(length).collect();
        all_done(&writer.ask(&routes, &lengths, deadline_ns()))?;
        for node in routes.nodes().into_iter().filter(|node| *node != socket) {
            check_server(&mut writer, node)?;
        }
        let strays = Vec::with_capacity(BATCH / pagoda_core::space::extents::UNIT);
        Ok(Self {
            names,
            sealer,
            routes,
            limit: config.limit.get(),
            expiry_ms: AtomicU64::new(config.expiry.as_millis() as u64),
            pause_most_ns: PAUSE_MOST_NS,
            fetch_ns: FETCH_NS,
            used: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            writer: Lock::new(Writer {
                links: writer,
                next: 0,
                strays,
                pause: None,
                pause_ns: PAUSE_LEAST_NS,
                request: Vec::with_capacity(REQUEST_BYTES),
            }),
            readers: std::array::from_fn(|_| Lock::new(links())),
            keeper: Lock::new(Keeper::new(links(), config.expiry)),
            #[cfg(test)]
            reads: AtomicU64::new(0),
        })
    }

    fn expiry_ms(&self) -> u64 {
        self.expiry_ms.load(Ordering::Relaxed)
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
        self.writer.lock().pause.is_some_and(|(until, _)| ran_ns() < until)
    }

    /// Writes all of a batch, and returns its number. Each item has its version then, in place of a
    /// checksum, and the batch is enciphered. On an error nothing is stored, or will
    /// be deleted before anything else is written.
    pub fn write(&self, batch: &mut Batch) -> Result<u32, RemoteError> {
        if !self.has_room(batch) {
            return Err(RemoteError::Full);
        }
        let mut writer = self.writer.lock();
        if let Some((_, error)) = writer.pause.filter(|(until, _)| ran_ns() < *until) {
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
                writer.pause = Some((ran_ns() + pause_ns, error));
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
        let version = self.sealer.next_version();
        let room = BATCH + (16 + TAG) * batch.items.len();
        let mut store = redis::Cmd::with_capacity(2 + 2 * batch.items.len(), room);
        store.arg("HSET").arg(&key);
        for index in 0..batch.items.len() {
            let mut item = batch.items[index];
            let bytes = batch.bytes_of(&item);
            let tag = self.sealer.seal(item.id, version, bytes);
            item.checksum = version.to_bits();
            #[cfg(test)]
            writer.links.faults.sent(bytes);
            store.arg(&Names::field(item.id, number));
            let mut value = store.writer_for_next_arg();
            // Into memory: it can't fail.
            let _ = value.write_all(bytes).and_then(|()| value.write_all(&tag));
            drop(value);
            batch.items[index] = item;
        }
        let expire = redis::cmd("PEXPIRE").arg(&key).arg(self.expiry_ms()).clone();
        writer.request.clear();
        pack_into(&mut writer.request, &[redis::cmd("MULTI"), store, expire, redis::cmd("EXEC")]);
        let request = Cow::Borrowed(&*writer.request);
        let part = Part {
            shard: shard_of(number),
            request,
            answers: 4,
            bytes_max: 4 * SMALL_ANSWER,
            counts_to: None,
        };
        let answers = writer.links.ask_one(&self.routes, part, deadline_ns());
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
        let fields: Vec<_> = writer.strays.iter().map(|stray| (stray.id, stray.batch)).collect();
        let parts = self.deletions(&fields);
        all_done(&writer.links.ask(&self.routes, &parts, deadline_ns()))?;
        writer.strays.clear();
        Ok(())
    }

    /// The requests that delete these fields, each an object's number and its batch's: one for each
    /// shard.
    fn deletions(&self, fields: &[(u32, u32)]) -> Vec<Part<'static>> {
        let of_shard = |shard| {
            let mut delete = redis::cmd("HDEL");
            delete.arg(self.names.key_of_shard(shard));
            let mut here = fields.iter().filter(|(_, batch)| shard_of(*batch) == shard).peekable();
            here.peek()?;
            let mut count = 0;
            for (id, batch) in here {
                delete.arg(&Names::field(*id, *batch));
                count += 1;
            }
            Some(Part::counting(shard, &delete, count))
        };
        (0..SHARDS).filter_map(of_shard).collect()
    }

    /// An object of the last batch, which the one mover wrote, is not needed there.
    pub fn abandon(&self, id: u32, batch: u32, len: usize) {
        self.used.fetch_sub(len as u64, Ordering::Relaxed);
        self.writer.lock().strays.push(Stray { id, batch });
    }

    /// Reads an object's bytes if they are as written. Tries for 10 s.
    pub fn read(&self, id: u32, batch: u32, version: Version, into: &mut [u8]) -> Result<(), GetError> {
        let request = self.fetch_request(id, batch);
        let part = || Part {
            shard: shard_of(batch),
            request: Cow::Borrowed(&request),
            answers: 1,
            bytes_max: PIECE_MAX + TAG + SMALL_ANSWER,
            counts_to: None,
        };
        let end = ran_ns() + self.fetch_ns;
        let mut is_doubted = false;
        loop {
            #[cfg(test)]
            self.reads.fetch_add(1, Ordering::Relaxed);
            let outcome = match self.reader(end) {
                Some(mut links) => {
                    let outcome = self.note(read_once(links.ask_one(&self.routes, part(), end), into));
                    if let Ok(tag) = outcome {
                        if tag.is_some_and(|tag| self.sealer.open(id, version, into, tag)) {
                            return Ok(());
                        }
                        // The bytes there may be right, and have been damaged on the way: they are
                        // asked for once more, by another connection.
                        links.close();
                    }
                    outcome
                }
                None => Err(RemoteError::TimedOut),
            };
            match outcome {
                Ok(_) if is_doubted => return Err(GetError::Corrupt),
                Ok(_) => is_doubted = true,
                Err(source @ RemoteError::Gone) => return Err(GetError::Remote { source }),
                Err(source) if ran_ns() >= end => return Err(GetError::Remote { source }),
                Err(_) => sleep_us(RETRY_US),
            }
        }
    }

    fn fetch_request(&self, id: u32, batch: u32) -> Vec<u8> {
        let mut fetch = redis::cmd("HGET");
        fetch.arg(self.names.key(batch)).arg(&Names::field(id, batch)).get_packed_command()
    }

    /// Reads objects by one request to each node that has any, which is tried once. Returns the
    /// bytes of each that is undamaged.
    pub fn read_many(&self, wanted: &[Wanted]) -> Vec<Option<Vec<u8>>> {
        let part = |of: &Wanted| Part {
            shard: shard_of(of.batch),
            request: Cow::Owned(self.fetch_request(of.id, of.batch)),
            answers: 1,
            bytes_max: of.len + TAG + SMALL_ANSWER,
            counts_to: None,
        };
        let parts: Vec<_> = wanted.iter().map(part).collect();
        let end = deadline_ns();
        #[cfg(test)]
        self.reads.fetch_add(1, Ordering::Relaxed);
        let outcomes =
            self.reader(end).map(|mut links| links.ask(&self.routes, &parts, end)).unwrap_or_default();
        // A fault that needs one of them asks for it again.
        let _ = self.note(all_done(&outcomes));
        let mut outcomes = outcomes.into_iter();
        let opened = |of: &Wanted, mut bytes: Vec<u8>| {
            let tag = *bytes.last_chunk().filter(|_| bytes.len() == of.len + TAG)?;
            bytes.truncate(of.len);
            self.sealer.open(of.id, of.version, &mut bytes, tag).then_some(bytes)
        };
        wanted
            .iter()
            .map(|of| match outcomes.next()?.ok()?.pop() {
                Some(Value::BulkString(bytes)) => opened(of, bytes),
                _ => None,
            })
            .collect()
    }

    /// Connections that are not in use, waited for until `end`.
    fn reader(&self, end: u64) -> Option<Held<'_, Links>> {
        loop {
            if let Some(links) = self.readers.iter().find_map(Lock::try_lock) {
                return Some(links);
            }
            if ran_ns() >= end {
                return None;
            }
            sleep_us(50);
        }
    }
}

/// The result of one try: sealed bytes, and their tag. None if the length is not as stored.
fn read_once(outcome: Outcome, into: &mut [u8]) -> Result<Option<[u8; TAG]>, RemoteError> {
    match outcome?.first() {
        Some(Value::BulkString(value)) => Ok(value.split_last_chunk().and_then(|(bytes, tag)| {
            (bytes.len() == into.len()).then(|| {
                into.copy_from_slice(bytes);
                *tag
            })
        })),
        Some(Value::Nil) => Err(RemoteError::Gone),
        _ => Err(RemoteError::Refused),
    }
}

fn bytes_of(batch: &Batch) -> u64 {
    batch.items.iter().map(|item| item.len as u64).sum()
}

#[cfg(test)]
impl RemoteTier {
    /// Lets every connection fail by a plan, and pauses be short.
    pub fn inject(&mut self, faults: &crate::store::fault_injection::Faults) {
        self.writer.lock().links.inject(faults);
        self.readers.iter().for_each(|reader| reader.lock().inject(faults));
        self.keeper.lock().inject(faults);
        self.pause_most_ns = 2_000_000;
    }
    /// Deletes unused fields without waiting for the next batch.
    pub fn delete_strays_now(&self) -> Result<(), RemoteError> {
        self.delete_strays(&mut self.writer.lock())
    }
    /// The names of its hashes.
    pub fn keys(&self) -> Vec<String> {
        (0..SHARDS).map(|shard| self.names.key_of_shard(shard)).collect()
    }
    /// Fields that this owner has at the server, or at each node of a cluster.
    pub fn fields(&self) -> i64 {
        let length =
            |shard| Part::counting(shard, redis::cmd("HLEN").arg(self.names.key_of_shard(shard)), i64::MAX);
        let parts: Vec<_> = (0..SHARDS).map(length).collect();
        let outcomes = self.writer.lock().links.ask(&self.routes, &parts, deadline_ns());
        let count = |outcome: Outcome| match outcome.expect("it works").first() {
            Some(Value::Int(count)) => *count,
            other => panic!("{other:?}"),
        };
        outcomes.into_iter().map(count).sum()
    }
}

#[cfg(test)]
mod cluster_test;
#[cfg(test)]
mod planted_test;
#[cfg(test)]
mod tests;
