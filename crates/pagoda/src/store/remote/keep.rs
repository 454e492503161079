//! What a remote store takes in the background: its content is renewed, and what was freed is deleted there.
//!
//! One thread's work, without a lock that anybody who stores or fetches waits for. It never deletes what is somebody's.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pagoda_linux::thread::now_ns;
use redis::{Cmd, Value};

use super::super::TieredStore;
use super::link::{Link, RemoteError, SMALL_ANSWER, packed};
use super::{PAUSE_LEAST_NS, RemoteTier, SHARDS, deadline_ns};

/// Objects that are deleted by one pipeline of requests.
const DELETED_AT_ONCE: usize = 512;

/// So many pipelines follow each other in one turn. Before each it is looked whether it is time to renew: a slow server may take
/// seconds for one.
const DELETIONS: u32 = 64;

/// How often content is renewed within the time after which it would expire.
const RENEWALS: u64 = 4;

pub(super) struct Keeper {
    link: Link,
    expiry_ns: u64,
    renewed_ns: u64,
    /// Nothing is tried before.
    paused_until_ns: u64,
}

impl Keeper {
    pub fn new(link: Link, expiry: Duration) -> Self {
        let expiry_ns = expiry.as_nanos().min(1 << 62) as u64;
        Self { link, expiry_ns, renewed_ns: now_ns(), paused_until_ns: 0 }
    }

    fn ask(&mut self, requests: &[Cmd]) -> Result<Vec<Value>, RemoteError> {
        let bytes_max = requests.len() * 64 + SMALL_ANSWER;
        let outcome = self.link.ask(&packed(requests), requests.len(), bytes_max, deadline_ns());
        if outcome.is_err() {
            self.paused_until_ns = now_ns() + PAUSE_LEAST_NS;
        }
        outcome
    }
}

#[cfg(test)]
impl Keeper {
    pub fn inject(&mut self, faults: &super::super::faults::Faults) {
        self.link.faults = faults.clone();
    }
}

impl RemoteTier {
    /// Renews this owner's keys, if it is time.
    fn renew(&self) {
        let mut keeper = self.keeper.lock();
        let now = now_ns();
        if now < keeper.paused_until_ns || now - keeper.renewed_ns < keeper.expiry_ns / RENEWALS {
            return;
        }
        let renew =
            |shard| redis::cmd("PEXPIRE").arg(self.names.key_of_shard(shard)).arg(self.expiry_ms).clone();
        let requests: Vec<_> = (0..SHARDS).map(renew).collect();
        if self.note(keeper.ask(&requests)).is_ok() {
            keeper.renewed_ns = now;
        }
    }

    /// Renews them whether it is time or not.
    #[cfg(test)]
    pub(in crate::store) fn renew_now(&self) {
        let mut keeper = self.keeper.lock();
        keeper.renewed_ns = now_ns().saturating_sub(keeper.expiry_ns);
        drop(keeper);
        self.renew();
    }

    /// Deletes fields, each an object's number and its batch's. False if that is not certain, or has to wait.
    fn delete(&self, fields: &[(u32, u32)]) -> bool {
        let mut keeper = self.keeper.lock();
        if now_ns() < keeper.paused_until_ns {
            return false;
        }
        let requests: Vec<_> = fields.iter().map(|(id, batch)| self.delete_request(*id, *batch)).collect();
        self.note(keeper.ask(&requests)).is_ok()
    }

    /// Deletes everything, if the server can be reached: an owner that ends in order leaves nothing to expire.
    fn delete_all(&self) {
        let mut delete = redis::cmd("UNLINK");
        for shard in 0..SHARDS {
            delete.arg(self.names.key_of_shard(shard));
        }
        let _ = self.keeper.lock().ask(&[delete]);
    }
}

impl TieredStore {
    /// Renews what is at the remote store, and deletes there what was freed.
    pub(in crate::store) fn keep_remote(&self) {
        if let Some(remote) = &self.remote {
            let next = |_: &u32| {
                remote.renew();
                self.delete_gone()
            };
            (0..DELETIONS).take_while(next).for_each(drop);
        }
    }

    /// Deletes everything at the remote store.
    pub(in crate::store) fn leave_remote(&self) {
        self.remote.iter().for_each(RemoteTier::delete_all);
    }

    /// Deletes at the remote store some of what was freed. False if there is nothing, or that was not possible.
    pub(in crate::store) fn delete_gone(&self) -> bool {
        let Some(remote) = &self.remote else { return false };
        let mut fields = Vec::with_capacity(DELETED_AT_ONCE);
        let mut bytes = 0;
        let mut state = self.memory.lock();
        while let Some(id) = state.gone.oldest().filter(|_| fields.len() < DELETED_AT_ONCE) {
            state.gone.remove(&self.table, id);
            let word = self.table.at(id).word();
            bytes += word.len() as u64;
            fields.push((id, word.first()));
        }
        drop(state);
        if fields.is_empty() {
            return false;
        }
        let deleted = remote.delete(&fields);
        let mut state = self.memory.lock();
        for (id, _) in fields.iter().rev() {
            if deleted {
                state.numbers.give_back(&self.table, *id);
            } else {
                state.gone.push_oldest(&self.table, *id);
            }
        }
        drop(state);
        if deleted {
            remote.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        deleted
    }
}
