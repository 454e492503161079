//! Files, parts of them and images as memory.

#[cfg(feature = "image")]
#[path = "../support/images.rs"]
mod images;
#[cfg(feature = "image")]
#[path = "../../../pagoda-image/tests/support/mod.rs"]
mod support;

mod file_others;
#[cfg(feature = "image")]
mod file_parts;
mod file_region;
mod file_stream;
#[cfg(feature = "image")]
mod private_file;
#[cfg(feature = "image")]
mod restore;
#[cfg(all(feature = "image", feature = "migrate"))]
mod snapshot;
