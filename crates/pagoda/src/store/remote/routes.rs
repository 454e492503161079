//! The nodes of an owner's hashes: the one server, or each at a node of a cluster.
//!
//! Nothing is asked for ahead. Each shard is assumed at the named node, until an answer tells its
//! node. When a node can't be reached its shards are asked for at another one, which knows the new
//! node. Answers are not trusted: they are followed a few times and to few nodes, only where the
//! named server is one of a cluster, and never to an address that a node can't rightly have. Only
//! `links` uses this; no lock is taken within its own.

use std::net::{IpAddr, SocketAddr};

use pagoda_linux::process::lock::Lock;
use redis::Value;

use super::error::RemoteError;

/// Hashes that one owner's content is spread over: each is deleted at one go when its owner is
/// gone. In a cluster each is at one node.
pub(crate) const SHARDS: u32 = 16;

/// Nodes that are known at once: one for each shard, and the one that was named.
pub(super) const NODES_MOST: usize = SHARDS as usize + 1;

/// The slots of a cluster.
const SLOTS: u16 = 16384;

/// The next step after an answer that is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The shard is there from now on.
    Moved(SocketAddr),
    /// The shard moves there, and this request goes there.
    Ask(SocketAddr),
    /// A moment later it may be done.
    Again,
    /// It won't be done.
    Not(RemoteError),
}

pub(super) struct Routes {
    named: SocketAddr,
    is_cluster: bool,
    state: Lock<State>,
}

struct State {
    /// Where each shard was last.
    at: [SocketAddr; SHARDS as usize],
    /// The named one first.
    known: Vec<SocketAddr>,
}

impl Routes {
    pub fn new(named: SocketAddr, is_cluster: bool) -> Self {
        let mut known = Vec::with_capacity(NODES_MOST);
        known.push(named);
        Self { named, is_cluster, state: Lock::new(State { at: [named; SHARDS as usize], known }) }
    }

    /// Which node a shard is asked for at.
    pub fn node_of(&self, shard: u32) -> SocketAddr {
        self.state.lock().at[shard as usize]
    }

    /// Those that have shards, each once.
    pub fn nodes(&self) -> Vec<SocketAddr> {
        let mut nodes = self.state.lock().at.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// A shard is there.
    pub fn moved(&self, shard: u32, to: SocketAddr) {
        let mut state = self.state.lock();
        state.at[shard as usize] = to;
        if state.known.contains(&to) {
            return;
        }
        if state.known.len() == NODES_MOST {
            // The other shards are at one fewer than there is room for beside the named one.
            let at = state.at;
            let unused = |node: &SocketAddr| *node != self.named && !at.contains(node);
            let Some(index) = state.known.iter().position(unused) else { return };
            state.known.remove(index);
        }
        state.known.push(to);
    }

    /// A node can't be reached: another one is asked where its shards are.
    pub fn lost(&self, node: SocketAddr) {
        let mut state = self.state.lock();
        let next = state.known.iter().position(|known| *known == node).map_or(0, |index| index + 1);
        let other = state.known[next % state.known.len()];
        state.at.iter_mut().filter(|at| **at == node).for_each(|at| *at = other);
    }

    /// The meaning of an answer of `from`, if it is an error.
    pub fn turn(&self, answer: &Value, from: SocketAddr) -> Option<Turn> {
        let Value::ServerError(error) = answer else { return None };
        Some(match error.code() {
            // The answer of a server at its memory limit.
            "OOM" => Turn::Not(RemoteError::Full),
            _ if !self.is_cluster => Turn::Not(RemoteError::Refused),
            code @ ("MOVED" | "ASK") => match self.target(error.details().unwrap_or_default(), from) {
                Some(to) if code == "ASK" => Turn::Ask(to),
                Some(to) => Turn::Moved(to),
                None => Turn::Not(RemoteError::Astray),
            },
            "TRYAGAIN" => Turn::Again,
            "CLUSTERDOWN" => Turn::Not(RemoteError::Down),
            _ => Turn::Not(RemoteError::Refused),
        })
    }

    /// The node of `SLOT ADDRESS:PORT`; without an address the port of the node that answered.
    /// None: it can't be followed there.
    fn target(&self, told: &str, from: SocketAddr) -> Option<SocketAddr> {
        let (slot, place) = told.split_once(' ')?;
        slot.parse().ok().filter(|slot: &u16| *slot < SLOTS)?;
        let (host, port) = place.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port: &u16| *port != 0)?;
        // An address of IPv6 comes without brackets.
        let host = if host.is_empty() { from.ip() } else { host.parse().ok()? };
        may_be_beside(self.named.ip(), host).then_some(SocketAddr::new(host, port))
    }
}

/// Whether a node may be there if the named one is at `named`. A server elsewhere can't mean
/// services of this machine or its link.
fn may_be_beside(named: IpAddr, host: IpAddr) -> bool {
    let (named, host) = (named.to_canonical(), host.to_canonical());
    let is_near = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (ip.is_loopback(), ip.is_link_local()),
        IpAddr::V6(ip) => (ip.is_loopback(), ip.is_unicast_link_local()),
    };
    let is_none = match host {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_unspecified() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
    };
    !is_none && (is_near(host) == (false, false) || is_near(host) == is_near(named))
}

#[cfg(test)]
#[path = "routes_test.rs"]
mod tests;
