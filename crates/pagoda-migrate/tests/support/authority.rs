//! An authority of the tests, and the credentials of those it has signed.

use std::fs;
use std::path::{Path, PathBuf};

use pagoda_migrate::{ClientTls, Credentials, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// An authority, and the certificates that it has signed.
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(directory: &Path, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("signed");
        let directory = directory.join(name);
        fs::create_dir(&directory).expect("a directory");
        fs::write(directory.join("ca.pem"), certificate.pem()).expect("written");
        Self { directory, issuer: Issuer::new(params, key) }
    }

    pub fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// The certificate and the key for the name `host`.
    pub fn sign(&self, host: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let path = |what: &str| self.directory.join(format!("{host}.{what}.pem"));
        fs::write(path("cert"), certificate.pem()).expect("written");
        fs::write(path("key"), key.serialize_pem()).expect("written");
        (path("cert"), path("key"))
    }
}

pub fn client((certificate, key): &(PathBuf, PathBuf), authority: &Path) -> Option<ClientTls> {
    Some(ClientTls::new(Credentials { certificate, key, authority }).expect("credentials"))
}

pub fn server((certificate, key): &(PathBuf, PathBuf), authority: &Path) -> Option<ServerTls> {
    Some(ServerTls::new(Credentials { certificate, key, authority }).expect("credentials"))
}
