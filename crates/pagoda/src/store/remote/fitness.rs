//! Whether a server is fit to be a remote store: asked when a store is opened, of each node that
//! will have something.
//!
//! A server that evicts would lose content, and lost content is an error only once it is wanted.
//! This module must never take a server for fit that does not tell its kind.

use std::net::SocketAddr;

use pagoda_core::size::Bytes;
use redis::Value;

use super::link::RemoteError;
use super::links::Links;

/// Why a remote store can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteOpenError {
    /// It could not be reached, or did not answer.
    #[error("the remote store can't be used: {0}; check its address, password and that it is running")]
    Unusable(#[from] RemoteError),
    /// It throws content away when its memory is short. Of a cluster, one of the nodes does.
    #[error(
        "the remote store evicts what is stored there when its memory is short; set its maxmemory-policy to noeviction"
    )]
    Evicts,
    /// It is a cluster, and a database was named.
    #[error("the remote store is a cluster, which has no database but 0; name none")]
    ClusterDatabase,
    /// Less room there than one batch takes.
    #[error("a remote store needs a limit of {least} at least, not {limit}; raise it")]
    Limit {
        /// What was asked for.
        limit: Bytes,
        /// What it needs.
        least: Bytes,
    },
}

/// Whether a server is one of a cluster, if it keeps what it is given. Its policy may still be
/// changed under way; what is missing then is an error.
pub(super) fn check_server(links: &mut Links, node: SocketAddr) -> Result<bool, RemoteOpenError> {
    let answer = links.ask_node(node, &redis::cmd("INFO"), 256 << 10)?;
    let Value::BulkString(text) = &answer else { return Err(RemoteError::Refused.into()) };
    let text = String::from_utf8_lossy(text);
    let says = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
    if !matches!(says("maxmemory:"), "" | "0") && says("maxmemory_policy:") != "noeviction" {
        return Err(RemoteOpenError::Evicts);
    }
    Ok(says("cluster_enabled:") == "1")
}
