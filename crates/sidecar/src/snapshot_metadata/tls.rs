//! TLS for the service. The certificate is reloaded when it changes. Connections must complete their handshake in
//! time, are limited in number, and end when they are idle or too old.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion, version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Time limit of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent connections.
const MAX_CONNECTIONS: usize = 256;
/// A live caller sends something more often, at least responses to keepalive pings. A caller that never starts
/// HTTP/2 gets no pings and is disconnected after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often to check the files for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Certificate and key files, and the minimum TLS version.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate with its chain, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// Accept only TLS 1.3; otherwise also 1.2.
    pub tls13_only: bool,
}

/// A problem with certificate or key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate cannot be read.
    #[error("failed to read certificate {path}: {source}")]
    CertificateStore {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::pki_types::pem::Error,
    },
    /// The key cannot be read. Its content is never quoted.
    #[error("failed to read key {path}: it must be a private key in PEM format")]
    Key {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key do not match or are not supported.
    #[error("certificate {cert} and its key cannot be used: {source}")]
    Unusable {
        /// The certificate file.
        cert: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
}

impl Tls {
    /// Reads the files.
    fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let broken = |source| TlsError::CertificateStore { path: self.cert.clone(), source };
        let chain = CertificateDer::pem_file_iter(&self.cert).map_err(broken)?;
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(broken)?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|_| TlsError::Key { path: self.key.clone() })?;
        let unusable = |source| TlsError::Unusable { cert: self.cert.clone(), source };
        let versions: &[&'static SupportedProtocolVersion] = match self.tls13_only {
            true => &[&version::TLS13],
            false => &[&version::TLS13, &version::TLS12],
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions).map_err(unusable)?;
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// The content of both files, to detect changes.
    fn bytes(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((std::fs::read(&self.cert).ok()?, std::fs::read(&self.key).ok()?))
    }
}

/// The certificate in use.
pub(super) struct CertificateStore {
    tls: Tls,
    config: Mutex<Arc<ServerConfig>>,
}

impl CertificateStore {
    pub(super) fn new(tls: Tls) -> Result<Arc<Self>, TlsError> {
        let config = Mutex::new(tls.load()?);
        Ok(Arc::new(Self { tls, config }))
    }

    fn current(&self) -> Arc<ServerConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reloads a changed certificate for new connections. One that cannot be used is ignored, since the files are
    /// replaced one after the other.
    pub(super) async fn renew(&self) {
        let mut seen = self.tls.bytes();
        loop {
            sleep(RELOAD_INTERVAL).await;
            let bytes = self.tls.bytes();
            if bytes.is_none() || bytes == seen {
                continue;
            }
            match self.tls.load() {
                Ok(config) => {
                    *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
                    tracing::info!(path = %self.tls.cert.display(), "reloaded certificate");
                    seen = bytes;
                }
                Err(error) => tracing::warn!(%error, "failed to reload certificate; using the previous one"),
            }
        }
    }
}

/// Accepts connections, each in its own task, until the receiver is dropped. A connection ends after `max_duration` at
/// the latest.
pub(super) fn accept(
    listener: TcpListener,
    certificate: Arc<CertificateStore>,
    max_duration: Duration,
) -> mpsc::Receiver<Result<TlsConnection, io::Error>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed, so a permit will become available.
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely out of file descriptors: wait, or this would spin.
                    tracing::warn!(%error, "failed to accept connection");
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let (acceptor, sender) = (TlsAcceptor::from(certificate.current()), sender.clone());
            tokio::spawn(async move {
                match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                    // An error means that the receiver was dropped: the service is stopping.
                    Ok(Ok(stream)) => {
                        _ = sender.send(Ok(TlsConnection::new(stream, slot, max_duration))).await
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake timed out"),
                }
            });
        }
    });
    receiver
}

/// A caller's TLS connection with its timeouts.
pub(super) struct TlsConnection<S = TlsStream<TcpStream>> {
    stream: S,
    idle: Pin<Box<Sleep>>,
    max_age: Pin<Box<Sleep>>,
    _slot: OwnedSemaphorePermit,
}

impl<S> TlsConnection<S> {
    fn new(stream: S, slot: OwnedSemaphorePermit, max_duration: Duration) -> Self {
        Self {
            stream,
            idle: Box::pin(sleep(IDLE_TIMEOUT)),
            max_age: Box::pin(sleep(max_duration)),
            _slot: slot,
        }
    }
}

impl Connected for TlsConnection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.get_ref().0.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TlsConnection<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let over = |reason: &str| Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, reason)));
        // HTTP/2 always reads, even while it cannot write: so the timeouts work whatever the caller does.
        if this.max_age.as_mut().poll(cx).is_ready() {
            return over("the connection is too old");
        }
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, out) {
            this.idle.as_mut().reset(Instant::now() + IDLE_TIMEOUT);
            return Poll::Ready(read);
        }
        match this.idle.as_mut().poll(cx) {
            Poll::Ready(()) => over("the connection is idle"),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TlsConnection<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    async fn connection(max_duration: Duration) -> (DuplexStream, TlsConnection<DuplexStream>) {
        let (caller, stream) = duplex(64);
        let slot = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        (caller, TlsConnection::new(stream, slot, max_duration))
    }

    /// Otherwise a few callers that only connect could block all others.
    #[tokio::test(start_paused = true)]
    async fn idle_connection_is_closed() {
        let (mut caller, mut secure) = connection(10 * IDLE_TIMEOUT).await;
        let started = Instant::now();
        sleep(IDLE_TIMEOUT / 2).await;
        caller.write_all(b"x").await.unwrap();
        assert_eq!(secure.read_u8().await.unwrap(), b'x');
        let error = secure.read_u8().await.unwrap_err();
        assert_eq!(
            (error.kind(), started.elapsed() >= IDLE_TIMEOUT + IDLE_TIMEOUT / 2),
            (io::ErrorKind::TimedOut, true)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn old_connection_is_closed_despite_traffic() {
        let (mut caller, mut secure) = connection(10 * IDLE_TIMEOUT).await;
        let (mut reads, speaking) = (0, async {
            loop {
                sleep(IDLE_TIMEOUT / 2).await;
                if caller.write_all(b"x").await.is_err() {
                    return;
                }
            }
        });
        let reading = async {
            while let Ok(b'x') = secure.read_u8().await {
                reads += 1;
            }
            drop(secure);
        };
        tokio::join!(timeout(20 * IDLE_TIMEOUT, speaking), reading).0.expect("it ends");
        assert!((18..=20).contains(&reads), "{reads}");
    }
}
