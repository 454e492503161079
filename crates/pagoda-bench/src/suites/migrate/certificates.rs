//! An authority and a certificate for both sides of a run with TLS, made for the run and removed
//! with it.
//!
//! The run measures the cost of TLS for the content, so that both sides show the same certificate.
//! They must never serve anything else.

use std::fs;
use std::path::Path;

use pagoda::migrate::{ClientTls, Credentials, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::measure::scratch::Scratch;

const CA: &str = "ca.pem";
const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

/// The files of both sides.
pub struct Certificates(Scratch);

impl Certificates {
    /// Makes them, for the loopback's address.
    pub fn new() -> anyhow::Result<Self> {
        let scratch = Scratch::new()?;
        let (ca_key, key) = (KeyPair::generate()?, KeyPair::generate()?);
        let mut params = CertificateParams::new(vec![])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(scratch.file(CA), params.self_signed(&ca_key)?.pem())?;
        let issuer = Issuer::new(params, ca_key);
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
        fs::write(scratch.file(CERTIFICATE), certificate.pem())?;
        fs::write(scratch.file(KEY), key.serialize_pem())?;
        Ok(Self(scratch))
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The sender's side.
    pub fn client(&self) -> anyhow::Result<ClientTls> {
        with_files_of(self.folder(), |credentials| Ok(ClientTls::new(credentials)?))
    }
}

/// The receiver's side, with the files in `folder`.
pub fn server(folder: &Path) -> anyhow::Result<ServerTls> {
    with_files_of(folder, |credentials| Ok(ServerTls::new(credentials)?))
}

fn with_files_of<T>(
    folder: &Path,
    make: impl FnOnce(Credentials<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let [certificate, key, authority] = [CERTIFICATE, KEY, CA].map(|name| folder.join(name));
    make(Credentials { certificate: &certificate, key: &key, authority: &authority })
}
