//! The remote tier of a build without one: there never is a server.
//!
//! Addresses and errors are the same, so that configurations are read alike. This module must never
//! have a tier that can be opened.

#[path = "remote/address.rs"]
mod address;
#[path = "remote/error.rs"]
mod error;

use std::time::Duration;

use super::file::Batch;
use super::{GetError, RemoteConfig, TieredStore};
use crate::crypto::sealing::{Sealer, Version};

pub use address::{AddressError, RemoteAddress};
pub use error::{RemoteError, RemoteOpenError};

/// None can be made.
pub(super) enum RemoteTier {}

/// An object that is to be read with others.
#[expect(dead_code, reason = "as with a server")]
pub(super) struct Wanted {
    pub id: u32,
    pub batch: u32,
    pub version: Version,
    pub len: usize,
}

impl RemoteTier {
    pub fn open(_config: RemoteConfig, _sealer: Sealer) -> Result<Self, RemoteOpenError> {
        Err(RemoteOpenError::LeftOut)
    }
    pub fn used_bytes(&self) -> u64 {
        match *self {}
    }
    pub fn failures(&self) -> u64 {
        match *self {}
    }
    pub fn has_room(&self, _batch: &Batch) -> bool {
        match *self {}
    }
    pub fn has_room_for_copies(&self) -> bool {
        match *self {}
    }
    pub fn is_pausing(&self) -> bool {
        match *self {}
    }
    pub fn write(&self, _batch: &mut Batch) -> Result<u32, RemoteError> {
        match *self {}
    }
    pub fn abandon(&self, _id: u32, _batch: u32, _len: usize) {
        match *self {}
    }
    pub fn read(&self, _id: u32, _batch: u32, _version: Version, _into: &mut [u8]) -> Result<(), GetError> {
        match *self {}
    }
    pub fn read_many(&self, _wanted: &[Wanted]) -> Vec<Option<Vec<u8>>> {
        match *self {}
    }
}

/// Nothing is at a server.
///
/// # Errors
/// [`RemoteOpenError::LeftOut`].
pub fn forget(_address: &RemoteAddress, _name: [u8; 16]) -> Result<(), RemoteOpenError> {
    Err(RemoteOpenError::LeftOut)
}

#[expect(clippy::unused_self, reason = "as with a server")]
impl TieredStore {
    pub(in crate::store) fn keep_remote(&self) {}
    /// None: there is no server.
    #[must_use]
    pub fn remote_name(&self) -> Option<[u8; 16]> {
        None
    }
    /// Nothing expires.
    pub fn lease_for(&self, _expiry: Duration) {}
    pub(in crate::store) fn leave_remote(&self) {}
    pub(in crate::store) fn delete_gone(&self) -> bool {
        false
    }
}
