//! TLS, version 1.3, with certificates on both sides: each shows its own, and takes only those of
//! its authority.
//!
//! The receiver has no list of names: any peer that its authority has signed may send. The sender
//! checks the name or address that it connects to as well. This module must never fall back to
//! anything weaker.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::error::Error;
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::socket::Socket;

/// This side's identity, and the authority that it trusts: three PEM files.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// This side's certificate, and those between it and the authority.
    pub certificate: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The authority's certificate.
    pub authority: &'a Path,
}

struct Loaded {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl Credentials<'_> {
    fn load(self) -> Result<Loaded, Error> {
        let certificates = |path: &Path| {
            let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            match read {
                Ok(found) if found.is_empty() => {
                    Err(Error::Tls(format!("there is no certificate in {}", path.display())))
                }
                Ok(found) => Ok(found),
                Err(error) => Err(unreadable(path, &error)),
            }
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(self.authority)? {
            roots.add(certificate).map_err(|error| unreadable(self.authority, &error))?;
        }
        let key = PrivateKeyDer::from_pem_file(self.key).map_err(|error| unreadable(self.key, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(Loaded { chain: certificates(self.certificate)?, key, roots: Arc::new(roots), provider })
    }
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Tls(format!("{}: {error}", path.display()))
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::Tls(error.to_string())
}

/// The sender's side.
#[derive(Clone, Debug)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Tls`]
    pub fn new(credentials: Credentials<'_>) -> Result<Self, Error> {
        let Loaded { chain, key, roots, provider } = credentials.load()?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(refused)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(refused)?;
        Ok(Self(Arc::new(config)))
    }

    /// The connection; nothing is said on it yet.
    pub(crate) fn over(&self, socket: Socket, to: &Endpoint) -> Result<Connection, Error> {
        let name = match to {
            Endpoint::Tcp { host, .. } => ServerName::try_from(host.clone()).map_err(refused)?,
            // A path is no name that a certificate could be about.
            Endpoint::Unix(_) => return Err(refused("a Unix socket needs none")),
            Endpoint::Several(_) => return Err(refused("a certificate is about one name")),
        };
        let client = ClientConnection::new(Arc::clone(&self.0), name).map_err(refused)?;
        Ok(Connection::Client(Box::new(StreamOwned::new(client, socket))))
    }
}

/// The receiver's side.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<ServerConfig>);

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Tls`]
    pub fn new(credentials: Credentials<'_>) -> Result<Self, Error> {
        let Loaded { chain, key, roots, provider } = credentials.load()?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(refused)?
            .with_client_cert_verifier(verifier.build().map_err(refused)?)
            .with_single_cert(chain, key)
            .map_err(refused)?;
        Ok(Self(Arc::new(config)))
    }

    /// The connection; nothing is said on it yet.
    pub(crate) fn over(&self, socket: Socket) -> Result<Connection, Error> {
        let server = ServerConnection::new(Arc::clone(&self.0)).map_err(refused)?;
        Ok(Connection::Server(Box::new(StreamOwned::new(server, socket))))
    }
}
