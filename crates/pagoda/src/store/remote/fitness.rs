//! Whether a server is fit to be a remote store: asked when a store is opened, of each node that
//! will have something.
//!
//! A server that evicts would lose content, and lost content is an error only once it is wanted.
//! This module must never take a server for fit that does not tell its kind.

use std::net::SocketAddr;

use redis::Value;

use super::error::{RemoteError, RemoteOpenError};
use super::links::Links;

/// Whether a server is one of a cluster, if it keeps its objects. Its policy may still be changed
/// under way; an object missing then is an error.
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
