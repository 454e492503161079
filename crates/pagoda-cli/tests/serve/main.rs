//! `pagoda serve` with VMMs of the tests' own, in this process or one below it.

mod bench;
mod bytes;
mod export;
#[cfg(feature = "remote")]
mod figures;
mod hostile;
mod offload;
#[path = "../support/openmetrics.rs"]
mod openmetrics;
mod peer;
#[cfg(feature = "remote")]
mod remote;
mod server;
mod trouble;
mod vmms;

/// Whether this machine can't run these tests, which is said.
fn skips(what: &str) -> bool {
    let opened = pagoda_linux::uffd::entrusted::EntrustedUffd::open(pagoda_linux::uffd::Mode::Full);
    if let Err(error) = &opened {
        pagoda_linux::testing::skip::skip(what, error);
    }
    opened.is_err()
}
