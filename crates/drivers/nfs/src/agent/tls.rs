//! Certificates of the agent and of its clients. Both sides must have one: there is no other authentication.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use serde::{Deserialize, Serialize};

/// PEM files of one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// The authority that signed the certificates of the other side.
    pub ca: PathBuf,
    /// The own certificate with its chain.
    pub cert: PathBuf,
    /// The key of the own certificate.
    pub key: PathBuf,
}

/// Why certificates cannot be used. Keys are never quoted.
#[derive(Debug, thiserror::Error)]
pub enum TlsFilesError {
    /// Certificates cannot be read.
    #[error("failed to read certificates from {path}: {source}")]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// The file has no certificate.
    #[error("{0} contains no certificate in PEM format")]
    Empty(PathBuf),
    /// The key cannot be read.
    #[error("failed to read key {0}: it must be a private key in PEM format")]
    Key(PathBuf),
    /// The authority cannot be used.
    #[error("failed to use the authority {path}: {reason}")]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// Certificate and key do not match or are not supported.
    #[error("certificate {path} and its key cannot be used: {source}")]
    Unusable {
        /// The certificate file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
}

impl TlsFiles {
    /// For the agent: clients must have a certificate of the authority.
    pub fn server(&self) -> Result<Arc<ServerConfig>, TlsFilesError> {
        let (chain, key) = self.identity()?;
        let unusable = |source| TlsFilesError::Unusable { path: self.cert.clone(), source };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.authority()?), provider.clone())
                .build()
                .map_err(|error| TlsFilesError::Authority {
                    path: self.ca.clone(),
                    reason: error.to_string(),
                })?;
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&version::TLS13]).map_err(unusable)?;
        let config = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key);
        Ok(Arc::new(config.map_err(unusable)?))
    }

    /// For a client: the agent must have a certificate of the authority, for the name in its address.
    pub fn client(&self) -> Result<Arc<ClientConfig>, TlsFilesError> {
        let (chain, key) = self.identity()?;
        let unusable = |source| TlsFilesError::Unusable { path: self.cert.clone(), source };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&version::TLS13]).map_err(unusable)?;
        let config = builder.with_root_certificates(self.authority()?).with_client_auth_cert(chain, key);
        Ok(Arc::new(config.map_err(unusable)?))
    }

    fn authority(&self) -> Result<RootCertStore, TlsFilesError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate).map_err(|error| TlsFilesError::Authority {
                path: self.ca.clone(),
                reason: error.to_string(),
            })?;
        }
        Ok(roots)
    }

    fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsFilesError> {
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|_| TlsFilesError::Key(self.key.clone()))?;
        Ok((certificates(&self.cert)?, key))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFilesError> {
    let broken = |source| TlsFilesError::Certificates { path: path.to_owned(), source };
    let found: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(broken)?.collect::<Result<_, _>>().map_err(broken)?;
    if found.is_empty() { Err(TlsFilesError::Empty(path.to_owned())) } else { Ok(found) }
}
