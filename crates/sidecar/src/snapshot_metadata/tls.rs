//! TLS for the service: a certificate that may be renewed under it, connections that must prove themselves in time, are
//! so many at most, and end when nothing comes from the caller any more or when they are too old.

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

/// A caller that connects and does not come to the point is not waited for longer.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// So many callers at once.
const CONNECTIONS: usize = 256;
/// From a caller who is alive something comes more often: answers to signs of life, at least. One who never begins to
/// speak HTTP/2 is asked for none, and ends by this.
const QUIET: Duration = Duration::from_secs(60);
/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(10);

/// Where certificate and key are, and how old the protocol may be.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate with its chain, in PEM.
    pub cert: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// Only TLS 1.3; else 1.2 too.
    pub only_1_3: bool,
}

/// What is wrong with certificate or key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate cannot be read.
    #[error("the certificate {path} cannot be read: {source}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// The key cannot be read. Nothing of it is quoted.
    #[error("the key {path} cannot be read: it has to be a private key in PEM")]
    Key {
        /// The file.
        path: PathBuf,
    },
    /// They do not fit together.
    #[error("certificate {cert} and its key cannot be used: {source}")]
    Unfit {
        /// The certificate.
        cert: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

impl Tls {
    /// Reads the files.
    fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let broken = |source| TlsError::Certificate { path: self.cert.clone(), source };
        let chain = CertificateDer::pem_file_iter(&self.cert).map_err(broken)?;
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(broken)?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|_| TlsError::Key { path: self.key.clone() })?;
        let unfit = |source| TlsError::Unfit { cert: self.cert.clone(), source };
        let versions: &[&'static SupportedProtocolVersion] = match self.only_1_3 {
            true => &[&version::TLS13],
            false => &[&version::TLS13, &version::TLS12],
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions).map_err(unfit)?;
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(unfit)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// The bytes of both, to see whether they changed.
    fn bytes(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((std::fs::read(&self.cert).ok()?, std::fs::read(&self.key).ok()?))
    }
}

/// The certificate in use.
pub(super) struct Certificate {
    tls: Tls,
    now: Mutex<Arc<ServerConfig>>,
}

impl Certificate {
    pub(super) fn new(tls: Tls) -> Result<Arc<Self>, TlsError> {
        let now = Mutex::new(tls.load()?);
        Ok(Arc::new(Self { tls, now }))
    }

    fn current(&self) -> Arc<ServerConfig> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a renewed certificate for new connections. One that cannot be used changes nothing: files are replaced
    /// one after the other.
    pub(super) async fn renew(&self) {
        let mut seen = self.tls.bytes();
        loop {
            sleep(LOOK).await;
            let bytes = self.tls.bytes();
            if bytes.is_none() || bytes == seen {
                continue;
            }
            match self.tls.load() {
                Ok(config) => {
                    *self.now.lock().unwrap_or_else(PoisonError::into_inner) = config;
                    tracing::info!(cert = %self.tls.cert.display(), "the certificate was renewed");
                    seen = bytes;
                }
                Err(error) => tracing::warn!(%error, "keeping the certificate from before"),
            }
        }
    }
}

/// Accepts connections, each in a task of its own, for as long as somebody takes them. None lives longer than `longest`.
pub(super) fn accept(
    listener: TcpListener,
    certificate: Arc<Certificate>,
    longest: Duration,
) -> mpsc::Receiver<Result<Secure, io::Error>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // The semaphore is never closed, so there is always a slot to come.
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: wait, or this would spin.
                    tracing::warn!(%error, "a connection was not accepted");
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let (acceptor, sender) = (TlsAcceptor::from(certificate.current()), sender.clone());
            tokio::spawn(async move {
                match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                    // Nobody takes it any more: we are about to end.
                    Ok(Ok(stream)) => _ = sender.send(Ok(Secure::new(stream, slot, longest))).await,
                    Ok(Err(error)) => tracing::debug!(%error, "no TLS with a caller"),
                    Err(_) => tracing::debug!("a caller did not come to the point"),
                }
            });
        }
    });
    receiver
}

/// A caller's connection.
pub(super) struct Secure<S = TlsStream<TcpStream>> {
    stream: S,
    quiet: Pin<Box<Sleep>>,
    end: Pin<Box<Sleep>>,
    _slot: OwnedSemaphorePermit,
}

impl<S> Secure<S> {
    fn new(stream: S, slot: OwnedSemaphorePermit, longest: Duration) -> Self {
        Self { stream, quiet: Box::pin(sleep(QUIET)), end: Box::pin(sleep(longest)), _slot: slot }
    }
}

impl Connected for Secure {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.get_ref().0.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Secure<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let over = |why: &str| Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        // HTTP/2 always reads, also while it cannot write: so this is noticed whatever the caller does.
        if this.end.as_mut().poll(cx).is_ready() {
            return over("the connection is too old");
        }
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, out) {
            this.quiet.as_mut().reset(Instant::now() + QUIET);
            return Poll::Ready(read);
        }
        match this.quiet.as_mut().poll(cx) {
            Poll::Ready(()) => over("nothing came from the caller"),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Secure<S> {
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

    async fn connection(longest: Duration) -> (DuplexStream, Secure<DuplexStream>) {
        let (caller, stream) = duplex(64);
        let slot = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        (caller, Secure::new(stream, slot, longest))
    }

    /// Else a few callers who only connect would keep out all others.
    #[tokio::test(start_paused = true)]
    async fn a_silent_caller_does_not_keep_its_place() {
        let (mut caller, mut secure) = connection(10 * QUIET).await;
        let began = Instant::now();
        sleep(QUIET / 2).await;
        caller.write_all(b"x").await.unwrap();
        assert_eq!(secure.read_u8().await.unwrap(), b'x');
        let error = secure.read_u8().await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed() >= QUIET + QUIET / 2), (io::ErrorKind::TimedOut, true));
    }

    #[tokio::test(start_paused = true)]
    async fn nor_does_one_who_never_goes() {
        let (mut caller, mut secure) = connection(10 * QUIET).await;
        let (mut reads, speaking) = (0, async {
            loop {
                sleep(QUIET / 2).await;
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
        tokio::join!(timeout(20 * QUIET, speaking), reading).0.expect("it ends");
        assert!((18..=20).contains(&reads), "{reads}");
    }
}
