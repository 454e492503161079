//! Images: packed and read, imported from QEMU's files, and read from elsewhere.

#[path = "../support/mod.rs"]
mod support;

mod images;
mod mapped_ram;
mod remote;
