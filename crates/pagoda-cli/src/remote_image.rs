//! Images by their path or by their address on a server, for all commands that read one.
//!
//! This module must never show the query of an address: it can be a secret.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagoda_core::size::Bytes;
use pagoda_image::{Image, ImageError, Key};

/// Options for images on a server.
#[derive(clap::Args)]
pub struct RemoteArgs {
    /// Keep what is read from a server in this directory. Other commands may use it at the same
    /// time.
    #[arg(long, value_name = "DIR")]
    disk_cache: Option<PathBuf>,
    /// How much that directory may hold. The parts that were not read for the longest time go
    /// first.
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    disk_cache_limit: Bytes,
    /// How long a read may wait for a server, with all tries, in seconds. Then it is an error, and
    /// a VM that waits for the page gets SIGBUS.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    server_timeout: u32,
}

/// Whether this is an address on a server.
pub fn is_remote(path: &Path) -> bool {
    let schemes = ["http://", "https://", "s3://"];
    path.to_str().is_some_and(|text| schemes.iter().any(|scheme| text.starts_with(scheme)))
}

/// How an image is named to the user.
pub fn shown(path: &Path) -> String {
    let name = crate::migrate::shown(path);
    if !is_remote(path) {
        return name;
    }
    name.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// Opens an image, over `base` if that is given.
pub fn open(
    path: &Path,
    key: Option<Key>,
    base: Option<Arc<Image>>,
    args: &RemoteArgs,
) -> Result<Image, ImageError> {
    if is_remote(path) {
        let key = key.ok_or_else(|| ImageError::NoRemoteKey { path: shown(path).into() })?;
        return Image::open_remote(open_file(path, args)?, key, base);
    }
    match base {
        None => Image::open(path, key),
        Some(base) => Image::open_over(path, key, base),
    }
}

#[cfg(feature = "remote")]
fn open_file(path: &Path, args: &RemoteArgs) -> Result<Box<dyn pagoda_image::RemoteFile>, ImageError> {
    let cache = args.disk_cache.clone().map(|directory| (directory, args.disk_cache_limit));
    let patience = std::time::Duration::from_secs(args.server_timeout.into());
    pagoda_remote::open(path, &pagoda_remote::Options { patience, cache })
        .map_err(|failure| ImageError::Unreached { path: shown(path).into(), error: failure.into() })
}

#[cfg(not(feature = "remote"))]
fn open_file(path: &Path, args: &RemoteArgs) -> Result<Box<dyn pagoda_image::RemoteFile>, ImageError> {
    let _ = (&args.disk_cache, args.disk_cache_limit, args.server_timeout);
    let error =
        std::io::Error::other("this pagoda can't read from servers; build it with the feature remote");
    Err(ImageError::Unreached { path: shown(path).into(), error })
}
