//! The forms of a report: text, a page of plots, and keys. Apart from the benches, so that all look
//! alike. Never measures.

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod table;

#[cfg(test)]
pub(crate) mod keys;
