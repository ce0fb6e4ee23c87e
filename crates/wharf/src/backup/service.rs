//! The metadata service, as its caller sees it: over TLS, and asked again from where an answer broke off.

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

use super::ranges::Answer;

/// How often an answer that breaks off is taken up again without getting further.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Where the service is, and how to speak to it.
#[derive(Debug, clap::Args)]
pub(super) struct ServiceArgs {
    /// The service's address, such as snapshot-metadata.backup.svc:50051
    #[arg(long, value_name = "HOST:PORT")]
    server: String,
    /// Certificates that vouch for the service, in PEM
    #[arg(long, value_name = "FILE")]
    ca_file: PathBuf,
    /// A file with your token, made for the audience of the driver's SnapshotMetadataService; read anew when an answer
    /// breaks off
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Namespace of the snapshot
    #[arg(long, value_name = "NAME")]
    namespace: String,
    /// Name of the VolumeSnapshot
    #[arg(long, value_name = "NAME")]
    snapshot: String,
}

/// The way to the service.
pub(super) struct Service {
    client: SnapshotMetadataClient<Channel>,
    args: ServiceArgs,
}

impl Service {
    /// Sets up the way; connects to nothing yet.
    pub(super) fn new(args: ServiceArgs) -> anyhow::Result<Self> {
        let file = args.ca_file.display();
        let mut roots = RootCertStore::empty();
        let read = || format!("certificates {file}");
        for certificate in CertificateDer::pem_file_iter(&args.ca_file).with_context(read)? {
            roots.add(certificate.with_context(read)?).with_context(read)?;
        }
        if roots.is_empty() {
            bail!("{file} has no certificate in it");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tls = TlsConnector::from(Arc::new(config));
        let (host, _) = args.server.rsplit_once(':').context("--server has to be host:port")?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).with_context(|| format!("{host:?} is no host"))?;
        let address = args.server.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let (tls, name, address) = (tls.clone(), name.clone(), address.clone());
            async move {
                let stream = TcpStream::connect(&address).await?;
                tls.connect(name, stream).await.map(TokioIo::new)
            }
        });
        let origin: Uri =
            format!("https://{}", args.server).parse().context("--server has to be host:port")?;
        // The connector speaks TLS; the library is not to do it once more.
        let plain: Uri = format!("http://{}", args.server).parse().context("--server has to be host:port")?;
        let channel = Channel::builder(plain).origin(origin).connect_with_connector_lazy(connect);
        Ok(Self { client: SnapshotMetadataClient::new(channel), args })
    }

    /// Every range that holds data, or that differs from `base`, in order; and the volume's size, at last. `each` is
    /// told the size with the ranges.
    pub(super) async fn ranges(
        &self,
        base: Option<&str>,
        mut each: impl FnMut(u64, Range<u64>) -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        let (mut answer, mut failures) = (Answer::default(), 0);
        loop {
            let before = answer.position();
            match self.stream(base, &mut answer, &mut each).await {
                Ok(()) => break,
                Err(Broken::Ours(error)) => return Err(error),
                Err(Broken::Theirs(status)) => {
                    failures = if answer.position() > before { 0 } else { failures + 1 };
                    if !may_go_on(status.code()) || failures >= ATTEMPTS {
                        let (code, words) = (status.code(), status.message());
                        bail!("the metadata service refused: {code:?}: {words}");
                    }
                    tracing::warn!(code = ?status.code(), reason = status.message(), "asking on");
                    tokio::time::sleep(PAUSE).await;
                    answer.resume();
                }
            }
        }
        answer.capacity().context("the metadata service said nothing of the volume")
    }

    async fn stream(
        &self,
        base: Option<&str>,
        answer: &mut Answer,
        each: &mut impl FnMut(u64, Range<u64>) -> anyhow::Result<()>,
    ) -> Result<(), Broken> {
        let file = &self.args.token_file;
        let token = std::fs::read_to_string(file).with_context(|| format!("token {}", file.display()))?;
        let (security_token, namespace) = (token.trim().to_owned(), self.args.namespace.clone());
        let starting_offset = i64::try_from(answer.position()).context("the volume is too large")?;
        let mut client = self.client.clone();
        let name = self.args.snapshot.clone();
        let mut take = |kind, capacity, blocks: &[BlockMetadata]| -> Result<(), Broken> {
            let ranges = answer.take(kind, capacity, blocks).map_err(anyhow::Error::from)?;
            let size = answer.capacity().unwrap_or_default();
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
                while let Some(message) = stream.message().await? {
                    take(
                        message.block_metadata_type,
                        message.volume_capacity_bytes,
                        &message.block_metadata,
                    )?;
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
                while let Some(message) = stream.message().await? {
                    take(
                        message.block_metadata_type,
                        message.volume_capacity_bytes,
                        &message.block_metadata,
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Why a stream ended early: here, or there.
enum Broken {
    Ours(anyhow::Error),
    Theirs(Status),
}

impl From<anyhow::Error> for Broken {
    fn from(error: anyhow::Error) -> Self {
        Self::Ours(error)
    }
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Self::Theirs(status)
    }
}

/// Whether the same question may be answered a little later.
fn may_go_on(code: Code) -> bool {
    match code {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Cancelled
        | Code::Unknown
        | Code::ResourceExhausted
        // A token that has run out in the middle: the file may have a new one.
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
