//! TLS of the server: a certificate of our own authority that is made anew long before it ends, and clients that may
//! show one of the same authority. One of another ends the handshake.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use wharf_model::Time;

use super::ServeError;
use crate::access::Pki;

/// How old the server's certificate becomes. It would hold three times as long.
const RENEW: Duration = Duration::from_secs(30 * 24 * 3600);

/// All names of the server: those of this machine, its address if it is a certain one, and what else is said.
pub(super) fn names(address: IpAddr, more: &[String]) -> Vec<String> {
    let known =
        ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let mut names: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
    let address = (!address.is_unspecified()).then(|| address.to_string());
    for name in address.iter().chain(more) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// TLS as the server speaks it.
pub(super) fn config(pki: Arc<Pki>, names: Vec<String>) -> Result<ServerConfig, ServeError> {
    let broken = |error: &dyn std::fmt::Display| ServeError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(pki.certificate().clone()).map_err(|error| broken(&error))?;
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| broken(&error))?;
    let certificate = Renewed::new(pki, names)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| broken(&error))?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificate in use.
#[derive(Debug)]
struct Renewed {
    pki: Arc<Pki>,
    names: Vec<String>,
    current: Mutex<(Instant, Arc<CertifiedKey>)>,
}

impl Renewed {
    fn new(pki: Arc<Pki>, names: Vec<String>) -> Result<Self, ServeError> {
        let first = Arc::new(pki.server(&names, now())?);
        Ok(Self { pki, names, current: Mutex::new((Instant::now(), first)) })
    }

    fn at(&self, instant: Instant) -> Arc<CertifiedKey> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if instant.saturating_duration_since(current.0) >= RENEW {
            match self.pki.server(&self.names, now()) {
                Ok(renewed) => *current = (instant, Arc::new(renewed)),
                // The old one still holds for long.
                Err(error) => tracing::error!(%error, "the server's certificate was not renewed"),
            }
        }
        current.1.clone()
    }
}

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.at(Instant::now()))
    }
}

fn now() -> Time {
    Time(jiff::Timestamp::now().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_once() {
        let of = |address: &str, more: &[&str]| {
            let more: Vec<String> = more.iter().map(|&name| name.to_owned()).collect();
            names(address.parse().unwrap(), &more).split_off(6)
        };
        assert_eq!(of("127.0.0.1", &[]), [""; 0]);
        assert_eq!(of("0.0.0.0", &["api.example.com", "localhost"]), ["api.example.com"]);
        assert_eq!(of("10.0.0.1", &["10.0.0.1"]), ["10.0.0.1"]);
    }

    #[test]
    fn a_certificate_is_renewed_before_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Arc::new(Pki::open_or_make(dir.path(), now()).unwrap());
        let certificate = Renewed::new(pki, names([127, 0, 0, 1].into(), &[])).unwrap();
        let start = Instant::now();
        let cert = |at: Instant| certificate.at(at).cert[0].clone();
        let first = cert(start);
        assert_eq!(first, cert(start + Duration::from_secs(29 * 24 * 3600)));
        let second = cert(start + RENEW + Duration::from_secs(1));
        assert_ne!(first, second);
        assert_eq!(second, cert(start + RENEW + Duration::from_secs(2)));
    }
}
