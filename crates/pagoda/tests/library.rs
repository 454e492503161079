//! The library on real userfaultfd, all in one process: while some tests wait for a line or for a
//! disk, others have the processors. A test that changes what the whole process has, a handler of
//! a signal too, belongs in a target of its own.

mod files;
#[cfg(feature = "migrate")]
mod migrate;
mod regions;
