//! Client of the snapshot metadata service: connects over TLS and resumes interrupted streams.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Status};
use wharf_csi::snapshotmetadata::snapshot_metadata_client::SnapshotMetadataClient;
use wharf_csi::snapshotmetadata::{BlockMetadata, GetMetadataAllocatedRequest, GetMetadataDeltaRequest};

use super::ranges::MetadataResponse;

/// How often an interrupted stream is resumed without progress.
const MAX_ATTEMPTS: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Connection to the service, and the snapshot to query.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// Address of the service, as `HOST:PORT`.
    pub server: String,
    /// File with the CA certificates of the service, in PEM.
    pub ca_file: PathBuf,
    /// File with a token for the audience of the driver's SnapshotMetadataService; read again when a stream is resumed.
    pub token_file: PathBuf,
    /// Namespace of the snapshot.
    pub namespace: String,
    /// Name of the VolumeSnapshot.
    pub snapshot: String,
}

/// A client of the service for one snapshot.
pub struct MetadataService {
    client: SnapshotMetadataClient<Channel>,
    options: ServiceOptions,
}

impl MetadataService {
    /// Creates the client. Does not connect yet.
    pub fn new(options: ServiceOptions) -> anyhow::Result<Self> {
        let file = options.ca_file.display();
        let mut roots = RootCertStore::empty();
        let read = || format!("failed to read CA certificates from {file}");
        for certificate in CertificateDer::pem_file_iter(&options.ca_file).with_context(read)? {
            roots.add(certificate.with_context(read)?).with_context(read)?;
        }
        if roots.is_empty() {
            bail!("{file} contains no certificate");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tls = TlsConnector::from(Arc::new(config));
        let (host, _) = options.server.rsplit_once(':').context("--server must be HOST:PORT")?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone())
            .with_context(|| format!("{host:?} is not a valid host name"))?;
        let address = options.server.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let (tls, name, address) = (tls.clone(), name.clone(), address.clone());
            async move {
                let stream = TcpStream::connect(&address).await?;
                tls.connect(name, stream).await.map(TokioIo::new)
            }
        });
        let origin: Uri =
            format!("https://{}", options.server).parse().context("--server must be HOST:PORT")?;
        // The connector already uses TLS. With https, tonic would add a second layer.
        let plain: Uri =
            format!("http://{}", options.server).parse().context("--server must be HOST:PORT")?;
        let channel = Channel::builder(plain).origin(origin).connect_with_connector_lazy(connect);
        Ok(Self { client: SnapshotMetadataClient::new(channel), options })
    }

    /// Passes every range that is allocated, or that differs from `base`, to `each`, in order and with the volume's size.
    /// Returns the volume's size.
    pub(super) async fn ranges(
        &self,
        base: Option<&str>,
        mut each: impl FnMut(u64, Range<u64>) -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        let (mut response, mut failures) = (MetadataResponse::default(), 0);
        loop {
            let before = response.position();
            match self.stream(base, &mut response, &mut each).await {
                Ok(()) => break,
                Err(StreamError::Local(error)) => return Err(error),
                Err(StreamError::Remote(status)) => {
                    failures = if response.position() > before { 0 } else { failures + 1 };
                    if !is_retryable(status.code()) || failures >= MAX_ATTEMPTS {
                        let (code, message) = (status.code(), status.message());
                        bail!("the metadata service failed: {code:?}: {message}");
                    }
                    tracing::warn!(code = ?status.code(), error = status.message(), "metadata stream interrupted; resuming");
                    tokio::time::sleep(RETRY_DELAY).await;
                    response.resume();
                }
            }
        }
        response.capacity().context("the metadata service returned an empty stream")
    }

    async fn stream(
        &self,
        base: Option<&str>,
        response: &mut MetadataResponse,
        each: &mut impl FnMut(u64, Range<u64>) -> anyhow::Result<()>,
    ) -> Result<(), StreamError> {
        let file = &self.options.token_file;
        let token = std::fs::read_to_string(file)
            .with_context(|| format!("failed to read token file {}", file.display()))?;
        let (security_token, namespace) = (token.trim().to_owned(), self.options.namespace.clone());
        let starting_offset = i64::try_from(response.position()).context("the volume is too large")?;
        let mut client = self.client.clone();
        let name = self.options.snapshot.clone();
        let mut accept = |kind, capacity, blocks: &[BlockMetadata]| -> Result<(), StreamError> {
            let ranges = response.accept(kind, capacity, blocks).map_err(anyhow::Error::from)?;
            let size = response.capacity().unwrap_or_default();
            Ok(ranges.into_iter().try_for_each(|range| each(size, range))?)
        };
        match base {
            None => {
                let request = GetMetadataAllocatedRequest {
                    security_token,
                    namespace,
                    snapshot_name: name,
                    starting_offset,
                    max_results: 0,
                };
                let mut stream = client.get_metadata_allocated(request).await?.into_inner();
                while let Some(m) = stream.message().await? {
                    accept(m.block_metadata_type, m.volume_capacity_bytes, &m.block_metadata)?;
                }
            }
            Some(base) => {
                let request = GetMetadataDeltaRequest {
                    security_token,
                    namespace,
                    base_snapshot_id: base.to_owned(),
                    target_snapshot_name: name,
                    starting_offset,
                    max_results: 0,
                };
                let mut stream = client.get_metadata_delta(request).await?.into_inner();
                while let Some(m) = stream.message().await? {
                    accept(m.block_metadata_type, m.volume_capacity_bytes, &m.block_metadata)?;
                }
            }
        }
        Ok(())
    }
}

/// Why a stream ended early: an error of this process, or a status of the service.
enum StreamError {
    Local(anyhow::Error),
    Remote(Status),
}

impl From<anyhow::Error> for StreamError {
    fn from(error: anyhow::Error) -> Self {
        Self::Local(error)
    }
}

impl From<Status> for StreamError {
    fn from(status: Status) -> Self {
        Self::Remote(status)
    }
}

/// Whether the same request may succeed later.
fn is_retryable(code: Code) -> bool {
    match code {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Cancelled
        | Code::Unknown
        | Code::ResourceExhausted
        // The token may have expired during the stream, and the file may contain a new one.
        | Code::Unauthenticated => true,
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss => false,
    }
}
