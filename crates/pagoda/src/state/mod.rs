//! State of the engine that knows no engine: plain types, each with its own lock or none.
//!
//! The engine has one of each as a field. The steps that change them are methods of the engine, in
//! the folders of the steps. Nothing here imports the engine.

pub(crate) mod announcements;
pub(crate) mod asked;
pub(crate) mod clears;
pub(crate) mod closed;
pub(crate) mod core_dump;
pub(crate) mod hand;
pub(crate) mod helpers;
pub(crate) mod ledger;
pub(crate) mod lift;
pub(crate) mod limits;
#[cfg(feature = "migrate")]
pub(crate) mod owed;
pub(crate) mod pending;
pub mod pins;
pub(crate) mod placement;
#[cfg_attr(not(feature = "migrate"), allow(dead_code, reason = "only a migration slows down"))]
pub(crate) mod slowed;
pub(crate) mod store_share;
pub(crate) mod touch_streams;
#[cfg(feature = "image")]
pub(crate) mod touches;
pub(crate) mod wakeup;
