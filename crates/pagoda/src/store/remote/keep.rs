//! The background work of a remote store: its content is renewed, and freed objects are deleted
//! there.
//!
//! It is one thread's work, without a lock that a put or a fetch waits for. It never deletes an
//! object in use.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pagoda_linux::process::thread::{now_ns, ran_ns};

use super::super::TieredStore;
use super::error::RemoteError;
use super::fitness::check_server;
use super::links::{Links, Outcome, Part};
use super::routes::{Routes, SHARDS};
use super::{Names, PAUSE_LEAST_NS, RemoteAddress, RemoteOpenError, RemoteTier, shard_of};

/// Objects that are deleted by one pipeline of requests.
const DELETED_AT_ONCE: usize = 512;

/// So many pipelines follow each other in one turn. Before each it is looked whether it is time to
/// renew: a slow server may take seconds for one.
const DELETIONS: u32 = 64;

/// How often content is renewed within the time after which it would expire.
const RENEWALS: u64 = 4;

/// How long one turn of deletions waits for servers that do not answer: each for as long as a
/// request may take, so that one that hangs leaves time for the others.
fn deletion_end_ns(links: &Links) -> u64 {
    ran_ns() + 2 * links.request_ns
}

pub(super) struct Keeper {
    links: Links,
    expiry_ns: u64,
    /// The time of each shard's renewal: shards at one node must not wait for those at another.
    renewed_ns: [u64; SHARDS as usize],
    /// Before these nothing is renewed, or deleted: a node that can't be reached always has
    /// something to be renewed, and keeps nothing from being deleted elsewhere.
    renews_from_ns: u64,
    deletes_from_ns: u64,
}

impl Keeper {
    pub fn new(links: Links, expiry: Duration) -> Self {
        let expiry_ns = expiry.as_nanos().min(1 << 62) as u64;
        Self {
            links,
            expiry_ns,
            renewed_ns: [now_ns(); SHARDS as usize],
            renews_from_ns: 0,
            deletes_from_ns: 0,
        }
    }
}

/// When the same may be tried again, after these.
fn pause(outcomes: &[Outcome]) -> u64 {
    if all_done(outcomes).is_ok() { 0 } else { ran_ns() + PAUSE_LEAST_NS }
}

/// The first of their errors.
pub(super) fn all_done(outcomes: &[Outcome]) -> Result<(), RemoteError> {
    outcomes.iter().find_map(|outcome| outcome.as_ref().err()).map_or(Ok(()), |error| Err(*error))
}

#[cfg(test)]
impl Keeper {
    pub fn inject(&mut self, faults: &crate::store::fault_injection::Faults) {
        self.links.inject(faults);
    }
}

impl RemoteTier {
    /// Renews this owner's keys, if it is time.
    fn renew(&self) {
        let mut keeper = self.keeper.lock();
        let now = now_ns();
        if ran_ns() < keeper.renews_from_ns {
            return;
        }
        let period_ns = keeper.expiry_ns / RENEWALS;
        let is_due = |shard: &u32| now - keeper.renewed_ns[*shard as usize] >= period_ns;
        let due: Vec<u32> = (0..SHARDS).filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let renew =
            |shard| redis::cmd("PEXPIRE").arg(self.names.key_of_shard(shard)).arg(self.expiry_ms()).clone();
        let parts: Vec<_> = due.iter().map(|shard| Part::counting(*shard, &renew(*shard), 1)).collect();
        // As long as it takes, and at most until the objects renewed now have to be renewed again.
        let end_ns = ran_ns().saturating_add(period_ns.max(keeper.links.request_ns));
        let outcomes = keeper.links.ask(&self.routes, &parts, end_ns);
        keeper.renews_from_ns = pause(&outcomes);
        for (shard, _) in due.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            keeper.renewed_ns[*shard as usize] = now;
        }
        let _ = self.note(all_done(&outcomes));
    }

    /// From now on a request may take so long, and a page is asked for four times as long.
    #[cfg(test)]
    pub fn answered_within(&mut self, request: Duration) {
        let request_ns = request.as_nanos() as u64;
        self.writer.lock().links.request_ns = request_ns;
        self.readers.iter().for_each(|reader| reader.lock().request_ns = request_ns);
        self.keeper.lock().links.request_ns = request_ns;
        self.fetch_ns = 4 * request_ns;
    }

    /// Renews them whether it is time or not.
    #[cfg(test)]
    pub(in crate::store) fn renew_now(&self) {
        let mut keeper = self.keeper.lock();
        keeper.renewed_ns = [now_ns().saturating_sub(keeper.expiry_ns); SHARDS as usize];
        drop(keeper);
        self.renew();
    }

    /// Deletes fields, each an object's number and its batch's. Says of each shard whether that is
    /// certain.
    fn delete(&self, fields: &[(u32, u32)]) -> [bool; SHARDS as usize] {
        let mut deleted = [false; SHARDS as usize];
        let mut keeper = self.keeper.lock();
        if ran_ns() < keeper.deletes_from_ns {
            return deleted;
        }
        let parts = self.deletions(fields);
        let end_ns = deletion_end_ns(&keeper.links);
        let outcomes = keeper.links.ask(&self.routes, &parts, end_ns);
        keeper.deletes_from_ns = pause(&outcomes);
        for (part, outcome) in parts.iter().zip(&outcomes) {
            deleted[part.shard as usize] = outcome.is_ok();
        }
        let _ = self.note(all_done(&outcomes));
        deleted
    }

    /// Deletes everything, if the servers can be reached: an owner that ends in order leaves
    /// nothing to expire.
    fn delete_all(&self) {
        let links = &mut self.keeper.lock().links;
        links.ask(&self.routes, &deletions_of_all(&self.names), deletion_end_ns(links));
    }

    /// Content expires so long after it was renewed, from the next write and renewal on.
    fn lease_for(&self, expiry: Duration) {
        self.expiry_ms.store(expiry.as_millis() as u64, Ordering::Relaxed);
        self.keeper.lock().expiry_ns = expiry.as_nanos().min(1 << 62) as u64;
    }
}

