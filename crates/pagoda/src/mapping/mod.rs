//! Which memory is managed: adoption, and the events of its mappings.

pub(crate) mod adopt;
pub(crate) mod apply;
