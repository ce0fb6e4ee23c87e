//! TLS configuration of the server: a certificate of our own CA that is renewed long before it expires, and optional
//! client certificates of the same CA. A client certificate of another CA fails the handshake.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use wharf_model::Time;

use super::ServeError;
use crate::access::Pki;

/// The age at which the server certificate is renewed. It is valid three times as long.
const RENEW_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// All names of the server: those of this machine, its address unless unspecified, and `more`.
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

/// The TLS configuration.
pub(super) fn config(pki: Arc<Pki>, names: Vec<String>) -> Result<ServerConfig, ServeError> {
    let tls_error = |error: &dyn std::fmt::Display| ServeError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(pki.certificate().clone()).map_err(|error| tls_error(&error))?;
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| tls_error(&error))?;
    let certificate = RenewingCertificate::new(pki, names)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(&error))?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificate in use, renewed on demand.
#[derive(Debug)]
struct RenewingCertificate {
    pki: Arc<Pki>,
    names: Vec<String>,
    /// The wall time of the certificate's creation, and the certificate. Its validity is wall time, too: monotonic time
    /// stands still while a laptop sleeps.
    current: Mutex<(Time, Arc<CertifiedKey>)>,
}

impl RenewingCertificate {
    fn new(pki: Arc<Pki>, names: Vec<String>) -> Result<Self, ServeError> {
        let now = now();
        let first = Arc::new(pki.server_certificate(&names, now)?);
        Ok(Self { pki, names, current: Mutex::new((now, first)) })
    }

    fn at(&self, now: Time) -> Arc<CertifiedKey> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if is_renewal_due(current.0, now) {
            match self.pki.server_certificate(&self.names, now) {
                Ok(renewed) => *current = (now, Arc::new(renewed)),
                // The old certificate is still valid for a long time.
                Err(error) => tracing::error!(%error, "failed to renew the server certificate"),
            }
        }
        current.1.clone()
    }
}

impl ResolvesServerCert for RenewingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.at(now()))
    }
}

/// Whether the certificate is old, or was created at a time that has not come yet because the clock was set back.
fn is_renewal_due(created: Time, now: Time) -> bool {
    now >= created.plus(RENEW_AFTER) || now < created
}

fn now() -> Time {
    Time(jiff::Timestamp::now().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_are_unique() {
        let extra_names = |address: &str, more: &[&str]| {
            let more: Vec<String> = more.iter().map(|&name| name.to_owned()).collect();
            names(address.parse().unwrap(), &more).split_off(6)
        };
        assert_eq!(extra_names("127.0.0.1", &[]), [""; 0]);
        assert_eq!(extra_names("0.0.0.0", &["api.example.com", "localhost"]), ["api.example.com"]);
        assert_eq!(extra_names("10.0.0.1", &["10.0.0.1"]), ["10.0.0.1"]);
    }

    /// A-L3: by wall time, in which a laptop's sleep counts and which may be set back.
    #[test]
    fn certificate_is_renewed_by_wall_time() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Arc::new(Pki::open_or_create(dir.path(), now()).unwrap());
        let certificate = RenewingCertificate::new(pki, names([127, 0, 0, 1].into(), &[])).unwrap();
        let start = now();
        let cert = |at: Time| certificate.at(at).cert[0].clone();
        let first = cert(start);
        assert_eq!(first, cert(start.plus(Duration::from_secs(29 * 24 * 3600))));
        let awake = start.plus(RENEW_AFTER + Duration::from_secs(1));
        let second = cert(awake);
        assert_ne!(first, second);
        assert_eq!(second, cert(awake.plus(Duration::from_secs(1))));
        let set_back = cert(start);
        assert_ne!(second, set_back);
        assert_eq!(set_back, cert(start.plus(Duration::from_secs(1))));
    }
}
