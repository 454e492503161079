//! How figures are told: text, a page of plots, and keys.

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod table;

#[cfg(test)]
pub(crate) mod keys;