fn deletions_of_all(names: &Names) -> Vec<Part<'static>> {
    let delete = |shard| Part::counting(shard, redis::cmd("UNLINK").arg(names.key_of_shard(shard)), 1);
    (0..SHARDS).map(delete).collect()
}

/// Deletes all that an engine that has ended had there, by its
/// [name](TieredStore::remote_name). Blocks for some seconds where servers don't answer.
///
/// # Errors
/// A server could not be reached, or refused it: that part expires by itself.
pub fn forget(address: &RemoteAddress, name: [u8; 16]) -> Result<(), RemoteOpenError> {
    let mut links = Links::new(RemoteAddress { database: 0, ..address.clone() });
    let is_cluster = check_server(&mut links, address.socket)?;
    let (mut links, routes) = (Links::new(address.clone()), Routes::new(address.socket, is_cluster));
    let parts = deletions_of_all(&Names { owner: u128::from_be_bytes(name) });
    let end_ns = deletion_end_ns(&links);
    Ok(all_done(&links.ask(&routes, &parts, end_ns))?)
}

impl TieredStore {
    /// Renews the content at the remote store, and deletes freed objects there.
    pub(in crate::store) fn keep_remote(&self) {
        if let Some(remote) = &self.remote {
            let next = |_: &u32| {
                remote.renew();
                self.delete_gone()
            };
            (0..DELETIONS).take_while(next).for_each(drop);
        }
    }

    /// The name of this engine's content at the remote store, if it has one.
    #[must_use]
    pub fn remote_name(&self) -> Option<[u8; 16]> {
        self.remote.as_ref().map(|remote| remote.names.owner.to_be_bytes())
    }

    /// Has the remote store keep content that is not renewed for so long.
    pub fn lease_for(&self, expiry: Duration) {
        self.remote.iter().for_each(|remote| remote.lease_for(expiry));
    }

    /// Deletes everything at the remote store.
    pub(in crate::store) fn leave_remote(&self) {
        self.remote.iter().for_each(RemoteTier::delete_all);
    }

    /// Deletes some of the freed objects at the remote store. False if there are none, or none
    /// could be deleted.
    pub(in crate::store) fn delete_gone(&self) -> bool {
        let Some(remote) = &self.remote else { return false };
        let mut fields = Vec::with_capacity(DELETED_AT_ONCE);
        let mut state = self.memory.lock();
        while let Some(id) = state.gone.oldest().filter(|_| fields.len() < DELETED_AT_ONCE) {
            state.gone.remove(&self.table, id);
            fields.push((id, self.table.at(id).word().first()));
        }
        drop(state);
        if fields.is_empty() {
            return false;
        }
        let deleted = remote.delete(&fields);
        let mut bytes = 0;
        let mut state = self.memory.lock();
        for (id, batch) in fields {
            if deleted[shard_of(batch) as usize] {
                bytes += self.table.at(id).word().len() as u64;
                state.numbers.give_back(&self.table, id);
            } else {
                // Behind the others: an object at an unreachable node keeps none from being deleted
                // elsewhere.
                state.gone.push_youngest(&self.table, id);
            }
        }
        drop(state);
        remote.used.fetch_sub(bytes, Ordering::Relaxed);
        deleted.contains(&true)
    }
}
