//! Which memory is managed: adoption, and the events of its mappings.
//!
//! Both change which spans there are, so both hold the gate exclusively: the watcher adopts,
//! handlers apply the events that they have read.

pub(crate) mod adopt;
pub(crate) mod apply;
pub(crate) mod core_dump;
pub(crate) mod own_userfault;
