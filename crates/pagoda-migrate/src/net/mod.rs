//! Connections of a migration: addresses, sockets, TLS, tokens, and the handshake.

pub(crate) mod admission;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod handshake;
pub(crate) mod listener;
pub(crate) mod socket;
pub(crate) mod tls;
pub(crate) mod token;
